// Structured output: a mask over the vocabulary for each token of an answer, so that the whole answer matches
// a grammar. A grammar is compiled once to a pushdown automaton over bytes (grammar_automaton.h) and may be
// shared; a matcher is one answer's place in it. Masks come from a walk of a tree of the vocabulary
// (grammar_mask.h).
//
// An answer that ended early (a token limit) is a prefix of a match; the end-of-turn tokens are allowed only
// where the match is complete, and nothing is allowed after them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/grammar_mask.h"
#include "text/grammar_source.h"

namespace quern {

class Grammar {
 public:
  // Throws Error where the grammar is too large, matches nothing, or is left-recursive.
  Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const GrammarSource& source);
  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }
  const GrammarAutomaton& automaton() const { return automaton_; }
  // What it holds now; grows with use, within bounds.
  size_t bytes() const;

 private:
  friend class GrammarMatcher;
  const NodeMask& node_mask(std::span<const int32_t> nodes, int depth,
                            bool with_leaving) const;  // mutex_ is held

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  GrammarAutomaton automaton_;
  // Found out as it is asked for; forgotten when it grows too large.
  mutable std::mutex mutex_;
  mutable GrammarDfa dfa_;
  mutable std::map<std::vector<int32_t>, std::unique_ptr<NodeMask>> masks_;  // by depth and nodes
  mutable size_t mask_bytes_ = 0;
};

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  // A copy is independent and cheap (a few items and the last kHistory places).
  static constexpr int kHistory = 64;

  // A bit per token id: those that accept() would take now. `bits` may be longer than the vocabulary; all of
  // it is written. After the end: the end tokens only.
  void fill_mask(std::span<uint32_t> bits) const;
  // False: not allowed, nothing has changed. Throws Error where a grammar is too ambiguous to follow; so may
  // fill_mask. An end token is allowed where the match is complete, and again
  // after it.
  bool accept(int32_t id);
  void rollback(int n);      // undoes the last n accepted tokens; n ≤ kHistory
  bool is_finished() const;  // nothing but the end may follow
  bool may_end() const { return state_.may_end; }
  bool has_ended() const { return state_.ended; }

 private:
  struct State {
    std::vector<GrammarItem> items;
    bool may_end = false;
    bool ended = false;
  };
  struct Frames {
    std::mutex mutex;
    GrammarFrames frames;
  };
  void mark(std::span<const int32_t> nodes, int32_t frame, std::span<uint32_t> bits) const;
  void mark_leaving(const TokenTrie& trie, uint32_t begin, uint32_t end, int depth, int32_t frame,
                    std::span<uint32_t> bits) const;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<Frames> frames_;  // shared by copies; only grows
  State state_;
  std::vector<State> history_;  // before each of the last tokens
};

struct GrammarOptions {
  // So many line feeds may come before the text: models write two after </think>.
  int leading_line_feeds = 0;
  // Not null: instead of the text there may be calls of these tools, as ToolChoice::Auto has them.
  const Json* or_calls_of = nullptr;
  bool parallel_calls = true;
};

using GrammarPtr = std::shared_ptr<const Grammar>;
using GrammarVocabularyPtr = std::shared_ptr<const GrammarVocabulary>;

// Each throws Error with one line that names what is wrong and where: a keyword that is not supported, a
// bound that cannot be met, a limit on depth or size.

// JSON that fits the schema (grammar_json.h says what is supported), with at most a little white space
// between its tokens.
GrammarPtr compile_json_schema(GrammarVocabularyPtr vocabulary, const Json& schema,
                               const GrammarOptions& = {});
// Any JSON value, or any object.
GrammarPtr compile_any_json(GrammarVocabularyPtr vocabulary, bool object_only = false,
                            const GrammarOptions& = {});
// All of the text matches the regular expression (grammar_regex.h).
GrammarPtr compile_regex(GrammarVocabularyPtr vocabulary, std::string_view pattern,
                         const GrammarOptions& = {});
// All of the text is a `root` of the grammar (grammar_ebnf.h).
GrammarPtr compile_ebnf(GrammarVocabularyPtr vocabulary, std::string_view grammar,
                        const GrammarOptions& = {});

enum class ToolChoice : uint8_t {
  Auto,      // any text, in which a call, once opened, is well formed
  Required,  // one of the tools
  Named,     // the tool of that name
};
struct ToolGrammar {
  ToolChoice choice = ToolChoice::Required;
  std::string name;      // Named
  bool parallel = true;  // several calls, one after the other
};
// Qwen's calls:
// <tool_call>\n<function=NAME>\n(<parameter=KEY>\nVALUE\n</parameter>\n)*</function>\n</tool_call>. `tools`:
// [{"type": "function", "function": {"name", "parameters"}}] or the inner objects. Parameters come in
// declared order. A string is written as it is; any other value as JSON.
GrammarPtr compile_tool_calls(GrammarVocabularyPtr vocabulary, const Json& tools, const ToolGrammar& choice,
                              const GrammarOptions& = {});

}  // namespace quern

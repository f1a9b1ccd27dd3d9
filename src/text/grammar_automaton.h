// A grammar as a pushdown automaton over bytes: nodes with byte, token, empty and call edges. A call pushes
// the node to return to; reaching the accepting node pops it. From every node that is kept the accepting node
// can be reached, so whoever is at a node can finish.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/grammar_source.h"

namespace quern {

// The characters that need no attention in a JSON string: no quote, backslash or control character, and no
// line separator, which a regular expression's dot leaves out.
const CharSet& plain_chars();
// Sets that repeated classes often hold, larger ones first: the plain characters, those without ASCII
// punctuation, ASCII letters and digits, letters, small letters. The vocabulary knows the tokens made of
// each.
const std::vector<CharSet>& char_slices();

struct GrammarAutomaton {
  enum class EdgeKind : uint8_t { Byte, Token, Empty, Call };
  struct Edge {
    EdgeKind kind;
    uint8_t low = 0, high = 0;  // Byte
    int32_t target = 0;         // Call: where to return to
    int32_t value = -1;  // Token: the id; Call: the rule; Byte: not -1: `target` lies in a rule, return here
  };
  // What is known of the tokens a node accepts, so that most of the vocabulary need not be walked.
  struct Note {
    enum class Slice : uint8_t {
      None,
      JsonString,  // inside a JSON string; `count` characters may follow, and then it may end
      Chars,       // up to `count` characters of char_slices()[set] are accepted
      Lines,       // whatever has no line feed is accepted
      All,         // everything is accepted
    };
    Slice slice = Slice::None;
    bool exact = false;  // Chars: no token of such characters only is accepted beyond `count`
    int16_t set = 0;
    int32_t count = INT32_MAX;
  };

  static constexpr int32_t kAccept = 0;  // the node where every rule ends
  static constexpr size_t kMaxNodes = 1'000'000;

  std::span<const Edge> edges(int32_t node) const {
    return {edge_list.data() + edge_begin[node], edge_list.data() + edge_begin[node + 1]};
  }
  int32_t size() const { return static_cast<int32_t>(notes.size()); }

  std::vector<Edge> edge_list;
  std::vector<uint32_t> edge_begin;  // [size() + 1]
  std::vector<Note> notes;           // [size()]
  std::vector<uint8_t> is_kernel;    // [size()]: has byte or token edges
  std::vector<int32_t> rule_entry;   // by rule number
  int32_t root = 0;
  int32_t json_body = -1;  // the node inside the JSON string without bounds, where there is one
};

// `longest_token` in characters: bounds beyond it cannot be told from none by one token. Throws Error where
// the grammar is too large, matches nothing, or has a left-recursive rule.
GrammarAutomaton build_automaton(const GrammarSource& source, int longest_token);

}  // namespace quern

// Which tokens a node of a grammar's automaton accepts. A token is many bytes, and may run through the end of
// the rule it starts in; so what a node says is in two parts: the tokens that stay inside, which depend on
// the node alone and are computed once, and those that leave, kept as a small tree of what they have left
// after leaving, which is walked again from wherever the rule returns to.
//
//   mask(node, frame) = inside(node) ∪ walk(leaving(node), return node of frame, …)
//
// The walk over the vocabulary runs on a deterministic automaton whose states are sets of items, made as
// needed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar_stack.h"
#include "text/token_trie.h"
#include "text/tokenizer.h"

namespace quern {

// States are numbers; kDead accepts nothing. Frames are its own: a start state's stack is empty but for a
// bottom.
class GrammarDfa {
 public:
  static constexpr int32_t kDead = -1;
  // Clear it beyond so many states of 1 KiB, between walks.
  static constexpr size_t kMaxStates = 20'000;
  explicit GrammarDfa(const GrammarAutomaton& automaton);
  GrammarDfa(const GrammarDfa&) = delete;
  GrammarDfa& operator=(const GrammarDfa&) = delete;
  // The state at all of `nodes`, with a stack that counts as `depth` deep.
  int32_t start(std::span<const int32_t> nodes, int depth);
  int32_t step(int32_t state, uint8_t byte) {
    const int32_t next = table_[static_cast<size_t>(state) << 8 | byte];
    return next != kUnknown ? next : compute(state, byte);
  }
  bool leaves(int32_t state) const { return leaves_[state]; }  // the rule it started in may have ended here
  size_t size() const { return leaves_.size(); }
  void clear();

 private:
  static constexpr int32_t kUnknown = -2;
  int32_t compute(int32_t state, uint8_t byte);
  int32_t intern(std::vector<GrammarItem>& items, bool leaves);
  std::span<const GrammarItem> items(int32_t state) const {
    return {items_.data() + items_begin_[state], items_.data() + items_begin_[state + 1]};
  }

  GrammarFrames frames_;
  GrammarClosure closure_;
  std::vector<int32_t>
      table_;  // [size(), 256]; room for kMaxStates is reserved, so that it is not moved as it grows
  std::vector<uint8_t> leaves_;
  std::vector<GrammarItem> items_;     // of all states
  std::vector<uint32_t> items_begin_;  // [size() + 1]
  std::vector<int32_t> index_;         // open addressing by hash, at most half full; kDead: free
  std::vector<uint64_t> hashes_;       // [size()]
  std::vector<GrammarItem> scratch_;
};

struct NodeMask {
  std::span<const uint32_t> base;  // a bit per token; may be empty
  std::vector<uint32_t> bits;      // more of them; may be empty
  std::vector<int32_t> ids;        // and more
  std::shared_ptr<const TokenTrie> leaving;
  bool has_leaving = false;  // `leaving` was computed
  size_t bytes() const;
};

// A tokenizer's vocabulary arranged for masks. Built once (Qwen3's 151 000 tokens: see
// tests/text/grammar_speed).
class GrammarVocabulary {
 public:
  // `end_ids`: the tokens that end an answer. Added tokens occur in no text; only a grammar that names one
  // allows it.
  GrammarVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_ids);
  ~GrammarVocabulary();

  int32_t size() const { return static_cast<int32_t>(begin_.size()) - 1; }  // ids below this may have a token
  size_t words() const { return (static_cast<size_t>(size()) + 31) / 32; }  // of a mask
  std::string_view bytes(int32_t id) const {
    return std::string_view(bytes_).substr(begin_[id], begin_[id + 1] - begin_[id]);
  }
  bool is_text(int32_t id) const { return is_text_[id]; }  // an ordinary token
  bool is_end(int32_t id) const;
  std::span<const int32_t> end_ids() const { return end_ids_; }
  std::optional<int32_t> find_added(std::string_view spelling) const;
  int longest_token() const { return all_.max_depth(); }  // in bytes

  const TokenTrie& all() const { return all_; }
  std::span<const uint32_t> all_bits() const { return all_bits_; }
  // Tokens of characters of char_slices()[k] only.
  struct Slice {
    std::vector<std::vector<uint32_t>> bits;  // [count - 1]: of at most `count` characters
    TokenTrie rest;                           // all other tokens
    int longest() const { return static_cast<int>(bits.size()); }  // in characters
    std::span<const uint32_t> at_most(int count) const;
  };
  const Slice& slice(int k) const { return slices_[k]; }
  // Tokens without a line feed; all others.
  std::span<const uint32_t> line_bits() const { return line_bits_; }
  const TokenTrie& with_line_feed() const { return with_line_feed_; }
  // The mask of the node inside an unbounded JSON string; the most bytes of a token in it that is not plain.
  const NodeMask& json_string() const { return json_string_; }
  int longest_in_string() const { return longest_in_string_; }

 private:
  std::string bytes_;
  std::vector<uint32_t> begin_;
  std::vector<uint8_t> is_text_;
  std::vector<std::pair<std::string, int32_t>> added_;
  std::vector<int32_t> end_ids_;
  TokenTrie all_, with_line_feed_;
  std::vector<uint32_t> all_bits_, line_bits_;
  std::vector<Slice> slices_;
  NodeMask json_string_;
  int longest_in_string_ = 0;
};

// inside(nodes) and, where wanted, leaving(nodes): several nodes on one stack, which counts as `depth` deep, are walked
// together. A node that something is noted of stands alone.
NodeMask compute_node_mask(const GrammarAutomaton& automaton, GrammarDfa& dfa,
                           const GrammarVocabulary& vocabulary, std::span<const int32_t> nodes, int depth,
                           bool with_leaving);

// Calls fn(i, state) for each node of trie in [begin, end) that `start` leads to; the nodes lie below one of
// depth `depth`.
template <typename Fn>
void walk_trie(const TokenTrie& trie, uint32_t begin, uint32_t end, int depth, GrammarDfa& dfa, int32_t start,
               Fn fn) {
  std::vector<int32_t> states(static_cast<size_t>(trie.max_depth()) + 1);
  states[depth] = start;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& n = trie.node(i);
    const int32_t state = dfa.step(states[n.depth - 1], n.byte);
    if (state == GrammarDfa::kDead) {
      i = n.skip;
      continue;
    }
    states[n.depth] = state;
    fn(i, state);
    ++i;
  }
}

}  // namespace quern

// The stacks of a pushdown automaton, and where reading a byte leads. A stack is a linked list of frames
// stored once each, so a configuration is a set of (node, top frame) and equal stacks are equal numbers.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar_automaton.h"

namespace quern {

struct GrammarItem {
  int32_t node = 0, frame = 0;
  auto operator<=>(const GrammarItem&) const = default;
};

class GrammarFrames {
 public:
  // Calls deeper than this are not entered: nesting stays within what JSON readers take
  // (JsonLimits::max_depth).
  static constexpr int kMaxDepth = 250;

  struct Frame {
    int32_t return_node, parent;  // -1, -1: the bottom of a stack
    int32_t depth;
  };
  GrammarFrames() { bottom(0); }
  const Frame& operator[](int32_t frame) const { return frames_[frame]; }
  int32_t push(int32_t return_node, int32_t parent);
  int32_t bottom(int depth);  // a bottom that counts as so deep
  void clear();

 private:
  std::vector<Frame> frames_;  // 0: the bottom at depth 0
  std::unordered_map<uint64_t, int32_t> index_;
};

// Follows empty edges, calls and returns from `from`; appends the items with byte or token edges to `out`,
// each once over the life of one Closure. True where a stack's bottom was popped.
class GrammarClosure {
 public:
  GrammarClosure(const GrammarAutomaton& automaton, GrammarFrames& frames)
      : automaton_(&automaton), frames_(&frames) {}
  void begin(std::vector<GrammarItem>& out);  // a new, empty set
  void add(GrammarItem from);
  void read(GrammarItem item, uint8_t byte);  // adds where `byte` leads from an item
  std::span<const GrammarAutomaton::Edge> edges(int32_t node) const { return automaton_->edges(node); }
  bool ended() const { return ended_; }  // a bottom was popped since begin()
  // Beyond this many nodes on the way an Error says that the grammar is too ambiguous.
  static constexpr size_t kMaxItems = 10'000;

 private:
  const GrammarAutomaton* automaton_;
  GrammarFrames* frames_;
  std::vector<GrammarItem>* out_ = nullptr;
  bool is_new(GrammarItem item);

  std::vector<GrammarItem> seen_, stack_;
  std::vector<int32_t> index_;  // of seen_ by hash, at most half full; built once there are many
  bool ended_ = false;
};

}  // namespace quern

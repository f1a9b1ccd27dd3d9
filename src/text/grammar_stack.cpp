#include "text/grammar_stack.h"

#include <algorithm>

#include "base/check.h"

namespace quern {

int32_t GrammarFrames::push(int32_t return_node, int32_t parent) {
  const uint64_t key = uint64_t(static_cast<uint32_t>(return_node)) << 32 | static_cast<uint32_t>(parent);
  const auto [at, fresh] = index_.try_emplace(key, static_cast<int32_t>(frames_.size()));
  if (fresh) frames_.push_back({return_node, parent, frames_[parent].depth + 1});
  return at->second;
}

int32_t GrammarFrames::bottom(int depth) {
  const uint64_t key = uint64_t{1} << 63 | static_cast<uint32_t>(depth);
  const auto [at, fresh] = index_.try_emplace(key, static_cast<int32_t>(frames_.size()));
  if (fresh) frames_.push_back({-1, -1, depth});
  return at->second;
}

void GrammarFrames::clear() {
  frames_.clear();
  index_.clear();
  bottom(0);
}

void GrammarClosure::begin(std::vector<GrammarItem>& out) {
  out_ = &out;
  out.clear();
  seen_.clear();
  index_.clear();
  ended_ = false;
}

bool GrammarClosure::is_new(GrammarItem item) {
  constexpr size_t kLinear = 32;
  if (seen_.size() >= kMaxItems) throw Error("grammar: too ambiguous to follow");
  if (seen_.size() < kLinear) {
    if (std::find(seen_.begin(), seen_.end(), item) != seen_.end()) return false;
    seen_.push_back(item);
    return true;
  }
  auto slot_of = [&](GrammarItem i) {
    uint64_t h =
        (uint64_t(static_cast<uint32_t>(i.node)) << 32 | static_cast<uint32_t>(i.frame)) * 0x9E3779B97F4A7C15;
    size_t slot = (h >> 32) & (index_.size() - 1);
    while (index_[slot] >= 0 && seen_[index_[slot]] != i) slot = (slot + 1) & (index_.size() - 1);
    return slot;
  };
  if (2 * seen_.size() >= index_.size()) {
    index_.assign(std::max<size_t>(4 * kLinear, 2 * index_.size()), -1);
    for (size_t i = 0; i < seen_.size(); ++i) index_[slot_of(seen_[i])] = static_cast<int32_t>(i);
  }
  const size_t slot = slot_of(item);
  if (index_[slot] >= 0) return false;
  index_[slot] = static_cast<int32_t>(seen_.size());
  seen_.push_back(item);
  return true;
}

void GrammarClosure::add(GrammarItem from) {
  using EdgeKind = GrammarAutomaton::EdgeKind;
  auto reach = [&](GrammarItem item) {
    if (is_new(item)) stack_.push_back(item);
  };
  stack_.clear();
  reach(from);
  while (!stack_.empty()) {
    const GrammarItem item = stack_.back();
    stack_.pop_back();
    if (item.node == GrammarAutomaton::kAccept) {
      const GrammarFrames::Frame frame = (*frames_)[item.frame];
      if (frame.parent < 0)
        ended_ = true;
      else
        reach({frame.return_node, frame.parent});
      continue;
    }
    if (automaton_->is_kernel[item.node]) out_->push_back(item);
    for (const auto& e : automaton_->edges(item.node)) {
      if (e.kind == EdgeKind::Empty) {
        reach({e.target, item.frame});
      } else if (e.kind == EdgeKind::Call) {
        // A call that has nothing to do afterwards returns straight to the caller's caller.
        if (e.target == GrammarAutomaton::kAccept)
          reach({automaton_->rule_entry[e.value], item.frame});
        else if ((*frames_)[item.frame].depth < GrammarFrames::kMaxDepth)
          reach({automaton_->rule_entry[e.value], frames_->push(e.target, item.frame)});
      }
    }
  }
}

void GrammarClosure::read(GrammarItem item, uint8_t byte) {
  for (const auto& e : automaton_->edges(item.node)) {
    if (e.kind != GrammarAutomaton::EdgeKind::Byte || byte < e.low || byte > e.high) continue;
    if (e.value < 0)
      add({e.target, item.frame});
    else if ((*frames_)[item.frame].depth < GrammarFrames::kMaxDepth)
      add({e.target, frames_->push(e.value, item.frame)});
  }
}

static_assert(GrammarFrames::kMaxDepth < 256, "within JsonLimits::max_depth");

}  // namespace quern

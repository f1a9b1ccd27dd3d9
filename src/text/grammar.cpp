#include "text/grammar.h"

#include <algorithm>

#include "base/check.h"

namespace quern {
namespace {

// The masks a grammar may remember.
constexpr size_t kMaxMaskBytes = size_t{48} << 20;

// Calls fn(nodes, frame) for each frame among the items, which are reordered.
template <typename Fn>
void for_each_stack(std::vector<GrammarItem>& items, Fn fn) {
  std::sort(items.begin(), items.end(), [](const GrammarItem& a, const GrammarItem& b) {
    return a.frame != b.frame ? a.frame < b.frame : a.node < b.node;
  });
  std::vector<int32_t> nodes;
  for (size_t i = 0; i < items.size();) {
    const int32_t frame = items[i].frame;
    nodes.clear();
    for (; i < items.size() && items[i].frame == frame; ++i) nodes.push_back(items[i].node);
    fn(std::span<const int32_t>(nodes), frame);
  }
}

}  // namespace

Grammar::Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const GrammarSource& source)
    : vocabulary_(std::move(vocabulary)),
      automaton_(build_automaton(source, vocabulary_->longest_in_string())),
      dfa_(automaton_) {}

size_t Grammar::bytes() const {
  const GrammarAutomaton& a = automaton_;
  const size_t nodes = a.notes.size() * (sizeof(GrammarAutomaton::Note) + sizeof(uint32_t) + 1);
  const std::lock_guard lock(mutex_);
  return nodes + a.edge_list.size() * sizeof(GrammarAutomaton::Edge) + mask_bytes_ + (dfa_.size() << 10);
}

const NodeMask& Grammar::node_mask(std::span<const int32_t> nodes, int depth, bool with_leaving) const {
  // One token cannot go deeper than it has bytes.
  if (depth + vocabulary_->longest_token() < GrammarFrames::kMaxDepth) depth = 0;
  std::vector<int32_t> key{depth};
  key.insert(key.end(), nodes.begin(), nodes.end());
  auto& mask = masks_[key];
  if (!mask || (with_leaving && !mask->has_leaving)) {
    if (mask) mask_bytes_ -= mask->bytes();
    mask = std::make_unique<NodeMask>(
        compute_node_mask(automaton_, dfa_, *vocabulary_, nodes, depth, with_leaving));
    mask_bytes_ += mask->bytes() + key.size() * sizeof(int32_t);
  }
  return *mask;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), frames_(std::make_shared<Frames>()) {
  GrammarClosure closure(grammar_->automaton_, frames_->frames);
  closure.begin(state_.items);
  closure.add({grammar_->automaton_.root, 0});
  state_.may_end = closure.ended();
}

bool GrammarMatcher::is_finished() const { return state_.ended || (state_.may_end && state_.items.empty()); }

bool GrammarMatcher::accept(int32_t id) {
  const GrammarVocabulary& v = grammar_->vocabulary();
  if (id < 0 || id >= v.size()) return false;
  State next;
  if (v.is_end(id) && (state_.may_end || state_.ended)) {
    next.may_end = next.ended = true;
  } else {
    if (state_.ended) return false;
    const GrammarAutomaton& automaton = grammar_->automaton_;
    const std::lock_guard lock(frames_->mutex);
    GrammarClosure closure(automaton, frames_->frames);
    std::vector<GrammarItem> items = state_.items;
    if (v.is_text(id)) {
      for (const char c : v.bytes(id)) {
        closure.begin(next.items);
        for (const GrammarItem& item : items) closure.read(item, static_cast<uint8_t>(c));
        std::swap(items, next.items);
        if (items.empty() && !closure.ended()) return false;
      }
      std::swap(items, next.items);
    } else {
      closure.begin(next.items);
      for (const GrammarItem& item : items)
        for (const auto& e : automaton.edges(item.node))
          if (e.kind == GrammarAutomaton::EdgeKind::Token && e.value == id)
            closure.add({e.target, item.frame});
      if (next.items.empty() && !closure.ended()) return false;
    }
    next.may_end = closure.ended();
  }
  if (history_.size() >= 2 * kHistory) history_.erase(history_.begin(), history_.begin() + kHistory);
  history_.push_back(std::move(state_));
  state_ = std::move(next);
  return true;
}

void GrammarMatcher::rollback(int n) {
  QUERN_CHECK(n >= 0 && static_cast<size_t>(n) <= history_.size(),
              "a rollback beyond what was accepted or kept");
  if (n == 0) return;
  state_ = std::move(history_[history_.size() - n]);
  history_.resize(history_.size() - n);
}

void GrammarMatcher::fill_mask(std::span<uint32_t> bits) const {
  const GrammarVocabulary& v = grammar_->vocabulary();
  QUERN_CHECK(bits.size() >= v.words(), "a mask shorter than the vocabulary");
  std::fill(bits.begin(), bits.end(), 0);
  if (state_.may_end)
    for (const int32_t id : v.end_ids()) bits[id >> 5] |= uint32_t{1} << (id & 31);
  if (state_.ended) return;
  const std::scoped_lock lock(grammar_->mutex_, frames_->mutex);
  if (grammar_->dfa_.size() > GrammarDfa::kMaxStates) grammar_->dfa_.clear();
  if (grammar_->mask_bytes_ > kMaxMaskBytes) {
    grammar_->masks_.clear();
    grammar_->mask_bytes_ = 0;
  }
  // Items on one stack are walked together, but for those of which more is known (GrammarAutomaton::Note).
  const auto& notes = grammar_->automaton_.notes;
  std::vector<GrammarItem> items;
  for (const GrammarItem& item : state_.items) {
    if (notes[item.node].slice != GrammarAutomaton::Note::Slice::None)
      mark({&item.node, 1}, item.frame, bits);
    else
      items.push_back(item);
  }
  for_each_stack(items, [&](std::span<const int32_t> nodes, int32_t frame) { mark(nodes, frame, bits); });
}

void GrammarMatcher::mark(std::span<const int32_t> nodes, int32_t top, std::span<uint32_t> bits) const {
  const GrammarFrames::Frame frame = frames_->frames[top];
  const bool inner = frame.parent >= 0;  // what leaves the outermost rule is past the end
  const NodeMask& mask = grammar_->node_mask(nodes, frame.depth, inner);
  for (const std::span<const uint32_t> more : {mask.base, std::span<const uint32_t>(mask.bits)})
    for (size_t w = 0; w < more.size(); ++w) bits[w] |= more[w];
  for (const int32_t id : mask.ids) bits[id >> 5] |= uint32_t{1} << (id & 31);
  if (inner && mask.leaving && mask.leaving->size())
    mark_leaving(*mask.leaving, 0, mask.leaving->size(), 0, top, bits);
}

// The tokens of trie nodes [begin, end), below one of depth `depth`, read from where the rule of `frame` returns to.
void GrammarMatcher::mark_leaving(const TokenTrie& trie, uint32_t begin, uint32_t end, int depth,
                                  int32_t frame, std::span<uint32_t> bits) const {
  const GrammarFrames::Frame top = frames_->frames[frame];
  if (top.parent < 0 || begin >= end) return;
  std::vector<GrammarItem> items;
  GrammarClosure closure(grammar_->automaton_, frames_->frames);
  closure.begin(items);
  closure.add({top.return_node, top.parent});
  GrammarDfa& dfa = grammar_->dfa_;
  for_each_stack(items, [&](std::span<const int32_t> nodes, int32_t under) {
    int deep = frames_->frames[under].depth;
    if (deep + grammar_->vocabulary_->longest_token() < GrammarFrames::kMaxDepth) deep = 0;
    walk_trie(trie, begin, end, depth, dfa, dfa.start(nodes, deep), [&](uint32_t i, int32_t state) {
      for (const int32_t id : trie.ids(i)) bits[id >> 5] |= uint32_t{1} << (id & 31);
      if (dfa.leaves(state) && trie.node(i).skip > i + 1)
        mark_leaving(trie, i + 1, trie.node(i).skip, trie.node(i).depth, under, bits);
    });
  });
}

}  // namespace quern

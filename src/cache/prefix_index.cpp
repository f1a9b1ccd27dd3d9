#include "cache/prefix_index.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "ops/batch_view.h"

namespace quern {
namespace {

using PageIds = std::array<int32_t, kPageTokens>;

}  // namespace

struct PrefixIndex::Node {
  Node* parent = nullptr;
  PageIds ids{};
  int32_t page = -1;
  uint64_t used = 0, serial = 0;
  SnapshotKind kind = SnapshotKind::Turn;
  std::shared_ptr<const Snapshot> snapshot;
  std::map<PageIds, std::unique_ptr<Node>> children;

  Rank snapshot_rank() const { return {kind == SnapshotKind::Pinned ? 1 : 0, used, serial}; }
};

PrefixIndex::PrefixIndex(PagePool& pages, int64_t snapshot_budget)
    : pages_(pages),
      budget_(snapshot_budget),
      root_(std::make_unique<Node>()),
      held_(static_cast<size_t>(pages.total())) {}

PrefixIndex::~PrefixIndex() { clear(); }

PrefixIndex::Rank PrefixIndex::leaf_rank(const Node& node) const {
  const int value = node.snapshot == nullptr ? 0 : node.kind == SnapshotKind::Pinned ? 2 : 1;
  return {value, node.used, node.serial};
}

PrefixIndex::Node* PrefixIndex::find(std::span<const int32_t> ids) const {
  Node* node = root_.get();
  PageIds key;
  for (size_t i = 0; i + kPageTokens <= ids.size(); i += kPageTokens) {
    std::copy_n(ids.begin() + static_cast<int64_t>(i), kPageTokens, key.begin());
    const auto child = node->children.find(key);
    if (child == node->children.end()) break;
    node = child->second.get();
  }
  return node;
}

void PrefixIndex::touch(Node& node) {
  const bool leaf = node.children.empty();
  if (leaf) leaves_.erase(leaf_rank(node));
  if (node.snapshot) snapshots_.erase(node.snapshot_rank());
  node.used = ++clock_;
  if (leaf) leaves_.emplace(leaf_rank(node), &node);
  if (node.snapshot) snapshots_.emplace(node.snapshot_rank(), &node);
}

PrefixMatch PrefixIndex::match(std::span<const int32_t> ids, int64_t limit) {
  PrefixMatch match;
  std::vector<Node*> path;
  for (Node* node = find(ids); node != root_.get(); node = node->parent) path.push_back(node);
  std::reverse(path.begin(), path.end());
  match.common = static_cast<int64_t>(path.size()) * kPageTokens;
  size_t depth = std::min(path.size(), static_cast<size_t>(std::max<int64_t>(limit, 0) / kPageTokens));
  while (depth > 0 && path[depth - 1]->snapshot == nullptr) --depth;
  if (depth == 0) return match;
  match.tokens = static_cast<int64_t>(depth) * kPageTokens;
  match.snapshot = path[depth - 1]->snapshot;
  for (size_t i = 0; i < depth; ++i) {
    touch(*path[i]);
    match.pages.push_back(path[i]->page);
  }
  return match;
}

std::shared_ptr<const Snapshot> PrefixIndex::snapshot_at(std::span<const int32_t> ids) const {
  int64_t depth = 0;
  const Node* node = find(ids);
  for (const Node* n = node; n != root_.get(); n = n->parent) ++depth;
  return depth * kPageTokens == static_cast<int64_t>(ids.size()) ? node->snapshot : nullptr;
}

void PrefixIndex::insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
                         std::shared_ptr<const Snapshot> snapshot, SnapshotKind kind) {
  QUERN_CHECK(ids.size() % kPageTokens == 0 && pages.size() * kPageTokens == ids.size(),
              "the prefix index takes whole pages");
  ++generation_;
  Node* node = root_.get();
  PageIds key;
  for (size_t i = 0; i < pages.size(); ++i) {
    std::copy_n(ids.begin() + static_cast<int64_t>(i * kPageTokens), kPageTokens, key.begin());
    auto& child = node->children[key];
    if (!child) {
      if (node != root_.get() && node->children.size() == 1) leaves_.erase(leaf_rank(*node));
      child = std::make_unique<Node>();
      child->parent = node;
      child->ids = key;
      child->page = pages[i];
      child->serial = ++serials_;
      child->used = ++clock_;
      pages_.retain(pages[i]);
      held_[pages[i]] = true;
      leaves_.emplace(leaf_rank(*child), child.get());
      ++n_nodes_;
    } else {
      touch(*child);
    }
    node = child.get();
  }
  if (node == root_.get() || snapshot == nullptr) return;
  QUERN_CHECK(snapshot->position == static_cast<int64_t>(ids.size()), "a snapshot of another position");
  set_snapshot(*node, std::move(snapshot), kind);
  keep_last_turns(*node);
  shrink_snapshots();
}

void PrefixIndex::set_snapshot(Node& node, std::shared_ptr<const Snapshot> snapshot, SnapshotKind kind) {
  if (node.snapshot) {
    kind = std::max(kind, node.kind);
    drop_snapshot(node);
  }
  const bool leaf = node.children.empty();
  if (leaf) leaves_.erase(leaf_rank(node));
  node.snapshot = std::move(snapshot);
  node.kind = kind;
  node.used = ++clock_;
  snapshot_bytes_ += static_cast<int64_t>(node.snapshot->bytes.size());
  snapshots_.emplace(node.snapshot_rank(), &node);
  if (leaf) leaves_.emplace(leaf_rank(node), &node);
}

void PrefixIndex::drop_snapshot(Node& node) {
  const bool leaf = node.children.empty();
  if (leaf) leaves_.erase(leaf_rank(node));
  snapshots_.erase(node.snapshot_rank());
  snapshot_bytes_ -= static_cast<int64_t>(node.snapshot->bytes.size());
  node.snapshot = nullptr;
  node.kind = SnapshotKind::Turn;
  if (leaf) leaves_.emplace(leaf_rank(node), &node);
  ++generation_;
}

// Of the turn snapshots above the newest, one more stays; older ones go unless prompts parted there.
void PrefixIndex::keep_last_turns(Node& newest) {
  int turns = newest.kind == SnapshotKind::Turn ? 1 : 0;
  for (Node* node = newest.parent; node != root_.get(); node = node->parent) {
    if (!node->snapshot || node->kind != SnapshotKind::Turn || node->children.size() > 1) continue;
    if (++turns > 2) drop_snapshot(*node);
  }
}

void PrefixIndex::shrink_snapshots() {
  for (; snapshot_bytes_ > budget_ && !snapshots_.empty(); ++evicted_snapshots_)
    drop_snapshot(*snapshots_.begin()->second);
}

void PrefixIndex::remove(Node& leaf) {
  QUERN_CHECK(leaf.children.empty(), "a node with children is not given up");
  if (leaf.snapshot) drop_snapshot(leaf);
  leaves_.erase(leaf_rank(leaf));
  pages_.release(leaf.page);
  held_[leaf.page] = false;
  --n_nodes_;
  ++generation_;
  Node* parent = leaf.parent;
  parent->children.erase(PageIds(leaf.ids));  // destroys `leaf`
  if (parent != root_.get() && parent->children.empty()) leaves_.emplace(leaf_rank(*parent), parent);
}

bool PrefixIndex::make_room(int32_t n) {
  while (pages_.free() < n) {
    if (leaves_.empty()) return false;
    // Leaves that somebody runs on free nothing; they go only when nothing else is left, since they may sit
    // below pages that would.
    auto best = std::find_if(leaves_.begin(), leaves_.end(),
                             [&](const auto& leaf) { return pages_.refs(leaf.second->page) == 1; });
    if (best == leaves_.end()) {
      if (evictable() == 0) return false;
      best = leaves_.begin();
    }
    remove(*best->second);
    ++evicted_pages_;
  }
  return true;
}

int64_t PrefixIndex::evictable() const {
  int64_t n = 0;
  std::vector<const Node*> stack = {root_.get()};
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (node->page >= 0 && pages_.refs(node->page) == 1) ++n;
    for (const auto& [ids, child] : node->children) stack.push_back(child.get());
  }
  return n;
}

void PrefixIndex::clear() {
  while (!leaves_.empty()) remove(*leaves_.begin()->second);
}

void PrefixIndex::check() const {
  int64_t nodes = 0, snapshots = 0, bytes = 0, leaves = 0;
  std::vector<const Node*> stack = {root_.get()};
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for (const auto& [ids, child] : node->children) {
      QUERN_CHECK(child->parent == node && child->ids == ids, "a child knows its place");
      stack.push_back(child.get());
    }
    if (node == root_.get()) continue;
    ++nodes;
    QUERN_CHECK(pages_.refs(node->page) >= 1, "a node holds its page");
    if (node->children.empty()) {
      ++leaves;
      const auto it = leaves_.find(leaf_rank(*node));
      QUERN_CHECK(it != leaves_.end() && it->second == node, "a leaf is listed");
    }
    if (node->snapshot) {
      ++snapshots;
      bytes += static_cast<int64_t>(node->snapshot->bytes.size());
      const auto it = snapshots_.find(node->snapshot_rank());
      QUERN_CHECK(it != snapshots_.end() && it->second == node, "a snapshot is listed");
    }
  }
  QUERN_CHECK(nodes == n_nodes_ && leaves == static_cast<int64_t>(leaves_.size()) &&
                  snapshots == n_snapshots() && bytes == snapshot_bytes_,
              "the prefix index counts what it holds");
  QUERN_CHECK(snapshot_bytes_ <= budget_, "snapshots stay within their budget");
}

}  // namespace quern

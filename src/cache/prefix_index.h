// Which prefixes are in the page pool: a tree over pages of 64 ids. A node is one page: its ids, a reference
// to the page that holds their keys and values, and possibly a snapshot of the recurrent part after it. A
// prompt resumes at the deepest snapshot on its path; pages below that only tell where prompts parted.
//
// Two budgets. Pages: the pool's own; make_room gives nodes up, leaves first, those that lead to no snapshot before
// others, then the least recently used. Snapshots: `snapshot_budget` bytes; beyond it the least recently used
// go, pinned ones last. Of a conversation only the last two turn snapshots are kept, and those where it branches.
//
// Touches no tensor and no device. Not thread-safe: the engine's thread owns it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/snapshot.h"

namespace quern {

// Why a snapshot was taken, weakest first.
enum class SnapshotKind : uint8_t {
  Turn,      // end of a message or a reply: the last two of a conversation are kept
  Interval,  // every so many tokens, or where two prompts part
  Pinned,    // end of the system prompt: given up last
};

struct PrefixMatch {
  int64_t common = 0;  // tokens of the longest known prefix, a multiple of 64
  int64_t tokens = 0;  // where the deepest snapshot on it resumes; 0: nowhere
  std::vector<int32_t> pages;
  std::shared_ptr<const Snapshot> snapshot;
};

class PrefixIndex {
 public:
  PrefixIndex(PagePool& pages, int64_t snapshot_budget);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The best resume point at or before `limit` tokens. Takes no references: whoever restores from it does so
  // before anything else changes the index.
  PrefixMatch match(std::span<const int32_t> ids, int64_t limit);
  // Makes known that pages[i] holds ids [64i, 64i + 64); where a page is known already the known one stays.
  // ids.size() is a multiple of 64. `snapshot`, if any, is of position ids.size().
  void insert(std::span<const int32_t> ids, std::span<const int32_t> pages,
              std::shared_ptr<const Snapshot> snapshot, SnapshotKind kind);
  // The one exactly after these ids, or null.
  std::shared_ptr<const Snapshot> snapshot_at(std::span<const int32_t> ids) const;
  bool has_snapshot(std::span<const int32_t> ids) const { return snapshot_at(ids) != nullptr; }

  // Gives up nodes until `n` pages of the pool are free; false if that cannot be.
  bool make_room(int32_t n);
  int64_t evictable() const;  // pages that nobody else holds
  bool holds(int32_t page) const { return held_[page]; }
  void clear();

  uint64_t generation() const { return generation_; }  // changes whenever a match might
  int64_t n_nodes() const { return n_nodes_; }
  int64_t n_snapshots() const { return static_cast<int64_t>(snapshots_.size()); }
  int64_t snapshot_bytes() const { return snapshot_bytes_; }
  // Ever given up because room was short: pages, and snapshots over their budget.
  int64_t n_evicted_pages() const { return evicted_pages_; }
  int64_t n_evicted_snapshots() const { return evicted_snapshots_; }
  // Recounts everything; a failed CHECK if the books are wrong. For tests.
  void check() const;

 private:
  struct Node;
  struct Rank {  // what is given up first
    int value = 0;
    uint64_t used = 0;
    uint64_t serial = 0;
    auto operator<=>(const Rank&) const = default;
  };
  Rank leaf_rank(const Node& node) const;
  Node* find(std::span<const int32_t> ids) const;
  void touch(Node& node);
  void set_snapshot(Node& node, std::shared_ptr<const Snapshot> snapshot, SnapshotKind kind);
  void drop_snapshot(Node& node);
  void keep_last_turns(Node& newest);
  void shrink_snapshots();
  void remove(Node& leaf);

  PagePool& pages_;
  int64_t budget_;
  std::unique_ptr<Node> root_;
  std::map<Rank, Node*> leaves_;     // without children
  std::map<Rank, Node*> snapshots_;  // with a snapshot; value: pinned or not
  std::vector<bool> held_;           // by page id
  uint64_t clock_ = 0, serials_ = 0, generation_ = 0;
  int64_t n_nodes_ = 0, snapshot_bytes_ = 0, evicted_pages_ = 0, evicted_snapshots_ = 0;
};

}  // namespace quern

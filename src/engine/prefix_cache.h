// The engine's side of the prefix cache: the tree (cache/prefix_index.h) over the model's pages, the disk tier
// (cache/snapshot_store.h), and the copying between them. The engine's thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cache/prefix_index.h"
#include "cache/sequence.h"
#include "cache/snapshot_store.h"
#include "engine/engine_options.h"

namespace quern {

class PrefixCache {
 public:
  // `fingerprint` is what files must carry (engine/state_origin.h).
  PrefixCache(SequenceMemory& memory, const EngineOptions& options, const std::string& fingerprint);

  bool enabled() const { return enabled_; }
  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }
  int64_t disk_bytes() const { return store_ ? store_->bytes() : 0; }
  int64_t disk_files() const { return store_ ? store_->n_files() : 0; }
  void flush() {
    if (store_) store_->flush();
  }

  // Frees pages until n are free; false if that cannot be.
  bool make_room(int64_t n) { return index_.make_room(static_cast<int32_t>(n)); }
  // Pages that are free or can be made so.
  int64_t available() const { return memory_.pages.free() + index_.evictable(); }

  // Into the tree, and onto the disk where there is one: the first n ids (a multiple of 64) of the sequence, with
  // a snapshot of position n if given. A snapshot that holds NaN or Inf is left out, and its pages with it.
  void add(const Sequence& sequence, int64_t n, std::shared_ptr<const Snapshot> snapshot, SnapshotKind kind);

  // Whether the disk holds a longer prefix than `known` of at most `limit` tokens; if so, it is read, and
  // `done` is called on another thread with what adopt takes.
  int64_t find_on_disk(std::span<const int32_t> ids, int64_t limit);
  void fetch(std::span<const int32_t> ids, int64_t position,
             std::function<void(std::optional<StoredPrefix>)> done);
  // Puts what was read into pages and into the tree; false when there is no room.
  bool adopt(std::span<const int32_t> ids, const StoredPrefix& prefix);

 private:
  void store(const Sequence& sequence, std::shared_ptr<const Snapshot> snapshot);

  SequenceMemory& memory_;
  bool enabled_;
  PrefixIndex index_;
  std::unique_ptr<SnapshotStore> store_;
};

}  // namespace quern

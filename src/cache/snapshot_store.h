// The prefix cache's disk tier: snapshots with the pages before them, one file each, that outlive the process.
//
// A file holds a piece of a prefix: ids [begin, position), their pages and the snapshot at `position`; the
// piece before it, if begin > 0, is another file. Names are keys: the XXH3-128 chain over the pages of ids
// [0, position), in hex. Little-endian:
//
//   "QUERNSNP"  u32 version  u32 fingerprint bytes  u64 begin, position, page bytes, snapshot bytes, file bytes
//   u8[16] key  u8[16] key of the piece before  u64 XXH3-64 of all of the above
//   fingerprint  ids i32[position - begin]  pages  snapshot  u8[16] XXH3-128 of all of the above
//
// The fingerprint names everything that the bytes depend on (engine/state_origin.h), "<name> <value>" a line; a file with
// another one, or whose lengths or checksums are wrong, is skipped with one log line that says why, and never guessed at.
// Files are written by a background thread, flushed, and renamed into place, so a torn one is never seen under
// its name. Only regular files named <32 hex digits>.snap in the directory are looked at.
//
// All calls may come from one thread (the engine's); callbacks come on the store's own thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "cache/snapshot.h"

namespace quern {

using PrefixKey = Digest;

// The keys of every whole page of `ids`: entry i is the key of the first 64 · (i + 1) ids.
std::vector<PrefixKey> prefix_keys(std::span<const int32_t> ids);

struct StoreOptions {
  std::string directory;    // created where it is missing
  std::string fingerprint;  // lines; at most 4096 bytes, more is a bug
  int64_t page_bytes = 0;
  int64_t snapshot_bytes = 0;
  int64_t budget = 0;              // bytes of files; the least recently used go
  int64_t max_queued = 4LL << 30;  // bytes that may wait to be written; more are dropped
};

// A prefix read back: pages [0, position / 64) one after the other.
struct StoredPrefix {
  int64_t position = 0;
  std::vector<std::byte> pages;
  std::shared_ptr<Snapshot> snapshot;
};

class SnapshotStore {
 public:
  // Reads the directory. Throws Error when it cannot be used.
  explicit SnapshotStore(const StoreOptions& options);
  ~SnapshotStore();  // writes what is queued
  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;

  // The longest stored prefix of ids of at most `limit` tokens; 0: none.
  int64_t find(std::span<const int32_t> ids, int64_t limit);
  // Queues the piece [begin, ids.size()): `pages` are its pages' bytes. begin is 0 or where find says that a
  // piece ends. False when the queue is full; nothing is kept then.
  bool put(std::span<const int32_t> ids, int64_t begin, std::vector<std::byte> pages,
           std::shared_ptr<const Snapshot> snapshot);
  // Reads the prefix that find found and hands it over, or nothing if a file turned out to be damaged.
  void fetch(std::span<const int32_t> ids, int64_t position,
             std::function<void(std::optional<StoredPrefix>)> done);
  void flush();  // returns when everything queued is done

  int64_t bytes() const;
  int64_t n_files() const;
  int64_t n_dropped() const;  // puts that found the queue full, or failed to be written

 private:
  struct Piece {
    int64_t begin = 0, position = 0, bytes = 0;
    PrefixKey before{};
    int64_t children = 0;
    uint64_t used = 0;
  };
  void scan();
  void work();
  void write(const PrefixKey& key, const Piece& piece, const std::vector<int32_t>& ids,
             const std::vector<std::byte>& pages, const Snapshot& snapshot);
  std::optional<StoredPrefix> read(std::span<const int32_t> ids, int64_t position);
  bool read_piece(const PrefixKey& key, const Piece& piece, std::span<const int32_t> ids, StoredPrefix& into);
  std::optional<Piece> read_header(const std::string& name, PrefixKey& key) const;
  void forget(const PrefixKey& key);  // with the lock held; and every piece after it
  void shrink();                      // with the lock held
  bool complete(const Piece& piece) const;
  std::string path(const PrefixKey& key) const;

  StoreOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::map<PrefixKey, Piece> pieces_;  // written or queued
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, stop_ = false;
  int64_t bytes_ = 0, queued_ = 0, dropped_ = 0;
  uint64_t clock_ = 0;
  std::thread thread_;
};

}  // namespace quern

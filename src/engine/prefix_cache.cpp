#include "engine/prefix_cache.h"

#include <cmath>
#include <cstring>

#include "base/check.h"

namespace quern {
namespace {

bool all_finite(const Snapshot& snapshot) {
  const auto* words = reinterpret_cast<const uint32_t*>(snapshot.bytes.data());
  const size_t n = snapshot.bytes.size() / sizeof(uint32_t);
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) bad |= (words[i] & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  return bad == 0;
}

}  // namespace

PrefixCache::PrefixCache(SequenceMemory& memory, const EngineOptions& options, const std::string& fingerprint)
    : memory_(memory), enabled_(options.prefix_cache), index_(memory.pages, options.snapshot_ram) {
  if (!enabled_ || options.snapshot_directory.empty()) return;
  const CacheShape& shape = memory.state.shape();
  StoreOptions store;
  store.directory = options.snapshot_directory;
  store.fingerprint = fingerprint;
  store.page_bytes = memory.kv.page_bytes();
  store.snapshot_bytes = quern::snapshot_bytes(shape);
  store.budget = options.snapshot_disk;
  store_ = std::make_unique<SnapshotStore>(store);
}

void PrefixCache::add(const Sequence& sequence, int64_t n, std::shared_ptr<const Snapshot> snapshot,
                      SnapshotKind kind) {
  if (!enabled_ || n == 0) return;
  QUERN_CHECK(n % kPageTokens == 0 && n <= sequence.length() && !sequence.swapped(),
              "only whole computed pages are shared");
  if (snapshot && !all_finite(*snapshot)) return;
  const auto ids = std::span<const int32_t>(sequence.ids()).first(static_cast<size_t>(n));
  index_.insert(ids, sequence.pages().first(static_cast<size_t>(n / kPageTokens)), snapshot, kind);
  if (store_ && snapshot) store(sequence, std::move(snapshot));
}

void PrefixCache::store(const Sequence& sequence, std::shared_ptr<const Snapshot> snapshot) {
  const int64_t n = snapshot->position, page_bytes = memory_.kv.page_bytes();
  const auto ids = std::span<const int32_t>(sequence.ids()).first(static_cast<size_t>(n));
  const int64_t begin = store_->find(ids, n);
  if (begin == n) return;
  std::vector<std::byte> pages(static_cast<size_t>((n - begin) / kPageTokens * page_bytes));
  for (int64_t i = begin / kPageTokens; i < n / kPageTokens; ++i)
    memory_.kv.download_page(memory_.stream, pages.data() + (i - begin / kPageTokens) * page_bytes,
                             sequence.pages()[i]);
  memory_.stream.synchronize();
  store_->put(ids, begin, std::move(pages), std::move(snapshot));
}

int64_t PrefixCache::find_on_disk(std::span<const int32_t> ids, int64_t limit) {
  return store_ ? store_->find(ids, limit) : 0;
}

void PrefixCache::fetch(std::span<const int32_t> ids, int64_t position,
                        std::function<void(std::optional<StoredPrefix>)> done) {
  store_->fetch(ids, position, std::move(done));
}

bool PrefixCache::adopt(std::span<const int32_t> ids, const StoredPrefix& prefix) {
  const int64_t n_pages = prefix.position / kPageTokens, page_bytes = memory_.kv.page_bytes();
  std::vector<int32_t> pages;
  if (!make_room(n_pages) || !memory_.pages.allocate(static_cast<int32_t>(n_pages), pages)) return false;
  for (int64_t i = 0; i < n_pages; ++i)
    memory_.kv.upload_page(memory_.stream, pages[i], prefix.pages.data() + i * page_bytes);
  memory_.stream.synchronize();
  index_.insert(ids.first(static_cast<size_t>(prefix.position)), pages, prefix.snapshot,
                SnapshotKind::Interval);
  for (const int32_t page : pages) memory_.pages.release(page);  // the tree holds what it kept
  return true;
}

}  // namespace quern

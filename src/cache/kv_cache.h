// What attention layers keep: pages of K, V and pooled index keys, and per slot a ring of raw index keys.
//
// One page id addresses the same page of every layer, and a page's 64 tokens and its 16 pooled keys go
// together, so a block index turns into an address without a second table. Everything is allocated once.
//
//   per layer: k, v [pages, n_kv, 64, d_head] in the KV type; pooled [pages, 16, d_index] f32;
//   ring [slots, kConvRing, d_index] f32
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/cache_shape.h"
#include "ops/sparse_attention.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern {

class KvCache {
 public:
  KvCache(Device device, const CacheShape& shape, int32_t n_pages, int32_t n_slots);

  // Layer i: the trunk's attention layers in order, then the draft block.
  const QsaCache& layer(int i) const { return layers_[i]; }
  int n_layers() const { return static_cast<int>(layers_.size()); }
  int32_t n_pages() const { return n_pages_; }

  static int64_t page_bytes(const CacheShape& shape);  // of one page over all layers
  int64_t page_bytes() const { return page_bytes_; }
  void copy_page(Stream& s, int32_t to, int32_t from);
  // A page as plain bytes: per layer k, v, pooled. download is complete after s.synchronize().
  void download_page(Stream& s, std::byte* to, int32_t page);
  void upload_page(Stream& s, int32_t page, const std::byte* from);

  // The slot's rings as plain bytes, one layer after the other.
  int64_t slot_bytes() const;
  void copy_slot(Stream& s, int32_t to, int32_t from);
  void download_slot(Stream& s, std::byte* to, int32_t slot);
  void upload_slot(Stream& s, int32_t slot, const std::byte* from);

 private:
  int32_t n_pages_ = 0;
  int64_t page_bytes_ = 0;
  std::vector<OwnedTensor> memory_;
  std::vector<QsaCache> layers_;
};

}  // namespace quern

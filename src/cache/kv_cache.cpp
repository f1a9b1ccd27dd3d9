#include "cache/kv_cache.h"

#include <string>

namespace quern {
namespace {

// Bytes of index `i` of dimension 0 of a packed tensor, and where they begin.
int64_t item_bytes(const Tensor& t) { return t.bytes() / t.shape[0]; }
std::byte* item_data(const Tensor& t, int64_t i) {
  QUERN_CHECK(0 <= i && i < t.shape[0], "no item " + std::to_string(i));
  return t.data + i * item_bytes(t);
}

}  // namespace

KvCache::KvCache(Device device, const CacheShape& shape, int32_t n_pages, int32_t n_slots)
    : n_pages_(n_pages), page_bytes_(page_bytes(shape)) {
  for (int i = 0; i < shape.n_attention_layers(); ++i) {
    QsaCache layer;
    const auto own = [&](DType dtype, std::initializer_list<int64_t> dims) {
      return memory_.emplace_back(device, dtype, dims).tensor;
    };
    layer.k = own(shape.kv, {n_pages, shape.n_kv, kPageTokens, shape.d_head});
    layer.v = own(shape.kv, {n_pages, shape.n_kv, kPageTokens, shape.d_head});
    layer.pooled = own(DType::F32, {n_pages, kPageBlocks, shape.d_index});
    layer.ring = own(DType::F32, {n_slots, kConvRing, shape.d_index});
    layer.shift = shape.drafts && i == shape.draft_layer() ? 1 : 0;
    layers_.push_back(layer);
  }
}

int64_t KvCache::page_bytes(const CacheShape& shape) {
  const int64_t kv = row_bytes(shape.kv, shape.d_head) * shape.n_kv * kPageTokens;
  return shape.n_attention_layers() * (2 * kv + row_bytes(DType::F32, shape.d_index) * kPageBlocks);
}

void KvCache::copy_page(Stream& s, int32_t to, int32_t from) {
  for (const QsaCache& layer : layers_)
    for (const Tensor& t : {layer.k, layer.v, layer.pooled})
      s.copy(item_data(t, to), item_data(t, from), item_bytes(t));
}

void KvCache::download_page(Stream& s, std::byte* to, int32_t page) {
  for (const QsaCache& layer : layers_)
    for (const Tensor& t : {layer.k, layer.v, layer.pooled}) {
      s.download(to, item_data(t, page), item_bytes(t));
      to += item_bytes(t);
    }
}

void KvCache::upload_page(Stream& s, int32_t page, const std::byte* from) {
  for (const QsaCache& layer : layers_)
    for (const Tensor& t : {layer.k, layer.v, layer.pooled}) {
      s.upload(item_data(t, page), from, item_bytes(t));
      from += item_bytes(t);
    }
}

int64_t KvCache::slot_bytes() const {
  int64_t bytes = 0;
  for (const QsaCache& layer : layers_) bytes += item_bytes(layer.ring);
  return bytes;
}

void KvCache::copy_slot(Stream& s, int32_t to, int32_t from) {
  for (const QsaCache& layer : layers_)
    s.copy(item_data(layer.ring, to), item_data(layer.ring, from), item_bytes(layer.ring));
}

void KvCache::download_slot(Stream& s, std::byte* to, int32_t slot) {
  for (const QsaCache& layer : layers_) {
    s.download(to, item_data(layer.ring, slot), item_bytes(layer.ring));
    to += item_bytes(layer.ring);
  }
}

void KvCache::upload_slot(Stream& s, int32_t slot, const std::byte* from) {
  for (const QsaCache& layer : layers_) {
    s.upload(item_data(layer.ring, slot), from, item_bytes(layer.ring));
    from += item_bytes(layer.ring);
  }
}

}  // namespace quern

#include "cache/state_cache.h"

#include "base/check.h"
#include "ops/rows.h"

namespace quern {
namespace {

int64_t item_bytes(const Tensor& t) { return t.bytes() / t.shape[0]; }
std::byte* item_data(const Tensor& t, int64_t i) { return t.data + i * item_bytes(t); }

}  // namespace

StateCache::StateCache(Device device, const CacheShape& shape, int32_t n_slots)
    : shape_(shape), n_slots_(n_slots) {
  const auto own = [&](std::initializer_list<int64_t> dims) {
    return memory_.emplace_back(device, DType::F32, dims).tensor;
  };
  const DeltaNetShape& d = shape.delta;
  for (int i = 0; i < shape.n_delta_layers; ++i) {
    DeltaNetState state;
    state.M = own({n_slots, d.n_v, d.d_k, d.d_v});
    state.ring = own({n_slots, kConvRing, d.conv_channels()});
    state.pending = own({n_slots, kMaxDrafts + 1, d.pending_width()});
    delta_.push_back(state);
    imaged_.push_back(state.M);
    imaged_.push_back(state.ring);
  }
  ple_ring_ = own({n_slots, kPleRing, shape.wide});
  imaged_.push_back(ple_ring_);
  if (shape.drafts) {
    hidden_ring_ = own({n_slots, kHiddenRing + 1, shape.wide});
    imaged_.push_back(hidden_ring_);
  }
  for (int32_t slot = n_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

int64_t StateCache::slot_bytes(const CacheShape& shape) {
  const DeltaNetShape& d = shape.delta;
  const int64_t delta = int64_t{d.n_v} * d.d_k * d.d_v + kConvRing * d.conv_channels() +
                        int64_t{kMaxDrafts + 1} * d.pending_width();
  const int64_t wide_rows = kPleRing + (shape.drafts ? kHiddenRing + 1 : 0);
  return 4 * (shape.n_delta_layers * delta + wide_rows * shape.wide);
}

int32_t StateCache::acquire(Stream& s) {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  for (const DeltaNetState& state : delta_) s.zero(item_data(state.M, slot), item_bytes(state.M));
  return slot;
}

void StateCache::release(int32_t slot) {
  QUERN_CHECK(0 <= slot && slot < n_slots_, "no such slot");
  free_.push_back(slot);
}

void StateCache::commit(Stream& s, int32_t slot, int32_t n_pending) {
  if (n_pending == 0) return;
  for (const DeltaNetState& state : delta_) delta_net_commit(s, shape_.delta, state, slot, n_pending);
}

int64_t StateCache::image_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& t : imaged_) bytes += item_bytes(t);
  return bytes;
}

void StateCache::copy_slot(Stream& s, int32_t to, int32_t from) {
  for (const Tensor& t : imaged_) s.copy(item_data(t, to), item_data(t, from), item_bytes(t));
}

void StateCache::download_slot(Stream& s, std::byte* to, int32_t slot) {
  for (const Tensor& t : imaged_) {
    s.download(to, item_data(t, slot), item_bytes(t));
    to += item_bytes(t);
  }
}

void StateCache::upload_slot(Stream& s, int32_t slot, const std::byte* from) {
  for (const Tensor& t : imaged_) {
    s.upload(item_data(t, slot), from, item_bytes(t));
    from += item_bytes(t);
  }
}

}  // namespace quern

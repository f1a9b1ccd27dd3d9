// What the recurrent parts keep, one slot a sequence: the delta net's M, conv ring and pending rows per
// layer; the PLE conv ring; the ring of wide hidden rows for the draft block. Everything is allocated once.
//
// Rings are indexed by position and need no rollback; only M does, and the pending rows are its replay log
// (ops/delta_net.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/cache_shape.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern {

class StateCache {
 public:
  StateCache(Device device, const CacheShape& shape, int32_t n_slots);

  const CacheShape& shape() const { return shape_; }
  const DeltaNetState& delta(int layer) const { return delta_[layer]; }  // delta layers in order
  // [slots, kPleRing, W] f32
  Tensor ple_ring() const { return ple_ring_; }
  // [slots, kHiddenRing + 1, W] f32; empty without drafts
  Tensor hidden_ring() const { return hidden_ring_; }

  int32_t n_slots() const { return n_slots_; }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t acquire(Stream& s);  // a slot with M = 0, or -1 when none is free
  void release(int32_t slot);

  static int64_t slot_bytes(const CacheShape& shape);  // pending rows included
  // M takes in the slot's pending rows in every layer.
  void commit(Stream& s, int32_t slot, int32_t n_pending);
  // A slot without pending rows as plain bytes: every layer's M and conv ring, the PLE ring, the hidden ring.
  int64_t image_bytes() const;
  void copy_slot(Stream& s, int32_t to, int32_t from);
  void download_slot(Stream& s, std::byte* to, int32_t slot);  // complete after s.synchronize()
  void upload_slot(Stream& s, int32_t slot, const std::byte* from);

 private:
  CacheShape shape_;
  int32_t n_slots_ = 0;
  std::vector<int32_t> free_;
  std::vector<OwnedTensor> memory_;
  std::vector<DeltaNetState> delta_;
  Tensor ple_ring_, hidden_ring_;
  std::vector<Tensor> imaged_;  // what an image holds, in its order
};

}  // namespace quern

// Moving whole rows: picking the rows that want logits, and handing wide hidden rows to the draft block.
//
// gather_rows:    y[i, :] = x[index[i], :]                                        y: [n, d]   x: [T, d]   f32
//
// The wide hidden row of position p (MODEL.md, MTP) stays in its slot's ring [slots, kHiddenRing, W] f32 at p
// mod kHiddenRing until the draft block has read it; like the other rings it needs no rollback.
//
// hidden_load:    y[t, :] = source[t] ≥ 0 ? x[source[t], :] : ring[slot, p mod kHiddenRing, :]      p: the
// row's position hidden_store:   ring[slot, (p + shift) mod kHiddenRing, :] = x[t, :]      for the last
// `last` rows of each segment
//
// y may not overlap x. `index` and `source` are memory of the stream's device.
#pragma once

#include "ops/batch_view.h"
#include "tensor/stream.h"

namespace quern {

inline constexpr int kHiddenRing = 16;  // ≥ kMaxDrafts + 2

void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch, int shift, int last);

namespace cpu {
void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch, int shift, int last);
}  // namespace cpu
namespace cuda {
void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch, int shift, int last);
}  // namespace cuda

}  // namespace quern

// Moving whole rows: picking the rows that want logits, and handing wide hidden rows to the draft block.
//
// gather_rows:    y[i, :] = x[index[i], :]                                        y: [n, d]   x: [T, d]   f32
//
// The wide hidden row of position p (MODEL.md, MTP) stays in its slot's ring at p mod kHiddenRing until the draft block
// has read it; like the other rings it needs no rollback. One more row of the slot holds the draft block's own wide row,
// which the next pass of a chain of drafts reads in place of a true one.
//
//   ring: [slots, kHiddenRing + 1, W] f32
//
// hidden_load:    y[t, :] = x[source[t], :]                                   source[t] ≥ 0
//                           ring[slot, p mod kHiddenRing, :]                  kFromRing; p: the row's position
//                           ring[slot, kHiddenRing, :]                        kFromDraft
// hidden_store:   ring[slot, p mod kHiddenRing, :] = x[t, :]                  the last kHiddenRing rows of each segment
// hidden_store_draft: ring[slot, kHiddenRing, :] = x[t, :]                    the last row of each segment
//
// y may not overlap x. `index` and `source` are memory of the stream's device, written as the batch is: by copies.
#pragma once

#include "ops/batch_view.h"
#include "tensor/stream.h"

namespace quern {

inline constexpr int kHiddenRing = 16;  // ≥ kMaxDrafts + 2
inline constexpr int32_t kFromRing = -1, kFromDraft = -2;

void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch);
void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch);

namespace cpu {
void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch);
void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch);
}  // namespace cpu
namespace cuda {
void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index);
void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch);
void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch);
void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch);
}  // namespace cuda

}  // namespace quern

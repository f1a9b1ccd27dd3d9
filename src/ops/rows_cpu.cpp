#include <algorithm>
#include <cstring>

#include "ops/rows.h"

namespace quern::cpu {
namespace {

// Row `i` of the slot: a position mod kHiddenRing, or kHiddenRing.
float* ring_row(const Tensor& ring, int32_t slot, int64_t i) {
  return ring.as<float>() + (int64_t{slot} * (kHiddenRing + 1) + i) * ring.cols();
}

void copy_row(float* to, const float* from, int64_t n) { std::memcpy(to, from, n * sizeof(float)); }

}  // namespace

void gather_rows(Stream&, Tensor y, Tensor x, const int32_t* index) {
  for (int64_t i = 0; i < y.rows(); ++i) copy_row(y.row<float>(i), x.row<float>(index[i]), y.cols());
}

void hidden_load(Stream&, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch) {
  for (int64_t t = 0; t < batch.n_rows; ++t) {
    const Segment& segment = batch.segments[batch.segment_of[t]];
    if (segment.role == Role::Pad) continue;
    const int64_t at = source[t] == kFromDraft ? kHiddenRing : batch.positions[t] % kHiddenRing;
    copy_row(y.row<float>(t), source[t] >= 0 ? x.row<float>(source[t]) : ring_row(ring, segment.slot, at),
             y.cols());
  }
}

void hidden_store(Stream&, Tensor ring, Tensor x, const BatchView& batch) {
  for (int64_t i = 0; i < batch.n_segments; ++i) {
    const Segment& segment = batch.segments[i];
    if (segment.role == Role::Pad) continue;
    for (int32_t j = std::max(0, segment.n_rows - kHiddenRing); j < segment.n_rows; ++j)
      copy_row(ring_row(ring, segment.slot, (segment.position + j) % kHiddenRing),
               x.row<float>(segment.row + j), x.cols());
  }
}

void hidden_store_draft(Stream&, Tensor ring, Tensor x, const BatchView& batch) {
  for (int64_t i = 0; i < batch.n_segments; ++i) {
    const Segment& segment = batch.segments[i];
    if (segment.role == Role::Pad) continue;
    copy_row(ring_row(ring, segment.slot, kHiddenRing), x.row<float>(segment.row + segment.n_rows - 1),
             x.cols());
  }
}

}  // namespace quern::cpu

#include <algorithm>
#include <cstring>

#include "ops/rows.h"

namespace quern::cpu {
namespace {

float* ring_row(const Tensor& ring, int32_t slot, int64_t position) {
  return ring.as<float>() + (int64_t{slot} * kHiddenRing + position % kHiddenRing) * ring.cols();
}

}  // namespace

void gather_rows(Stream&, Tensor y, Tensor x, const int32_t* index) {
  for (int64_t i = 0; i < y.rows(); ++i)
    std::memcpy(y.row<float>(i), x.row<float>(index[i]), y.cols() * sizeof(float));
}

void hidden_load(Stream&, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch) {
  for (int64_t t = 0; t < batch.n_rows; ++t) {
    const Segment& segment = batch.segments[batch.segment_of[t]];
    if (segment.role == Role::Pad) continue;
    const float* from =
        source[t] >= 0 ? x.row<float>(source[t]) : ring_row(ring, segment.slot, batch.positions[t]);
    std::memcpy(y.row<float>(t), from, y.cols() * sizeof(float));
  }
}

void hidden_store(Stream&, Tensor ring, Tensor x, const BatchView& batch, int shift, int last) {
  for (int64_t i = 0; i < batch.n_segments; ++i) {
    const Segment& segment = batch.segments[i];
    if (segment.role == Role::Pad) continue;
    for (int32_t j = std::max(0, segment.n_rows - last); j < segment.n_rows; ++j)
      std::memcpy(ring_row(ring, segment.slot, int64_t{segment.position} + j + shift),
                  x.row<float>(segment.row + j), x.cols() * sizeof(float));
  }
}

}  // namespace quern::cpu

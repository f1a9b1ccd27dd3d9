// A block copies a part of a row, four values a thread: a row of one sequence is on its way all at once.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/rows.h"

namespace quern::cuda {
namespace {

constexpr int kThreads = 256, kPart = 4 * kThreads;

__device__ __forceinline__ void copy_part(float* to, const float* from, int64_t d, unsigned part) {
  const int64_t i = int64_t{part} * kPart + 4 * threadIdx.x;
  if (i + 4 <= d && ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 15u) == 0) {
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
    return;
  }
  for (int64_t j = i; j < min(i + 4, d); ++j) to[j] = from[j];
}

// In all three, which rows are copied is there before the wait: copies write it, and the end of a step.

__global__ void gather_rows_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                   const int32_t* index, int64_t d) {
  pdl_launch();
  const int64_t row = index[blockIdx.x];
  pdl_wait();
  copy_part(y + blockIdx.x * y_stride, x + row * x_stride, d, blockIdx.y);
}

__global__ void hidden_load_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                   const float* ring, const int32_t* source, BatchView batch, int64_t d) {
  pdl_launch();
  const int64_t t = blockIdx.x;
  const Segment segment = batch.segments[batch.segment_of[t]];
  const int32_t row = source[t], position = batch.positions[t];
  pdl_wait();
  if (segment.role == Role::Pad) return;
  const float* from = row >= 0 ? x + row * x_stride
                               : ring + (int64_t{segment.slot} * (kHiddenRing + 1) +
                                         (row == kFromDraft ? kHiddenRing : position % kHiddenRing)) *
                                            d;
  copy_part(y + t * y_stride, from, d, blockIdx.y);
}

// Block (i, part, j): row j from the segment's end; a draft's row goes to the place of its own.
__global__ void hidden_store_kernel(float* ring, const float* x, int64_t x_stride, BatchView batch,
                                    bool draft, int64_t d) {
  pdl_launch();
  const Segment segment = batch.segments[blockIdx.x];
  pdl_wait();
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.z);
  if (segment.role == Role::Pad || r < 0) return;
  const int64_t at = draft ? kHiddenRing : (segment.position + r) % kHiddenRing;
  copy_part(ring + (int64_t{segment.slot} * (kHiddenRing + 1) + at) * d, x + (segment.row + r) * x_stride, d,
            blockIdx.y);
}

}  // namespace

void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index) {
  launch(s, gather_rows_kernel, dim3(static_cast<unsigned>(y.rows()), blocks(y.cols(), kPart)), kThreads, 0,
         1, y.as<float>(), y.row_stride, x.as<float>(), x.row_stride, index, y.cols());
}

void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch) {
  launch(s, hidden_load_kernel, dim3(static_cast<unsigned>(batch.n_rows), blocks(y.cols(), kPart)), kThreads,
         0, 1, y.as<float>(), y.row_stride, x.as<float>(), x.row_stride, ring.as<float>(), source, batch,
         y.cols());
}

void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  // No segment has more rows than the batch.
  const auto rows = static_cast<unsigned>(std::min<int64_t>(kHiddenRing, batch.n_rows));
  launch(s, hidden_store_kernel, dim3(static_cast<unsigned>(batch.n_segments), blocks(x.cols(), kPart), rows),
         kThreads, 0, 1, ring.as<float>(), x.as<float>(), x.row_stride, batch, false, x.cols());
}

void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  launch(s, hidden_store_kernel, dim3(static_cast<unsigned>(batch.n_segments), blocks(x.cols(), kPart)),
         kThreads, 0, 1, ring.as<float>(), x.as<float>(), x.row_stride, batch, true, x.cols());
}

}  // namespace quern::cuda

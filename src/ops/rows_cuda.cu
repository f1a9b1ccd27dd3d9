// One block a row copied.
#include "ops/cuda/launch.cuh"
#include "ops/rows.h"

namespace quern::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ void copy_row(float* to, const float* from, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) to[i] = from[i];
}

__global__ void gather_rows_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                   const int32_t* index, int64_t d) {
  pdl_launch();
  pdl_wait();
  copy_row(y + blockIdx.x * y_stride, x + index[blockIdx.x] * x_stride, d);
}

__global__ void hidden_load_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride,
                                   const float* ring, const int32_t* source, BatchView batch, int64_t d) {
  pdl_launch();
  pdl_wait();
  const int64_t t = blockIdx.x;
  const Segment segment = batch.segments[batch.segment_of[t]];
  if (segment.role == Role::Pad) return;
  const int32_t row = source[t];
  const float* from = row >= 0
                          ? x + row * x_stride
                          : ring + (int64_t{segment.slot} * (kHiddenRing + 1) +
                                    (row == kFromDraft ? kHiddenRing : batch.positions[t] % kHiddenRing)) *
                                       d;
  copy_row(y + t * y_stride, from, d);
}

// Block (i, j): row j from the segment's end; a draft's row goes to the place of its own.
__global__ void hidden_store_kernel(float* ring, const float* x, int64_t x_stride, BatchView batch,
                                    bool draft, int64_t d) {
  pdl_launch();
  pdl_wait();
  const Segment segment = batch.segments[blockIdx.x];
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.y);
  if (segment.role == Role::Pad || r < 0) return;
  const int64_t at = draft ? kHiddenRing : (segment.position + r) % kHiddenRing;
  copy_row(ring + (int64_t{segment.slot} * (kHiddenRing + 1) + at) * d, x + (segment.row + r) * x_stride, d);
}

}  // namespace

void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index) {
  launch(s, gather_rows_kernel, dim3(static_cast<unsigned>(y.rows())), kThreads, 0, 1, y.as<float>(),
         y.row_stride, x.as<float>(), x.row_stride, index, y.cols());
}

void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch) {
  launch(s, hidden_load_kernel, dim3(static_cast<unsigned>(batch.n_rows)), kThreads, 0, 1, y.as<float>(),
         y.row_stride, x.as<float>(), x.row_stride, ring.as<float>(), source, batch, y.cols());
}

void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  launch(s, hidden_store_kernel, dim3(static_cast<unsigned>(batch.n_segments), kHiddenRing), kThreads, 0, 1,
         ring.as<float>(), x.as<float>(), x.row_stride, batch, false, x.cols());
}

void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  launch(s, hidden_store_kernel, dim3(static_cast<unsigned>(batch.n_segments)), kThreads, 0, 1,
         ring.as<float>(), x.as<float>(), x.row_stride, batch, true, x.cols());
}

}  // namespace quern::cuda

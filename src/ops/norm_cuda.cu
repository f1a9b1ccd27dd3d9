// One block a group of a row: the sum of squares over the block, then the scaled row.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/norm.h"

namespace quern::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rms_norm_kernel(float* y, int64_t y_stride, const float* x, int64_t x_stride, const float* w,
                                int d, float eps) {
  __shared__ float shared[kThreads / 32];
  pdl_launch();
  pdl_wait();
  const int64_t at = static_cast<int64_t>(blockIdx.y) * d;
  x += blockIdx.x * x_stride + at;
  y += blockIdx.x * y_stride + at;
  w += at;
  float sum = 0;
  for (int i = threadIdx.x; i < d; i += kThreads) sum = fmaf(x[i], x[i], sum);
  const float r = rsqrtf(block_sum<kThreads>(sum, shared) / static_cast<float>(d) + eps);
  for (int i = threadIdx.x; i < d; i += kThreads) y[i] = x[i] * r * (1.0f + w[i]);
}

}  // namespace

void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps) {
  const dim3 grid(static_cast<unsigned>(x.rows()), static_cast<unsigned>(groups));
  launch(s, rms_norm_kernel, grid, kThreads, 0, 1, y.as<float>(), y.row_stride, x.as<float>(), x.row_stride,
         w.as<float>(), static_cast<int>(x.cols() / groups), eps);
}

}  // namespace quern::cuda

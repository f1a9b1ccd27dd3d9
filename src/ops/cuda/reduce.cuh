// Sums and maxima within a warp and a block, in one order for every launch.
#pragma once

#include <cuda_runtime.h>

namespace quern::cuda {

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
// The sum over the block, in every thread. `shared` holds one float a warp and is free again on return.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}
template <int kThreads>
__device__ __forceinline__ float block_max(float v, float* shared) {
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float m = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) m = fmaxf(m, shared[w]);
  __syncthreads();
  return m;
}

}  // namespace quern::cuda

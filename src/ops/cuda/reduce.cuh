// Sums and maxima within a warp and a block, in one order for every launch, and what orders values.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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
// Order of floats as unsigned integers; 0 is below all of them. NaNs have no place in it.
__device__ __forceinline__ uint32_t order_of(float f) {
  const uint32_t u = __float_as_uint(f + 0.0f);  // -0 becomes 0
  return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float of_order(uint32_t u) {
  return __uint_as_float(u & 0x80000000u ? u ^ 0x80000000u : ~u);
}
// Larger for the larger value, among equal ones for the lower id.
__device__ __forceinline__ uint64_t key_of(uint32_t order, int32_t id) {
  return uint64_t{order} << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ uint32_t order_of_key(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
__device__ __forceinline__ int32_t id_of_key(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

}  // namespace quern::cuda

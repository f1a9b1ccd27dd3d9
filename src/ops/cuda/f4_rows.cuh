// 4-bit rows that lie whole in shared memory: one row's and many rows' experts walk them alike.
#pragma once

#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {

__device__ __forceinline__ uint32_t shared2(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}
// walk() of weight_stream.cuh for 4-bit rows that lie whole in shared memory: acc += `n` steps of the lane's upper and
// lower row. The addresses are the lane's own at the first of them.
__device__ __forceinline__ void walk_rows(float (&acc)[4], uint32_t upper, uint32_t lower,
                                          uint32_t upper_scales, uint32_t lower_scales, uint32_t x, int n) {
  const uint32_t swap = 16 * (threadIdx.x % 4 / 2);
  uint4 u0 = shared16(upper), u1 = shared16(lower);
  uint32_t s0 = shared2(upper_scales), s1 = shared2(lower_scales);
#pragma unroll 1
  for (; n > 0; --n) {
    uint4 b[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      b[half][0] = shared16(x + 32 * half + swap);
      b[half][1] = shared16(x + 32 * half + (swap ^ 16));
    }
    const uint4 c0 = u0, c1 = u1;
    uint32_t f0[2], f1[2];
    f4_factors(s0, false, f0);
    f4_factors(s1, false, f1);
    x += 256;
    if (n > 1) {
      upper += 64, lower += 64, upper_scales += 8, lower_scales += 8;
      u0 = shared16(upper), u1 = shared16(lower);
      s0 = shared2(upper_scales), s1 = shared2(lower_scales);
    }
    float part[2][4] = {};
#pragma unroll
    for (int word = 0; word < 2;
         ++word) {  // eight codes of each half at a time, the halves' sums side by side
      uint32_t a0[2][4], a1[2][4];
      e2m1_halves(word == 0 ? c0.x : c0.y, f0[0], a0[0]);
      e2m1_halves(word == 0 ? c1.x : c1.y, f1[0], a1[0]);
      e2m1_halves(word == 0 ? c0.z : c0.w, f0[1], a0[1]);
      e2m1_halves(word == 0 ? c1.z : c1.w, f1[1], a1[1]);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 v = b[half][word];
          mma_f16(part[half], a0[half][2 * q], a1[half][2 * q], a0[half][2 * q + 1], a1[half][2 * q + 1],
                  q == 0 ? v.x : v.z, q == 0 ? v.y : v.w);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[i] += part[half][i];
    }
  }
}

// Where the rows of `up` lie behind those of gate: in the other half of the banks, for lanes of even g take gate's row as
// the upper one and lanes of odd g up's.
__host__ __device__ inline int up_offset(int row_bytes) {
  return 8 * row_bytes + (row_bytes % 128 == 0 ? 64 : 0);
}
__host__ __device__ inline int gate_stage(int row_bytes) {
  return up_offset(row_bytes) + 8 * row_bytes + 16 * (row_bytes / 8);
}
__host__ __device__ inline int column_stride(int x_bytes) { return (x_bytes + 127) / 128 * 128 + 32; }
// Rows of the experts' matrices one behind the other, and whole in steps.
inline bool in_whole_rows(const WeightView& w, int tile) {
  return w.kind == WeightKind::F4 && streams(w) && w.k % 128 == 0 && w.n % tile == 0 &&
         w.row_bytes == w.k / 2 && w.scale_stride == w.k / 16 && w.expert_bytes % 16 == 0 &&
         w.expert_scales % 16 == 0 && reinterpret_cast<uintptr_t>(w.scale) % 16 == 0;
}

}  // namespace quern::cuda

// What products take: rows of x in f32, and how K is cut.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/cuda/weight_run.cuh"

namespace quern::cuda {

inline constexpr int kStep = 64;

// x rows in f32, rounded as they are loaded.
struct RowsF32 {
  const float* x = nullptr;
  int64_t stride = 0;
  int32_t n_rows = 0, k = 0;
  bool wide = false;  // rows begin on 16 bytes and k is a multiple of 16

  __device__ __forceinline__ const float* row(int r) const { return x + r * stride; }
};

__host__ __device__ inline int steps_of(int k) { return (k + kStep - 1) / kStep; }
__host__ __device__ inline int part_begin(int steps, int part, int parts) { return steps * part / parts; }

// Eight values of a row from k on, zeros from k_end on.
__device__ __forceinline__ void load_eight(float (&v)[8], const float* row, int k, int k_end, bool wide) {
  if (wide) {
    if (k < k_end) {
      const float4 a = *reinterpret_cast<const float4*>(row + k),
                   b = *reinterpret_cast<const float4*>(row + k + 4);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = 0;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = k + i < k_end ? row[k + i] : 0.0f;
  }
}
__device__ __forceinline__ void load_run(float* v, const float* row, int k, int k_end, bool wide) {
  float a[8], b[8];
  load_eight(a, row, k, k_end, wide);
  load_eight(b, row, k + 8, k_end, wide);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = a[i];
    v[8 + i] = b[i];
  }
}

}  // namespace quern::cuda

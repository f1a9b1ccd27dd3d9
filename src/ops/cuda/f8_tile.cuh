// A warp's tile of 16 rows of FP8 weights for many columns of x, where instructions bind: 128 values of K at a time come by
// cp.async and lie under one scale, and a step of 64 of them meets all columns without a branch. Sums are walk()'s
// (weight_stream.cuh).
#pragma once

#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {

inline constexpr int kF8Pass = 128, kF8Stages = 4,
                     kF8Stage = 16 * kF8Pass;  // passes on their way, bytes of one

__host__ __device__ inline bool is_f8(const WeightView& w) {
  return w.kind == WeightKind::F8Block || w.kind == WeightKind::F8Row;
}
// Of the pass's values in the eight or sixteen rows from `row` on.
__device__ __forceinline__ float f8_scale(const WeightView& w, int row, int pass) {
  return w.kind == WeightKind::F8Block ? w.scale_at((min(row, w.n - 1) >> 7) * w.scale_stride + pass) : 1.0f;
}

// In shared memory odd rows have the halves of their 128 bytes exchanged, so that rows g and g + 1 lie in different banks.
class F8Tile {
 public:
  // The upper eight rows from row0 of w0 on, the lower eight from row1 of w1 on. `memory`: kF8Stages stages.
  __device__ __forceinline__ F8Tile(uint8_t* memory, const WeightView& w0, int row0, const WeightView& w1,
                                    int row1)
      : memory_(memory), k_(w0.k) {
    // Lanes copy 16 bytes of rows l / 8, + 4, + 8 and + 12.
    const int r = static_cast<int>(threadIdx.x % 32) / 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      from_[i] = i < 2 ? w0.data + int64_t{min(row0 + r + 4 * i, w0.n - 1)} * w0.row_bytes
                       : w1.data + int64_t{min(row1 + r + 4 * i - 8, w1.n - 1)} * w1.row_bytes;
    }
  }
  // Enqueues the copies of a pass; the caller commits.
  __device__ __forceinline__ void fetch(int pass, int stage) {
    const int lane = static_cast<int>(threadIdx.x % 32), chunk = lane % 8, at = pass * kF8Pass + 16 * chunk;
    const bool inside = at < k_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 8 + 4 * i;
      cp_async16(memory_ + stage * kF8Stage + r * kF8Pass + 16 * (chunk ^ 4 * (r & 1)),
                 from_[i] + (inside ? at : 0), inside);
    }
  }
  // acc += step `half` of the pass in `stage`, of scales s0 and s1; load(j, b) gives the lane's values of columns 8j + g,
  // two tiles ahead of the products.
  template <int kTiles, typename Load>
  __device__ __forceinline__ void step(float (&acc)[kTiles][4], int stage, int half, float s0, float s1,
                                       Load&& load) const {
    static_assert(kTiles % 2 == 0);
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    const uint32_t from =
        shared_address(memory_) + stage * kF8Stage + g * kF8Pass + 16 * (t + 4 * (half ^ (g & 1)));
    const uint4 u0 = shared16(from), u1 = shared16(from + 8 * kF8Pass);
    uint4 b[kTiles / 2][2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) load(i, b[0][i]);
    uint32_t a0[8], a1[8];
    e4m3_halves(u0.x, a0[0], a0[1]);
    e4m3_halves(u1.x, a1[0], a1[1]);
    e4m3_halves(u0.y, a0[2], a0[3]);
    e4m3_halves(u1.y, a1[2], a1[3]);
    e4m3_halves(u0.z, a0[4], a0[5]);
    e4m3_halves(u1.z, a1[4], a1[5]);
    e4m3_halves(u0.w, a0[6], a0[7]);
    e4m3_halves(u1.w, a1[6], a1[7]);
#pragma unroll
    for (int pair = 0; pair < kTiles / 2; ++pair) {
      if (pair + 1 < kTiles / 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) load(2 * pair + 2 + i, b[pair + 1][i]);
      }
      float part[2][2][4] = {};
#pragma unroll
      for (int q = 0; q < 2; ++q) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 v = b[pair][i][q];
          mma_f16(part[i][0], a0[4 * q], a1[4 * q], a0[4 * q + 1], a1[4 * q + 1], v.x, v.y);
          mma_f16(part[i][1], a0[4 * q + 2], a1[4 * q + 2], a0[4 * q + 3], a1[4 * q + 3], v.z, v.w);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&sum)[4] = acc[2 * pair + i];
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = fmaf(e < 2 ? s0 : s1, part[i][0][e] + part[i][1][e], sum[e]);
      }
    }
  }

 private:
  uint8_t* memory_;
  const uint8_t* from_[4];
  int k_;
};

}  // namespace quern::cuda

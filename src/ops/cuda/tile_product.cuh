// The product of the prefill path: tiles of kRows rows of x by 128 rows of weight, K in steps of 64, in
// ascending order whatever the number of rows.
//
// Eight warps, two by four; each has kRows/2 × 32 of the tile. x comes in BF16 by cp.async, three stages deep.
// The weight's bytes for the next step wait in registers while this step is multiplied, and are decoded to
// BF16 into the other of two stages. Rows of 128 bytes are swizzled by 16-byte chunks so that ldmatrix meets
// no bank twice. An epilogue type says which weight row stands in which column and what becomes of the sums.
#pragma once

#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/product.cuh"

namespace quern::cuda {

inline constexpr int kTileCols = 128, kTileThreads = 256;
template <int kRows>
inline constexpr int kTileShared = 3 * kRows * 128 + 2 * kTileCols * 128;

__device__ __forceinline__ uint8_t* swizzled(uint8_t* tile, int row, int chunk) {
  return tile + row * 128 + ((chunk ^ (row & 7)) << 4);
}

// One tile. `a_row(r)` is the row of x (null: zeros) of tile row r; weight_row(r) sets the weight and its row
// for tile column r. Afterwards acc[mi][ni] holds tile rows 16·mi + … and columns 8·ni + … of the warp.
template <typename F, int kRows, typename ARow, typename WRow>
__device__ __forceinline__ void tile_product(float (&acc)[kRows / 32][4][4], uint8_t* shared, int k_a,
                                             int k_w, ARow&& a_row, WRow&& weight_row) {
  constexpr int kMi = kRows / 32;
  constexpr int kStages = 3;
  uint8_t* a_tile = shared;
  uint8_t* b_tile = shared + kStages * kRows * 128;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, wm = warp / 4, wn = warp % 4;
  const int n_steps = (k_a + 63) / 64;
  const int wrap = steps_of(k_w) * kStep;  // rows of x in two halves meet the weight twice

  // x: 8 chunks a row; a thread copies chunk tid % 8 of rows tid / 8, + 32, …
  constexpr int kCopies = kRows / 32;
  const uint16_t* from[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) from[i] = a_row(tid / 8 + 32 * i);
  auto copy_a = [&](int step) {
    if (step < n_steps) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int r = tid / 8 + 32 * i;
        cp_async16(swizzled(a_tile + step % kStages * kRows * 128, r, tid % 8),
                   from[i] + (from[i] ? step * 64 + tid % 8 * 8 : 0), from[i] != nullptr);
      }
    }
    cp_async_commit();
  };

  // The weight: a thread decodes half a row, two runs.
  const int b_row = tid / 2, b_half = tid % 2;
  int w_row = 0;
  const WeightView w = weight_row(b_row, w_row);
  typename F::Raw raw[2];
  auto k_of = [&](int step) {
    const int k = step * 64 + b_half * 32;
    return k >= wrap ? k - wrap : k;
  };
  auto load_b = [&](int step) {
    if (step >= n_steps) return;
    F::load(raw[0], w, w_row, k_of(step));
    F::load(raw[1], w, w_row, k_of(step) + 16);
  };
  auto store_b = [&](int step) {
    if (step >= n_steps) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[8];
      F::decode_ordered(raw[i], w, w_row, k_of(step) + 16 * i, words);
      uint8_t* tile = b_tile + step % 2 * kTileCols * 128;
      *reinterpret_cast<uint4*>(swizzled(tile, b_row, b_half * 4 + 2 * i)) =
          make_uint4(words[0], words[1], words[2], words[3]);
      *reinterpret_cast<uint4*>(swizzled(tile, b_row, b_half * 4 + 2 * i + 1)) =
          make_uint4(words[4], words[5], words[6], words[7]);
    }
  };

  load_b(0);
  copy_a(0);
  copy_a(1);
  store_b(0);
  load_b(1);
  for (int step = 0; step < n_steps; ++step) {
    cp_async_wait<1>();
    __syncthreads();
    copy_a(step + 2);
    uint8_t* at = a_tile + step % kStages * kRows * 128;
    uint8_t* bt = b_tile + step % 2 * kTileCols * 128;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ldmatrix4(b[i], swizzled(bt, wn * 32 + 16 * i + (lane & 7) + ((lane >> 4) << 3),
                                 2 * kk + ((lane >> 3) & 1)));
      }
#pragma unroll
      for (int mi = 0; mi < kMi; ++mi) {
        uint32_t a[4];
        ldmatrix4(a, swizzled(at, wm * (kRows / 2) + 16 * mi + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
        for (int ni = 0; ni < 4; ++ni) {
          mma_bf16(acc[mi][ni], a[0], a[1], a[2], a[3], b[ni / 2][ni % 2 * 2], b[ni / 2][ni % 2 * 2 + 1]);
        }
      }
    }
    store_b(step + 1);
    load_b(step + 2);
  }
}

// Calls f(tile row, first of two neighbouring columns, v0, v1, mi, ni) for every pair a lane holds.
template <int kMi, typename Fn>
__device__ __forceinline__ void for_tile(const float (&acc)[kMi][4][4], Fn&& f) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4, wn = warp % 4;
#pragma unroll
  for (int mi = 0; mi < kMi; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = wm * kMi * 16 + 16 * mi + lane / 4 + 8 * half;
#pragma unroll
      for (int ni = 0; ni < 4; ++ni) {
        f(r, wn * 32 + 8 * ni + 2 * (lane % 4), acc[mi][ni][2 * half], acc[mi][ni][2 * half + 1]);
      }
    }
  }
}

}  // namespace quern::cuda

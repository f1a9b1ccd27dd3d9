// The product of the prefill path: tiles of kRows rows of x by 128 rows of weight, K in steps of 64, in ascending order
// whatever the number of rows.
//
// Eight warps: with 128 rows a warp has 16 of them and every column, with 64 rows 16 and half the columns. x comes in
// BF16 by cp.async, three stages deep. The weight's bytes for the next step wait in registers and are decoded to BF16
// into the other of two stages while the tensor cores work on this one (wgmma on Hopper, mma elsewhere; the order of K
// is the same). Rows of 128 bytes are swizzled by 16-byte chunks. A lane's columns are 8j + 2t and the next, so what 32
// neighbouring columns hold for one (i mod 8) meets in one lane: the epilogues rely on it.
#pragma once

#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/product.cuh"
#include "ops/cuda/wgmma.cuh"

namespace quern::cuda {

inline constexpr int kTileCols = 128, kTileThreads = 256;
template <int kRows>
inline constexpr int kTileShared = 3 * kRows * 128 + 2 * kTileCols * 128 + 1024;
template <int kRows>
inline constexpr int kTileN = kRows == 128 ? 16 : 8;  // groups of eight columns a warp has

__device__ __forceinline__ uint8_t* swizzled(uint8_t* tile, int row, int chunk) {
  return tile + row * 128 + ((chunk ^ (row & 7)) << 4);
}
// Where a lane's values lie in the tile: row for half 0 or 1, column of acc[j][0].
template <int kRows>
__device__ __forceinline__ int tile_row(int half) {
  const int warp = threadIdx.x / 32;
  return (kRows == 128 ? warp : warp % 4) * 16 + threadIdx.x % 32 / 4 + 8 * half;
}
template <int kRows>
__device__ __forceinline__ int tile_column(int j) {
  return (kRows == 128 ? 0 : static_cast<int>(threadIdx.x) / 128 * 64) + 8 * j + 2 * (threadIdx.x % 4);
}

// One tile. `a_row(r)` is the row of x (null: zeros) of tile row r; weight_row(c, row) gives the weight and its row for
// tile column c.
template <typename F, int kRows, typename ARow, typename WRow>
__device__ __forceinline__ void tile_product(float (&acc)[kTileN<kRows>][4], uint8_t* shared, int k_a,
                                             int k_w, ARow&& a_row, WRow&& weight_row) {
  static_assert(kRows == 128 || kRows == 64);
  constexpr int kStages = 3;
  shared += (1024 - (shared_address(shared) & 1023)) & 1023;
  uint8_t* a_tile = shared;
  uint8_t* b_tile = shared + kStages * kRows * 128;
  const int tid = threadIdx.x;
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
  const uint8_t* const w_from = w.row_of(w_row);  // a row beyond the end fills a column that is nobody's
  const uint8_t* const w_scales = w.scales_of(w_row);
  auto load_b = [&](int step) {
    if (step >= n_steps) return;
    const int k = k_of(step);
    F::load_wide(raw[0], w_from, w_scales, min(k, w.k - 16), w.dtype);  // weights are `wide`
    F::load_wide(raw[1], w_from, w_scales, min(k + 16, w.k - 16), w.dtype);
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
    uint8_t* at = a_tile + step % kStages * kRows * 128;
    uint8_t* bt = b_tile + step % 2 * kTileCols * 128;
#ifdef QUERN_WGMMA
    fence_async_proxy();
    __syncthreads();
    const int group = tid / 128;
    const uint64_t a = wgmma_tile(at + (kRows == 128 ? group * 64 * 128 : 0));
    const uint64_t b = wgmma_tile(bt + (kRows == 128 ? 0 : group * 64 * 128));
    hold(acc);
    wgmma_begin();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma_bf16(acc, a + 2 * kk, b + 2 * kk);  // 32 bytes of K
    wgmma_commit();
    copy_a(step + 2);
    store_b(step + 1);
    load_b(step + 2);
    wgmma_wait();
    hold(acc);
#else
    __syncthreads();
    copy_a(step + 2);
    const int lane = tid % 32, warp = tid / 32, row0 = (kRows == 128 ? warp : warp % 4) * 16;
    const int col0 = kRows == 128 ? 0 : warp / 4 * 64;
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      uint32_t a[4];
      ldmatrix4(a, swizzled(at, row0 + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
      for (int j = 0; j < kTileN<kRows>; j += 2) {
        uint32_t b[4];
        ldmatrix4(b,
                  swizzled(bt, col0 + 8 * j + (lane & 7) + ((lane >> 4) << 3), 2 * kk + ((lane >> 3) & 1)));
        mma_bf16(acc[j], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_bf16(acc[j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
    store_b(step + 1);
    load_b(step + 2);
#endif
  }
}

// Calls f(tile row, first of two neighbouring columns, v0, v1) for every pair a lane holds.
template <int kRows, typename Fn>
__device__ __forceinline__ void for_tile(const float (&acc)[kTileN<kRows>][4], Fn&& f) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kTileN<kRows>; ++j) {
      f(tile_row<kRows>(half), tile_column<kRows>(j), acc[j][2 * half], acc[j][2 * half + 1]);
    }
  }
}

}  // namespace quern::cuda

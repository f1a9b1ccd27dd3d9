// The product of the prefill path: tiles of kRows rows of x by 128 rows of weight, K in steps of 64, in ascending order
// whatever the number of rows.
//
// Eight warps fill stages of shared memory, eight multiply what is in them. A step's piece of the weight is decoded to
// BF16 once for all rows of the tile; the decoding runs beside the tensor cores, never in their way. x comes in BF16 by
// cp.async. Two groups of four warps multiply the tile's blocks of 64 rows in turn, each with every column (wgmma on
// Hopper, mma elsewhere; the order of K is the same); blocks without rows are left out. A row's sums are the same in tiles
// of either size. Rows of 128 bytes are swizzled by 16-byte chunks. A lane's columns are 8j + 2t and the next, so what
// 32 neighbouring columns hold for one (i mod 8) meets in one lane: the epilogues rely on it.
#pragma once

#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/product.cuh"
#include "ops/cuda/wgmma.cuh"

namespace quern::cuda {

inline constexpr int kTileCols = 128, kTileThreads = 512;
constexpr int tile_stage(int rows) { return (rows + kTileCols) * 128; }  // bytes: x, then the weight
template <int kRows>
inline constexpr int kTileStage = tile_stage(kRows);
// Without wgmma a warp has no registers for the sums of a large tile, nor a block the memory for its stages.
inline constexpr int kSmallTile = 128, kHopperTile = 256, kStages = 3, kHopperStages = 4;
#ifdef QUERN_SM90
inline constexpr int kLargestTile = kHopperTile, kTileStages = kHopperStages;
#else
inline constexpr int kLargestTile = kSmallTile, kTileStages = kStages;
#endif
// The same for the host.
inline int largest_tile(Stream& s) { return is_hopper(s) ? kHopperTile : kSmallTile; }
inline int tile_shared(Stream& s, int rows) {
  const int stages = is_hopper(s) ? kHopperStages : kStages;
  return stages * tile_stage(rows) + 1024 + 16 * stages;
}
template <int kRows>
inline constexpr int kTileBlocks = kRows / 128;  // blocks of 64 rows a warp has
// What a lane holds: [block of 64 rows][8 columns j][value]
template <int kRows>
using TileSums = float[kTileBlocks<kRows>][16][4];

// Fewer rows than fill the chip go in smaller tiles.
inline bool takes_large_tiles(Stream& s, int64_t rows, int64_t cols) {
  return is_hopper(s) && static_cast<int64_t>(blocks(rows, kHopperTile)) * blocks(cols, kTileCols) >= 96;
}

__device__ __forceinline__ uint8_t* swizzled(uint8_t* tile, int row, int chunk) {
  return tile + row * 128 + ((chunk ^ (row & 7)) << 4);
}
// Where a lane's values lie in the tile: row of block `b` and half 0 or 1, column of [j][0].
__device__ __forceinline__ int tile_row(int b, int half) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  return (2 * b + group) * 64 + warp * 16 + threadIdx.x % 32 / 4 + 8 * half;
}
__device__ __forceinline__ int tile_column(int j) { return 8 * j + 2 * (threadIdx.x % 4); }
// What a format leaves out of a column's sums.
template <typename F>
__device__ __forceinline__ float column_factor(const WeightView& w, int n) {
  return (F::kKind == WeightKind::F8Row ? w.row_factor(n) : w.global_scale) * F::kRest;
}

// The sigmoid of epilogues, which compute hundreds a thread: to 1e-6, in two operations of the special unit.
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Fills the stages; `tid` counts the filling threads.
template <typename F, int kRows, typename ARow, typename WRow>
__device__ __forceinline__ void fill_tile(uint8_t* stages, uint64_t* full, uint64_t* empty, int tid,
                                          int n_rows, int n_steps, int k_w, ARow&& a_row, WRow&& weight_row) {
  // x: 8 chunks a row; a thread copies chunk tid % 8 of rows tid / 8, + 32, …
  constexpr int kCopies = kRows / 32;
  const int n_used = (n_rows + 63) / 64 * 64;
  const uint16_t* from[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = tid / 8 + 32 * i;
    from[i] = r < n_rows ? a_row(r) + tid % 8 * 8 : nullptr;
  }

  // The weight: a thread decodes half a row, two runs. Small ones are fetched two steps ahead of their decoding.
  constexpr int kAhead = sizeof(typename F::Raw) <= 16 ? 2 : 1;
  const int wrap = steps_of(k_w) * kStep;  // rows of x in two halves meet the weight twice
  const int b_row = tid / 2, b_half = tid % 2;
  int w_row = 0;
  const WeightView w = weight_row(b_row, w_row);
  typename F::Raw raw[kAhead][2];
  float scale[kAhead] = {};
  auto k_of = [&](int step) {
    const int k = step * 64 + b_half * 32;
    return k >= wrap ? k - wrap : k;
  };
  const uint8_t* const w_from = w.row_of(w_row);  // a row beyond the end fills a column that is nobody's
  const uint8_t* const w_scales = w.scales_of(w_row);
  auto load = [&](int u, int step) {
    if (step >= n_steps) return;
    const int k = k_of(step);
    F::load_wide(raw[u][0], w_from, w_scales, min(k, w.k - 16), w.dtype);  // weights are `wide`
    F::load_wide(raw[u][1], w_from, w_scales, min(k + 16, w.k - 16), w.dtype);
    if constexpr (F::kKind == WeightKind::F8Block)
      scale[u] = w.block_scale(w_row, k);  // a half step lies in one block
  };
  load(0, 0);
  if constexpr (kAhead == 2) load(kAhead - 1, 1);
  for (int step = 0; step < n_steps; ++step) {
    const int s = step % kTileStages;
    uint8_t* a_tile = stages + s * kTileStage<kRows>;
    uint8_t* b_tile = a_tile + kRows * 128;
    if (step >= kTileStages) barrier_wait(empty + s, (step / kTileStages - 1) & 1);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = tid / 8 + 32 * i;
      if (r < n_used)
        cp_async16(swizzled(a_tile, r, tid % 8), from[i] + (from[i] ? step * 64 : 0), from[i] != nullptr);
    }
    cp_async_commit();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t words[8];
      if constexpr (F::kKind == WeightKind::F8Block) {
        F::decode(raw[0][i], words);
#pragma unroll
        for (int m = 0; m < 8; ++m)
          words[m] = pack_bf16(bf16_low(words[m]) * scale[0], bf16_high(words[m]) * scale[0]);
      } else {
        F::decode_ordered(raw[0][i], w, w_row, k_of(step) + 16 * i, words);
      }
      *reinterpret_cast<uint4*>(swizzled(b_tile, b_row, b_half * 4 + 2 * i)) =
          make_uint4(words[0], words[1], words[2], words[3]);
      *reinterpret_cast<uint4*>(swizzled(b_tile, b_row, b_half * 4 + 2 * i + 1)) =
          make_uint4(words[4], words[5], words[6], words[7]);
    }
    if constexpr (kAhead == 2) {
      raw[0][0] = raw[kAhead - 1][0];
      raw[0][1] = raw[kAhead - 1][1];
      scale[0] = scale[kAhead - 1];
    }
    load(kAhead - 1, step + kAhead);
    if (step > 0) {  // the step before is complete: its x has arrived
      cp_async_wait<1>();
      fence_async_proxy();
      barrier_arrive_warp(full + (step - 1) % kTileStages);
    }
  }
  cp_async_wait<0>();
  fence_async_proxy();
  barrier_arrive_warp(full + (n_steps - 1) % kTileStages);
}

template <int kRows>
__device__ __forceinline__ void multiply_tile(TileSums<kRows>& acc, uint8_t* stages, uint64_t* full,
                                              uint64_t* empty, int n_rows, int n_steps) {
  constexpr int kBlocks = kTileBlocks<kRows>;
  // Of the warp as a whole: the branches on it are no thread's own.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
#ifdef QUERN_SM90
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) hold(acc[i]);
#else
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#endif
  for (int step = 0; step < n_steps; ++step) {
    const int s = step % kTileStages;
    uint8_t* a_tile = stages + s * kTileStage<kRows>;
    uint8_t* b_tile = a_tile + kRows * 128;
    barrier_wait(full + s, step / kTileStages & 1);
#ifdef QUERN_SM90
    const uint64_t b = wgmma_tile(b_tile);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if ((2 * i + group) * 64 >= n_rows) continue;
      const uint64_t a = wgmma_tile(a_tile + (2 * i + group) * 64 * 128);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma_bf16(acc[i], a + 2 * kk, b + 2 * kk);  // 32 bytes of K
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) barrier_arrive_warp(empty + (step - 1) % kTileStages);
#else
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int row0 = (2 * i + group) * 64 + warp * 16;
      if ((2 * i + group) * 64 >= n_rows) continue;
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        uint32_t a[4];
        ldmatrix4(a, swizzled(a_tile, row0 + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < 16; j += 2) {
          uint32_t b[4];
          ldmatrix4(b, swizzled(b_tile, 8 * j + (lane & 7) + ((lane >> 4) << 3), 2 * kk + ((lane >> 3) & 1)));
          mma_bf16(acc[i][j], a[0], a[1], a[2], a[3], b[0], b[1]);
          mma_bf16(acc[i][j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
      }
    }
    barrier_arrive_warp(empty + s);
#endif
  }
#ifdef QUERN_SM90
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) hold(acc[i]);
#endif
}

// One tile, of which the first n_rows rows exist; every thread of the block calls it, last. `a_row(r)` is the row of x of
// tile row r; weight_row(c, row) gives the weight and its row for tile column c; the multiplying threads give their sums to
// epilogue(acc).
template <typename F, int kRows, typename ARow, typename WRow, typename Epilogue>
__device__ __forceinline__ void tile_product(uint8_t* shared, int n_rows, int k_a, int k_w, ARow&& a_row,
                                             WRow&& weight_row, Epilogue&& epilogue) {
  static_assert(kRows == kHopperTile || kRows == kSmallTile);
  if constexpr (kRows > kLargestTile) {
    __trap();  // launched on Hopper only
    return;
  }
  shared += (1024 - (shared_address(shared) & 1023)) & 1023;
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + kTileStages * kTileStage<kRows>);
  uint64_t* empty = full + kTileStages;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kTileStages; ++i) {
      barrier_init(full + i, kTileThreads / 64);  // an arrival a warp
      barrier_init(empty + i, kTileThreads / 64);
    }
  }
  __syncthreads();
  const int n_steps = (k_a + 63) / 64;
  if (threadIdx.x >= kTileThreads / 2) {
#ifdef QUERN_SM90
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
#endif
    fill_tile<F, kRows>(shared, full, empty, static_cast<int>(threadIdx.x) - kTileThreads / 2, n_rows,
                        n_steps, k_w, a_row, weight_row);
  } else {
#ifdef QUERN_SM90
    asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
#endif
    TileSums<kRows> acc = {};
    multiply_tile<kRows>(acc, shared, full, empty, n_rows, n_steps);
    epilogue(acc);
  }
}

// Calls f(tile row, block, half) for the rows a lane holds values of.
template <int kRows, typename Fn>
__device__ __forceinline__ void for_tile_rows(Fn&& f) {
#pragma unroll
  for (int b = 0; b < kTileBlocks<kRows>; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) f(tile_row(b, half), b, half);
  }
}
// Two neighbouring columns n, n + 1 of a row with n_end of them; `paired` where both may go in one store.
__device__ __forceinline__ void store_pair(float* row, int n, int n_end, bool paired, float v0, float v1) {
  if (paired && n + 1 < n_end) {
    *reinterpret_cast<float2*>(row + n) = make_float2(v0, v1);
  } else {
    if (n < n_end) row[n] = v0;
    if (n + 1 < n_end) row[n + 1] = v1;
  }
}

}  // namespace quern::cuda

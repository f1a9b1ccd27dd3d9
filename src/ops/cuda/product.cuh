// The product of the decode path: 16 rows of a weight by up to 8·kTiles rows of x, on m16n8k16 tiles.
//
// The weight is the tile's A and x its B, so a row of x is a column of the tile: nothing another row holds can
// reach it, and one row costs no more than eight. A step is 64 columns of K: lane t of a quad takes the run
// [16t, 16t + 16) of its two weight rows and of its x row, which are four tiles' worth of its share. Each warp
// walks its own steps in ascending order; the caller sums warps and blocks in a fixed order. The order is thus
// a function of (n, k) alone.
#pragma once

#include "ops/cuda/weight_run.cuh"

namespace quern::cuda {

inline constexpr int kStep = 64;

// x rows in f32, rounded to BF16 as they are loaded.
struct RowsF32 {
  const float* x = nullptr;
  int64_t stride = 0;
  int32_t n_rows = 0, k = 0;
  bool wide = false;  // rows begin on 16 bytes and k is a multiple of 16

  __device__ __forceinline__ const float* row(int r) const { return x + r * stride; }
};

__device__ __forceinline__ void load_run(float* v, const float* row, int k, int k_end, bool wide) {
  if (wide && k < k_end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 f = *reinterpret_cast<const float4*>(row + k + 4 * i);
      v[4 * i] = f.x;
      v[4 * i + 1] = f.y;
      v[4 * i + 2] = f.z;
      v[4 * i + 3] = f.w;
    }
    return;
  }
  if (wide) k_end = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = k + i < k_end ? row[k + i] : 0.0f;
}
template <bool kSplitPairs>
__device__ __forceinline__ void pack_run(const float* v, uint32_t* b) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (kSplitPairs) {
      const int j = 8 * (i / 4) + i % 4;
      b[i] = pack_bf16(v[j], v[j + 4]);
    } else {
      b[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
    }
  }
}

// Where the B words of a step come from: words(j, k, b) gives the lane's run of x row 8j + g.
// Plain rows; `list`, if given, names the row of x for each column (-1: none).
struct PlainColumns {
  RowsF32 rows;
  const int32_t* list = nullptr;  // shared memory
  int first = 0;                  // column 0 is row (or list entry) `first`

  template <bool kSplitPairs>
  __device__ __forceinline__ void words(int j, int k, uint32_t* b) {
    const int c = first + 8 * j + (threadIdx.x % 32) / 4;
    const int r = list ? (c < rows.n_rows ? list[c] : -1) : (c < rows.n_rows ? c : -1);
    float v[16];
    if (r >= 0) {
      load_run(v, rows.row(r), k, rows.k, rows.wide);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = 0;
    }
    pack_run<kSplitPairs>(v, b);
  }
};

// acc[m][j] += W[16 rows of tile m, steps [begin, end)) · xᵀ. `ready` runs once, after the first weights are
// on their way and before x is touched: kernels wait there for their predecessors.
template <typename F, int kMTiles, int kTiles, typename Columns, typename Ready>
__device__ __forceinline__ void product_steps(float (&acc)[kMTiles][kTiles][4],
                                              const WeightView (&w)[kMTiles], const int (&row)[kMTiles],
                                              int begin, int end, Columns& columns, Ready&& ready) {
  constexpr int kBatch = F::kBatch >= 2 * kMTiles ? F::kBatch / kMTiles : 1;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  typename F::Raw raw[kBatch][kMTiles][2];
  auto load = [&](int step) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int k = (step + u) * kStep + 16 * t;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        if (step + u < end) {
          F::load(raw[u][m][0], w[m], row[m] + g, k);
          F::load(raw[u][m][1], w[m], row[m] + g + 8, k);
        }
      }
    }
  };
  load(begin);
  ready();
  for (int step = begin; step < end; step += kBatch) {
    if (step != begin) load(step);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (step + u >= end) break;
      const int k = (step + u) * kStep + 16 * t;
      uint32_t a0[kMTiles][8], a1[kMTiles][8];
      float scale[kMTiles];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        F::decode(raw[u][m][0], a0[m]);
        F::decode(raw[u][m][1], a1[m]);
        if constexpr (F::kBlockScale) scale[m] = w[m].block_scale(row[m], (step + u) * kStep);
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t b[8];
        columns.template words<F::kSplitPairs>(j, k, b);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          if constexpr (F::kBlockScale) {
            float part[4] = {};
#pragma unroll
            for (int i = 0; i < 8; i += 2)
              mma_bf16(part, a0[m][i], a1[m][i], a0[m][i + 1], a1[m][i + 1], b[i], b[i + 1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][j][i] = fmaf(scale[m], part[i], acc[m][j][i]);
          } else {
#pragma unroll
            for (int i = 0; i < 8; i += 2)
              mma_bf16(acc[m][j], a0[m][i], a1[m][i], a0[m][i + 1], a1[m][i + 1], b[i], b[i + 1]);
          }
        }
      }
    }
  }
}

// The same for whichever format w has; the row factors that runs leave out are applied.
template <int kMTiles, int kTiles, typename Columns, typename Ready>
__device__ __forceinline__ void product(float (&acc)[kMTiles][kTiles][4], const WeightView (&w)[kMTiles],
                                        const int (&row)[kMTiles], int begin, int end, Columns& columns,
                                        Ready&& ready) {
  const int g = (threadIdx.x % 32) / 4;
  with_format(w[0].kind, [&](auto format) {
    using F = decltype(format);
    product_steps<F>(acc, w, row, begin, end, columns, ready);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const float f0 = w[m].row_factor(row[m] + g) * F::kRest,
                  f1 = w[m].row_factor(row[m] + g + 8) * F::kRest;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        acc[m][j][0] *= f0;
        acc[m][j][1] *= f0;
        acc[m][j][2] *= f1;
        acc[m][j][3] *= f1;
      }
    }
  });
}

__host__ __device__ inline int steps_of(int k) { return (k + kStep - 1) / kStep; }
__device__ __forceinline__ int part_begin(int steps, int part, int parts) { return steps * part / parts; }

// A lane's accumulators to [8·kTiles columns][16 rows] of shared memory.
template <int kTiles>
__device__ __forceinline__ void store_tile(float* tile, const float (&acc)[kTiles][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    tile[(8 * j + 2 * t) * 16 + g] = acc[j][0];
    tile[(8 * j + 2 * t + 1) * 16 + g] = acc[j][1];
    tile[(8 * j + 2 * t) * 16 + g + 8] = acc[j][2];
    tile[(8 * j + 2 * t + 1) * 16 + g + 8] = acc[j][3];
  }
}

}  // namespace quern::cuda

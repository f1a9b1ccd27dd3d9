// The product of the decode path: 16 rows of a weight by up to 8·kTiles rows of x, on m16n8k16 tiles.
//
// The weight is the tile's A and x its B, so a row of x is a column of the tile: nothing another row holds can reach it,
// and one row costs no more than eight. A step is 64 columns of K: lane t of a quad takes the run [16t, 16t + 16) of its
// two weight rows and of its x row, which are four tiles' worth of its share. Each warp walks its own steps in ascending
// order; the caller sums warps and blocks in a fixed order. The order is thus a function of (n, k) alone.
//
// Weights go to registers, several steps at once; while they are on their way the block waits for the kernel before it
// and brings its piece of x, rounded to BF16, into shared memory. A kernel is made for one format;
// straight code that runs once a block is paid for in instruction fetches, so loops are short.
#pragma once

#include "ops/cuda/reduce.cuh"
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
template <bool kSplitPairs>
__device__ __forceinline__ uint4 pack_eight(const float (&v)[8]) {
  if constexpr (kSplitPairs) {
    return make_uint4(pack_bf16(v[0], v[4]), pack_bf16(v[1], v[5]), pack_bf16(v[2], v[6]),
                      pack_bf16(v[3], v[7]));
  } else {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                      pack_bf16(v[6], v[7]));
  }
}

// A piece of x in shared memory: columns of the tile, K from k0 on, `stride` bytes a column (16 more than a multiple of
// 128, so that a quad's runs meet no bank twice).
struct StagedX {
  uint8_t* x = nullptr;
  int32_t stride = 0, n_columns = 0, k0 = 0, k1 = 0;
};
__host__ __device__ inline int staged_stride(int steps) { return steps * kStep * 2 + 16; }

// Plain rows: column c is row first + c of `rows`, or the one `list` names (shared memory).
template <int kThreads>
struct PlainStage {
  RowsF32 rows;
  const int32_t* list;
  int first;
  StagedX staged;
  bool waited;

  template <bool kSplitPairs>
  __device__ __forceinline__ void run() {
    if (!waited) pdl_wait();
    const int chunks = (staged.k1 - staged.k0) / 8;
    for (int i = threadIdx.x; i < chunks; i += kThreads) {
      for (int c0 = 0; c0 < staged.n_columns; c0 += 4) {  // four rows' loads at once
        float v[4][8];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int c = first + min(c0 + q, staged.n_columns - 1);
          load_eight(v[q], rows.row(list ? list[c] : c), staged.k0 + 8 * i, rows.k, rows.wide);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          if (c0 + q < staged.n_columns)
            *reinterpret_cast<uint4*>(staged.x + (c0 + q) * staged.stride + 16 * i) =
                pack_eight<kSplitPairs>(v[q]);
        }
      }
    }
    __syncthreads();
  }
};

// result[(m·kTiles + j)·4 + …] = W_m[16 rows from row[m], steps [begin, end)) · xᵀ. `column` is the first the warp uses
// (tiles follow it); a warp may use one column only. Weights are `wide`: a step's loads have no branch among them. Each
// step's registers are filled again as soon as they are used, so kBatch steps are always on their way.
//
// Rows beyond the weight's end read its last one, and runs beyond K its last run: x is zero there, and results of such
// rows are nobody's.
template <typename F, int kM, int kTiles, typename Stage>
__device__ __forceinline__ void product_of(float* result, const WeightView& w0, const WeightView& w1,
                                           int row0, int row1, int begin, int end, Stage& stage, int column,
                                           bool single) {
  constexpr int kBatch = kM == 1 ? F::kBatch : F::kBatchOfTwo;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float acc[kM][kTiles][4] = {};
  typename F::Raw raw[kBatch][kM][2];
  float scale[kBatch][kM];
  const uint8_t *from_row[kM][2], *from_scales[kM][2];
  const float* from_blocks[kM];
  const int last_run = w0.k - 16;
  const DType dtype = w0.dtype;
  const bool bf16_scales = w0.scale_is_bf16;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const WeightView& w = m == 0 ? w0 : w1;
    const int row = m == 0 ? row0 : row1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      from_row[m][h] = w.row_of(row + g + 8 * h);
      from_scales[m][h] = w.scales_of(row + g + 8 * h);
    }
    const int64_t block_row = (min(row, w.n - 1) >> 7) * w.scale_stride;
    from_blocks[m] = reinterpret_cast<const float*>(static_cast<const uint8_t*>(w.scale) +
                                                    block_row * (bf16_scales ? 2 : 4));
  }
  auto load = [&](int u, int step) {
    const int k = min(step * kStep + 16 * t, last_run);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) F::load_wide(raw[u][m][h], from_row[m][h], from_scales[m][h], k, dtype);
      if constexpr (F::kBlockScale) {
        const int block = step * kStep >> 7;
        scale[u][m] = bf16_scales
                          ? quant::bf16_to_float(reinterpret_cast<const uint16_t*>(from_blocks[m])[block])
                          : from_blocks[m][block];
      }
    }
  };
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
    if (begin + u < end) load(u, begin + u);
  }
  stage.template run<F::kSplitPairs>();
  const StagedX& x = stage.staged;
  const uint8_t* from[kTiles];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    from[j] = x.x + (single ? column : min(column + 8 * j + g, x.n_columns - 1)) * x.stride + 32 * t +
              (begin * kStep - x.k0) * 2;
  }
  for (int step = begin; step < end; step += kBatch) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (step + u >= end) break;
      uint4 b[kTiles][2];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        b[j][0] = *reinterpret_cast<const uint4*>(from[j]);
        b[j][1] = *reinterpret_cast<const uint4*>(from[j] + 16);
        from[j] += kStep * 2;
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        uint32_t a0[8], a1[8];
        F::decode(raw[u][m][0], a0);
        F::decode(raw[u][m][1], a1);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const uint4 &b0 = b[j][0], &b1 = b[j][1];
          float part[4] = {};
          float(&sum)[4] = F::kBlockScale ? part : acc[m][j];
          mma_bf16(sum, a0[0], a1[0], a0[1], a1[1], b0.x, b0.y);
          mma_bf16(sum, a0[2], a1[2], a0[3], a1[3], b0.z, b0.w);
          mma_bf16(sum, a0[4], a1[4], a0[5], a1[5], b1.x, b1.y);
          mma_bf16(sum, a0[6], a1[6], a0[7], a1[7], b1.z, b1.w);
          if constexpr (F::kBlockScale) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][j][i] = fmaf(scale[u][m], part[i], acc[m][j][i]);
          }
        }
      }
      if (step + u + kBatch < end) load(u, step + u + kBatch);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const WeightView& w = m == 0 ? w0 : w1;
    const int row = m == 0 ? row0 : row1;
    const float f0 = w.row_factor(row + g) * F::kRest, f1 = w.row_factor(row + g + 8) * F::kRest;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[(m * kTiles + j) * 4 + i] = acc[m][j][i] * (i < 2 ? f0 : f1);
    }
  }
}

// The same for a format the kernel was not made for: a call, so that it costs the others no code.
template <int kM, int kTiles, typename Stage>
__device__ __noinline__ void product_of_any(float* result, const WeightView& w0, const WeightView& w1,
                                            int row0, int row1, int begin, int end, Stage& stage, int column,
                                            bool single) {
  with_format(w0.kind, [&](auto format) {
    product_of<decltype(format), kM, kTiles>(result, w0, w1, row0, row1, begin, end, stage, column, single);
  });
}

// A product by the format F the kernel is made for, or any other. Every thread of the block has the same.
template <typename F, int kTiles, typename Stage>
__device__ __forceinline__ void product(float* result, const WeightView& w, int row, int begin, int end,
                                        Stage& stage, int column = 0, bool single = false) {
  if (w.kind == F::kKind) {
    product_of<F, 1, kTiles>(result, w, w, row, row, begin, end, stage, column, single);
  } else {
    product_of_any<1, kTiles>(result, w, w, row, row, begin, end, stage, column, single);
  }
}
// Two weights of one shape and format.
template <typename F, int kTiles, typename Stage>
__device__ __forceinline__ void product_of_two(float* result, const WeightView& w0, const WeightView& w1,
                                               int row0, int row1, int begin, int end, Stage& stage) {
  if (w0.kind == F::kKind) {
    product_of<F, 2, kTiles>(result, w0, w1, row0, row1, begin, end, stage, 0, false);
  } else {
    product_of_any<2, kTiles>(result, w0, w1, row0, row1, begin, end, stage, 0, false);
  }
}

// A lane's accumulators to [8·kTiles columns][16 rows] of shared memory.
template <int kTiles>
__device__ __forceinline__ void store_tile(float* tile, const float* acc) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    tile[(8 * j + 2 * t) * 16 + g] = acc[4 * j];
    tile[(8 * j + 2 * t + 1) * 16 + g] = acc[4 * j + 1];
    tile[(8 * j + 2 * t) * 16 + g + 8] = acc[4 * j + 2];
    tile[(8 * j + 2 * t + 1) * 16 + g + 8] = acc[4 * j + 3];
  }
}

}  // namespace quern::cuda

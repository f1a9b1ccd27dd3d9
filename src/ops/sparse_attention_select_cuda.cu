// qsa_select: scores of every visible block, then the exact best `budget_blocks` of them.
//
// Scores. Decode rows: eight lanes share a key, each with 16 of its 128 dimensions and the matching part of the four
// index queries in registers; warps stride over the keys. Prefill rows: tiles of 16 rows by 64 keys, both in shared
// memory, as a float32 product. Plain float32 throughout: a 16-bit or TF32 product moves blocks across the border.
//
// Choice, one block of threads a row, all integer work and so independent of its order:
//   1. the largest score, and how many are positive (a quarter of real scores is exactly 0)
//   2. a histogram of the positive scores over [0, largest] in equal bins finds the bin with the border
//   3. the few scores of that bin are ranked among themselves: the border score, and how many equal to it are taken
//   4. each warp counts its contiguous range, then writes its chosen blocks behind those of the warps before it
#include <algorithm>

#include "ops/cuda/async.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/sparse_attention.h"

namespace quern::cuda {
namespace {

constexpr int kIndexHeads = 4, kIndexWidth = 128;

__device__ __forceinline__ int complete_blocks(const BatchView& batch, int64_t t) {
  const Segment& segment = batch.segments[batch.segment_of[t]];
  return segment.role == Role::Pad ? 0 : (batch.positions[t] + 1) / kBlockTokens;
}

// The pooled key of block b; `shift` is the cache's.
__device__ __forceinline__ const float* pooled_key(const float* pooled, const int32_t* pages, int b,
                                                   int shift) {
  const int at = b + shift;
  return pooled + (int64_t{pages[at / kPageBlocks]} * kPageBlocks + at % kPageBlocks) * kIndexWidth;
}

// ---- scores, decode ----

constexpr int kScoreThreads = 256;

__global__ void __launch_bounds__(kScoreThreads)
    qsa_score_decode_kernel(float* scores, int64_t score_stride, const float* qi, int64_t qi_stride,
                            const float* pooled, BatchView batch, int budget, int shift) {
  // What a step's rows are is there before the wait (copies write it, and the end of a step), and of the keys all but those
  // that this step completes: these are on their way to the L2.
  const int64_t t = blockIdx.y;
  const int n = complete_blocks(batch, t);
  const int32_t* pages = batch.page_tables + batch.segments[batch.segment_of[t]].page_table;
  const int part = threadIdx.x % 8;
  constexpr int kKeys = kScoreThreads / 8;
  if (n > budget) {
#pragma unroll 4
    for (int b = static_cast<int>(blockIdx.x * kScoreThreads + threadIdx.x) / 8; b < n;
         b += gridDim.x * kKeys)
      prefetch_l2(pooled_key(pooled, pages, b, shift) + 16 * part);
  }
  pdl_wait();
  pdl_launch();  // after the wait, as in the choice
  if (n <= budget) return;
  // Lane `part` holds dimensions 32i + 4·part + c of every head.
  float q[kIndexHeads][4][4];
#pragma unroll
  for (int h = 0; h < kIndexHeads; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 f =
          *reinterpret_cast<const float4*>(qi + t * qi_stride + h * kIndexWidth + 32 * i + 4 * part);
      q[h][i][0] = f.x;
      q[h][i][1] = f.y;
      q[h][i][2] = f.z;
      q[h][i][3] = f.w;
    }
  const float scale = 1.0f / sqrtf(static_cast<float>(kIndexWidth));
  const auto load = [&](float4(&k)[4], int b) {
    if (b >= n) return;
    const float* key = pooled_key(pooled, pages, b, shift);
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = *reinterpret_cast<const float4*>(key + 32 * i + 4 * part);
  };
  const int stride = static_cast<int>(gridDim.x) * kKeys;
  float4 k[4] = {}, next[4] = {};
  load(k, blockIdx.x * kKeys + static_cast<int>(threadIdx.x) / 8);
  for (int first = blockIdx.x * kKeys; first < n; first += stride) {
    const int b = first + static_cast<int>(threadIdx.x) / 8;
    load(next, b + stride);
    float dot[kIndexHeads] = {};
#pragma unroll
    for (int h = 0; h < kIndexHeads; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        dot[h] = fmaf(q[h][i][0], k[i].x, dot[h]);
        dot[h] = fmaf(q[h][i][1], k[i].y, dot[h]);
        dot[h] = fmaf(q[h][i][2], k[i].z, dot[h]);
        dot[h] = fmaf(q[h][i][3], k[i].w, dot[h]);
      }
    float score = 0;
#pragma unroll
    for (int h = 0; h < kIndexHeads; ++h) {
      float v = dot[h];
#pragma unroll
      for (int d = 4; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
      score += fmaxf(v, 0.0f);
    }
    if (part == 0 && b < n) scores[t * score_stride + b] = score * scale;
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = next[i];
  }
}

// ---- scores, prefill ----

constexpr int kTileRows = 16, kTileKeys = 64;
constexpr int kPitch = kIndexWidth + 4;  // floats: rows of a tile start in different banks
constexpr size_t kTileShared = sizeof(float) * kPitch * (kTileRows * kIndexHeads + kTileKeys);

// Thread (i, j) of 8 × 32 computes rows i and i + 8 against keys j and j + 32, all heads.
__global__ void __launch_bounds__(256)
    qsa_score_prefill_kernel(float* scores, int64_t score_stride, const float* qi, int64_t qi_stride,
                             const float* pooled, BatchView batch, int64_t first_row, int64_t end_row,
                             int budget, int shift) {
  extern __shared__ float4 shared4[];
  float* q = reinterpret_cast<float*>(shared4);
  float* keys = q + kTileRows * kIndexHeads * kPitch;
  pdl_launch();
  pdl_wait();
  const int64_t row0 = first_row + static_cast<int64_t>(blockIdx.y) * kTileRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kTileRows), end_row - row0));
  // Rows of several segments may share a tile; keys are those of one segment at a time.
  for (int begin = 0; begin < rows;) {
    const int segment_index = batch.segment_of[row0 + begin];
    int end = begin + 1;
    while (end < rows && batch.segment_of[row0 + end] == segment_index) ++end;
    const int n = complete_blocks(batch, row0 + end - 1);  // positions ascend within a segment
    const int key0 = static_cast<int>(blockIdx.x) * kTileKeys;
    if (n > budget && key0 < n) {
      const int32_t* pages = batch.page_tables + batch.segments[segment_index].page_table;
      __syncthreads();
      for (int i = threadIdx.x; i < kTileRows * kIndexHeads * (kIndexWidth / 4); i += 256) {
        const int c = i % (kIndexWidth / 4), vector = i / (kIndexWidth / 4);
        const int r = vector / kIndexHeads, h = vector % kIndexHeads;
        float4 f = make_float4(0, 0, 0, 0);
        if (r >= begin && r < end)
          f = *reinterpret_cast<const float4*>(qi + (row0 + r) * qi_stride + h * kIndexWidth + 4 * c);
        *reinterpret_cast<float4*>(q + vector * kPitch + 4 * c) = f;
      }
      for (int i = threadIdx.x; i < kTileKeys * (kIndexWidth / 4); i += 256) {
        const int c = i % (kIndexWidth / 4), b = key0 + i / (kIndexWidth / 4);
        float4 f = make_float4(0, 0, 0, 0);
        if (b < n) f = *reinterpret_cast<const float4*>(pooled_key(pooled, pages, b, shift) + 4 * c);
        *reinterpret_cast<float4*>(keys + (b - key0) * kPitch + 4 * c) = f;
      }
      __syncthreads();
      const int i = static_cast<int>(threadIdx.x) / 32, j = static_cast<int>(threadIdx.x) % 32;
      float dot[2][2][kIndexHeads] = {};
      for (int c = 0; c < kIndexWidth; c += 4) {
        float4 k[2];
        k[0] = *reinterpret_cast<const float4*>(keys + j * kPitch + c);
        k[1] = *reinterpret_cast<const float4*>(keys + (j + 32) * kPitch + c);
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int h = 0; h < kIndexHeads; ++h) {
            const float4 f =
                *reinterpret_cast<const float4*>(q + ((i + 8 * r) * kIndexHeads + h) * kPitch + c);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              float& d = dot[r][m][h];
              d = fmaf(f.x, k[m].x, d);
              d = fmaf(f.y, k[m].y, d);
              d = fmaf(f.z, k[m].z, d);
              d = fmaf(f.w, k[m].w, d);
            }
          }
      }
      const float scale = 1.0f / sqrtf(static_cast<float>(kIndexWidth));
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const int row = i + 8 * r, b = key0 + j + 32 * m;
          float score = 0;
#pragma unroll
          for (int h = 0; h < kIndexHeads; ++h) score += fmaxf(dot[r][m][h], 0.0f);
          if (row >= begin && row < end && b < n)
            scores[(row0 + row - first_row) * score_stride + b] = score * scale;
        }
    }
    begin = end;
  }
}

// ---- the choice ----

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;
constexpr int kBins = 2048;
constexpr int kMaxTied = 2048;         // scores of the border's bin that are ranked at once
constexpr int kMaxStaged = 44 * 1024;  // scores kept in shared memory, where there is that much of it

struct Shared {
  int bins[kBins];
  float tied[kMaxTied];
  uint32_t warp_top[kSelectWarps];
  int warp_positive[kSelectWarps], warp_count[kSelectWarps], warp_ties[kSelectWarps];
  int n_tied, border_bin, above_border_bin;
  uint32_t border_bits;
  int take_ties;
};

// The sum of the first `warps` of what every warp of the block has left in `of_warp`.
__device__ __forceinline__ int sum_of_warps(const int* of_warp, int warps) {
  static_assert(kSelectWarps == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return __reduce_add_sync(0xffffffffu, lane < warps ? of_warp[lane] : 0);
}

// The sum of v over the block, in every thread.
__device__ __forceinline__ int block_count(int v, Shared& s) {
  v = __reduce_add_sync(0xffffffffu, v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_count[threadIdx.x / 32] = v;
  __syncthreads();
  return sum_of_warps(s.warp_count, kSelectWarps);
}

// Block of threads t: row t's blocks, ascending.
__global__ void __launch_bounds__(kSelectThreads)
    qsa_choose_kernel(int32_t* chosen, int64_t chosen_stride, int32_t* counts, const float* all_scores,
                      int64_t score_stride, BatchView batch, int64_t first_row, int budget,
                      int staged_floats) {
  extern __shared__ float4 shared4[];
  Shared& s = *reinterpret_cast<Shared*>(shared4);
  float* staged = reinterpret_cast<float*>(&s + 1);
  const int64_t t = first_row + blockIdx.x;
  const int n = complete_blocks(batch, t);  // there before the wait, as in the scores
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  for (int i = tid; i < kBins; i += kSelectThreads) s.bins[i] = 0;
  if (tid == 0) {
    s.n_tied = 0;
    s.border_bin = -1;  // stays where nothing is binned
  }
  pdl_wait();
  pdl_launch();  // after the wait: the attention may read queries, keys and values before its own
  chosen += t * chosen_stride;
  if (tid == 0) counts[t] = min(n, budget);
  // Where all scores are numbers every entry is written again; a NaN must not leave one that is no block.
  for (int i = tid; i < min(n, budget); i += kSelectThreads) chosen[i] = i;
  if (n <= budget) return;
  const float* scores = all_scores + static_cast<int64_t>(blockIdx.x) * score_stride;
  const int n_staged = min(n, staged_floats);
  const auto at = [&](int i) { return i < n_staged ? staged[i] : scores[i]; };

  // 1. Largest score and number of positive ones.
  float top = 0;
  int positive = 0;
  const auto stage = [&](int i, float v) {
    if (i < n_staged) staged[i] = v;
    top = fmaxf(top, v);
    positive += v > 0;
  };
  int next = 0;  // of a long context eight scores a thread at a time
  constexpr int kAhead = 8;
  for (; next + kAhead * kSelectThreads <= n; next += kAhead * kSelectThreads) {
    float v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = scores[next + k * kSelectThreads + tid];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) stage(next + k * kSelectThreads + tid, v[k]);
  }
  for (int i = next + tid; i < n; i += kSelectThreads) stage(i, scores[i]);
  // `top` is no negative number, and those have the order of their bits.
  const uint32_t warp_top = __reduce_max_sync(0xffffffffu, __float_as_uint(top));
  const int warp_positive = __reduce_add_sync(0xffffffffu, positive);
  if (lane == 0) {
    s.warp_top[warp] = warp_top;
    s.warp_positive[warp] = warp_positive;
  }
  __syncthreads();
  top = __uint_as_float(__reduce_max_sync(0xffffffffu, s.warp_top[lane]));
  positive = sum_of_warps(s.warp_positive, kSelectWarps);

  float border = 0;
  int take = 0;  // how many of the scores equal to the border, lowest blocks first
  if (positive < budget) {
    take = budget - positive;
  } else {
    // 2. Multiplying by a positive constant and cutting to an integer keeps order, so bins are ranges of scores.
    const float to_bin = static_cast<float>(kBins) / top;
    const auto bin_of = [&](float v) { return min(static_cast<int>(v * to_bin), kBins - 1); };
    const bool binned = to_bin < 3e38f;  // the largest score may be subnormal
    if (binned) {
      for (int i = tid; i < n; i += kSelectThreads) {
        const float v = at(i);
        if (v > 0) atomicAdd(&s.bins[bin_of(v)], 1);
      }
    }
    __syncthreads();
    {
      // From the highest bin down, two a thread, to the bin in which the count passes the budget.
      static_assert(kBins == 2 * kSelectThreads);
      const int high = kBins - 1 - 2 * tid, first = s.bins[high], both = first + s.bins[high - 1];
      int before = both;
#pragma unroll
      for (int d = 1; d < 32; d <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, before, d);
        if (lane >= d) before += other;
      }
      if (lane == 31) s.warp_count[warp] = before;
      __syncthreads();
      before += sum_of_warps(s.warp_count, warp) - both;
      if (before < budget && before + both >= budget) {
        const bool second = before + first < budget;
        s.border_bin = high - second;
        s.above_border_bin = before + (second ? first : 0);
      }
    }
    __syncthreads();
    const int bin = s.border_bin;
    const int wanted = budget - s.above_border_bin;  // of the border's bin
    const bool ranked = bin >= 0 && s.bins[bin] <= kMaxTied;
    if (ranked) {
      // 3. The wanted-th largest of the bin: the one with fewer than `wanted` above it and at least that many at or above.
      for (int i = tid; i < n; i += kSelectThreads) {
        const float v = at(i);
        if (v > 0 && bin_of(v) == bin) s.tied[atomicAdd(&s.n_tied, 1)] = v;
      }
      __syncthreads();
      for (int i = tid; i < s.n_tied; i += kSelectThreads) {
        const float v = s.tied[i];
        int above = 0, equal = 0;
        for (int j = 0; j < s.n_tied; ++j) {
          above += s.tied[j] > v;
          equal += s.tied[j] == v;
        }
        if (above < wanted && above + equal >= wanted) {  // the same for every copy of the border score
          s.border_bits = __float_as_uint(v);
          s.take_ties = wanted - above;
        }
      }
      __syncthreads();
      border = __uint_as_float(s.border_bits);
      take = s.take_ties;
    } else {
      // Too many in one bin: the border by bisection over the bits of a float, which order as positive floats do.
      uint32_t low = 0, high = __float_as_uint(top);  // at least budget scores are ≥ low
      while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        int count = 0;
        for (int i = tid; i < n; i += kSelectThreads) count += __float_as_uint(at(i)) >= middle;
        if (block_count(count, s) >= budget) {
          low = middle;
        } else {
          high = middle - 1;
        }
        __syncthreads();
      }
      border = __uint_as_float(low);
      int above = 0;
      for (int i = tid; i < n; i += kSelectThreads) above += at(i) > border;
      take = budget - block_count(above, s);
      __syncthreads();  // warp_count is free again, as it is on the other ways here
    }
  }

  // 4. Warp w owns blocks [w·range, (w+1)·range).
  const int range = (n + kSelectThreads - 1) / kSelectThreads * 32;
  const int begin = min(warp * range, n), end = min(begin + range, n);
  int above = 0, equal = 0;
  for (int i = begin + lane; i < end; i += 32) {
    const float v = at(i);
    above += v > border;
    equal += v == border;
  }
  above = __reduce_add_sync(0xffffffffu, above);
  equal = __reduce_add_sync(0xffffffffu, equal);
  if (lane == 0) {
    s.warp_count[warp] = above;
    s.warp_ties[warp] = equal;
  }
  __syncthreads();
  int ties_before = sum_of_warps(s.warp_ties, warp);  // the first `take` of them are written
  int written = sum_of_warps(s.warp_count, warp) + min(ties_before, max(take, 0));
  for (int first = begin; first < end; first += 32) {
    const int i = first + lane;
    const float v = i < end ? at(i) : -1.0f;
    const unsigned below = (1u << lane) - 1u;
    const unsigned tied = __ballot_sync(0xffffffffu, v == border);
    const bool chosen_tie = v == border && ties_before + __popc(tied & below) < take;
    const bool pick = v > border || chosen_tie;
    const unsigned picks = __ballot_sync(0xffffffffu, pick);
    if (pick) chosen[written + __popc(picks & below)] = i;
    written += __popc(picks);
    ties_before += __popc(tied);
  }
}

int staged_scores(Stream& s, int64_t max_blocks) {
  const int64_t room =
      (shared_limit(s) - static_cast<int64_t>(sizeof(Shared))) / static_cast<int64_t>(sizeof(float));
  return static_cast<int>(std::min({max_blocks, room, int64_t{kMaxStaged}}));
}

}  // namespace

void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  QUERN_CHECK(shape.index_heads == kIndexHeads && shape.d_index == kIndexWidth,
              "qsa_select on CUDA: four index heads of 128");
  const int64_t max_blocks = std::max<int64_t>(batch.max_tokens / kBlockTokens, 1);
  const int64_t stride = (max_blocks + 3) / 4 * 4;
  const bool scored = max_blocks > shape.budget_blocks;
  const int staged = scored ? staged_scores(s, max_blocks) : 0;
  const auto choose = [&](Tensor scores, int64_t first, int64_t rows) {
    launch(s, qsa_choose_kernel, dim3(static_cast<unsigned>(rows)), kSelectThreads,
           sizeof(Shared) + sizeof(float) * staged, 1, selection.blocks.as<int32_t>(),
           selection.blocks.row_stride, selection.counts.as<int32_t>(), scored ? scores.as<float>() : nullptr,
           stride, batch, first, shape.budget_blocks, staged);
  };

  const int64_t decode = batch.n_decode_rows;
  if (decode > 0) {
    ScratchScope scope(s);
    Tensor scores;
    if (scored) {
      scores = s.scratch(DType::F32, {decode, stride});
      const auto spread = static_cast<unsigned>(std::max<int64_t>(264 / decode, 8));
      launch(s, qsa_score_decode_kernel, dim3(spread, static_cast<unsigned>(decode)), kScoreThreads, 0, 1,
             scores.as<float>(), stride, qi.as<float>(), qi.row_stride, cache.pooled.as<float>(), batch,
             shape.budget_blocks, cache.shift);
    }
    choose(scores, 0, decode);
  }
  // Prompt rows in pieces, so that scratch does not grow with rows × context.
  constexpr int64_t kScoreFloats = int64_t{32} << 20;
  const int64_t piece =
      scored ? std::max<int64_t>(kScoreFloats / stride / kTileRows * kTileRows, kTileRows) : batch.n_rows;
  for (int64_t first = decode; first < batch.n_rows; first += piece) {
    ScratchScope scope(s);
    const int64_t rows = std::min(piece, batch.n_rows - first);
    Tensor scores;
    if (scored) {
      scores = s.scratch(DType::F32, {rows, stride});
      launch(s, qsa_score_prefill_kernel, dim3(blocks(max_blocks, kTileKeys), blocks(rows, kTileRows)), 256,
             kTileShared, 1, scores.as<float>(), stride, qi.as<float>(), qi.row_stride,
             cache.pooled.as<float>(), batch, first, first + rows, shape.budget_blocks, cache.shift);
    }
    choose(scores, first, rows);
  }
}

}  // namespace quern::cuda

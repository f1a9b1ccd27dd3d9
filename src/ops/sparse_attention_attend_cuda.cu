// qsa_attend. A row's keys are gathered one by one from the pages: its chosen blocks in ascending order, then the tail.
//
// Decode rows, and all rows of a KV type other than BF16: one block of threads a (row, kv head, run of 64 keys) leaves
// the run's maximum, sum and weighted values; a second kernel merges the runs and gates. One row so fills the chip. Runs
// of a BF16 cache are multiplied on tensor cores, queries and weights as two BF16 each (the rounding and what is left):
// 16 bits of them count. Other types are multiplied in float32.
//
// Prefill rows of a BF16 cache: one block a (row, kv head) walks the runs in order with the online softmax, queries and
// weights rounded to BF16. The query heads of the kv head are the 16 rows of the tile; keys and values of a run are
// fetched while the other is multiplied.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/scalar.h"
#include "ops/sparse_attention.h"

namespace quern::cuda {
namespace {

constexpr int kMaxGroup = 16;   // query heads of one kv head
constexpr int kMaxWidth = 256;  // d_head

struct AttendArgs {
  float* y;
  const float* q_gate;
  const uint8_t *k, *v;
  const int32_t* blocks;
  int64_t y_stride, q_stride, block_stride;
  BatchView batch;
  int n_kv, group, d, budget, shift;
  float scale;
};

// The list of a row's keys. All but which blocks are chosen follows from where the row stands, which is known before the
// choice: counts[t] is min(complete blocks, budget) (qsa_select).
struct KeyList {
  const int32_t* blocks;
  const int32_t* pages;
  int shift, n_blocks, tail, size;  // tail: position of the first key after the last complete block
  int end;                          // entries of the pages at or beyond it are not the row's
  bool chosen;                      // the blocks are not simply all of them (else `blocks` is not read)

  __device__ __forceinline__ KeyList(const AttendArgs& a, int64_t t) {
    const Segment& segment = a.batch.segments[a.batch.segment_of[t]];
    const int visible = segment.role == Role::Pad ? 0 : a.batch.positions[t] + 1;
    const int complete = visible / kBlockTokens;
    blocks = a.blocks + t * a.block_stride;
    pages = a.batch.page_tables + segment.page_table;
    shift = a.shift;
    n_blocks = min(complete, a.budget);
    tail = complete * kBlockTokens;
    size = n_blocks * kBlockTokens + visible - tail;
    end = visible + shift;
    chosen = complete > a.budget;
  }
  // Where entry i of the list lies in the pages.
  __device__ __forceinline__ int entry(int i) const {
    const int b = i / kBlockTokens;
    if (b >= n_blocks) return tail + i - n_blocks * kBlockTokens + shift;
    return (chosen ? blocks[b] : b) * kBlockTokens + i % kBlockTokens + shift;
  }
  // Row of K or V (a row is d elements) of entry i for one kv head.
  __device__ __forceinline__ int64_t row(int i, int kv, int n_kv) const {
    const int at = entry(i);
    return (int64_t{pages[at / kPageTokens]} * n_kv + kv) * kPageTokens + at % kPageTokens;
  }
};

// ---- runs on float32 ----

constexpr int kRunThreads = 256;

// Eight neighbouring elements, at an offset in elements.
template <typename T>
__device__ __forceinline__ void load8(float (&f)[8], const uint8_t* base, int64_t at) {
  if constexpr (sizeof(T) == 4) {
    const float4* p = reinterpret_cast<const float4*>(reinterpret_cast<const float*>(base) + at);
    const float4 a = p[0], b = p[1];
    f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
  } else {
    const uint4 u = *reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(base) + at);
    const T* e = reinterpret_cast<const T*>(&u);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = static_cast<float>(e[i]);
  }
}

// Block (run, kv head, row): scores by warps over keys, values by threads over dimensions.
template <typename T, int kGroup>
__global__ void __launch_bounds__(kRunThreads)
    qsa_run_kernel(const __grid_constant__ AttendArgs a, float* part_o, float* part_ml, int64_t first_row,
                   int max_runs) {
  __shared__ int64_t rows[kRunTokens];
  __shared__ float p[kGroup][kRunTokens];
  pdl_wait();
  pdl_launch();  // after the wait: the merge may read what was there before this kernel
  const int run = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y);
  const int64_t t = first_row + blockIdx.z;
  const KeyList list(a, t);
  const int n = min(kRunTokens, list.size - run * kRunTokens);
  if (n <= 0) return;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, d = a.d;
  if (tid < n) rows[tid] = list.row(run * kRunTokens + tid, kv, a.n_kv);
  __syncthreads();

  const bool holds = lane * 8 < d;
  float q[kGroup][8];
#pragma unroll
  for (int g = 0; g < kGroup; ++g)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      q[g][i] =
          holds && g < a.group ? a.q_gate[t * a.q_stride + (kv * a.group + g) * 2 * d + lane * 8 + i] : 0.0f;
  for (int j = warp; j < n; j += kRunThreads / 32) {
    float key[8] = {};
    if (holds) load8<T>(key, a.k, rows[j] * d + lane * 8);
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = fmaf(q[g][i], key[i], dot);
      dot = warp_sum(dot);
      if (lane == 0) p[g][j] = dot * a.scale;
    }
  }
  __syncthreads();
  const int64_t head0 = ((blockIdx.z * max_runs + run) * int64_t{a.n_kv} + kv) * a.group;
  for (int g = warp; g < a.group; g += kRunThreads / 32) {
    const float s0 = lane < n ? p[g][lane] : -INFINITY, s1 = lane + 32 < n ? p[g][lane + 32] : -INFINITY;
    const float m = warp_max(fmaxf(s0, s1));
    const float e0 = lane < n ? expf(s0 - m) : 0.0f, e1 = lane + 32 < n ? expf(s1 - m) : 0.0f;
    p[g][lane] = e0;
    p[g][lane + 32] = e1;
    const float l = warp_sum(e0 + e1);
    if (lane == 0) {
      part_ml[(head0 + g) * 2] = m;
      part_ml[(head0 + g) * 2 + 1] = l;
    }
  }
  __syncthreads();
  if (tid >= d) return;
  float o[kGroup] = {};
  const T* values = reinterpret_cast<const T*>(a.v);
#pragma unroll 8
  for (int j = 0; j < n; ++j) {
    const float value = static_cast<float>(values[rows[j] * d + tid]);
#pragma unroll
    for (int g = 0; g < kGroup; ++g) o[g] = fmaf(p[g][j], value, o[g]);
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g)
    if (g < a.group) part_o[(head0 + g) * d + tid] = o[g];
}

// Block (query head, row). Four groups of threads take every fourth run, four dimensions a thread.
constexpr int kMergeThreads = 256, kMergeGroups = 4;
constexpr int kMergeAhead = 9;  // a group's values on their way at once: all, with the release's budget

__global__ void __launch_bounds__(kMergeThreads)
    qsa_merge_kernel(const __grid_constant__ AttendArgs a, const float* part_o, const float* part_ml,
                     int64_t first_row, int max_runs) {
  extern __shared__ float4 shared4[];
  float2* fl = reinterpret_cast<float2*>(shared4);  // [max_runs], a run's factor and sum
  __shared__ float4 part[kMergeGroups][kMaxWidth / 4];
  // The runs' kernel starts this one after its own wait, so the gate is there.
  const int64_t t = first_row + blockIdx.y;
  const int head = static_cast<int>(blockIdx.x), n_heads = static_cast<int>(gridDim.x),
            tid = static_cast<int>(threadIdx.x);
  const KeyList list(a, t);
  const int runs = (list.size + kRunTokens - 1) / kRunTokens;
  const float gate =
      tid < a.d ? scalar::sigmoid(a.q_gate[t * a.q_stride + head * 2 * a.d + a.d + tid]) : 0.0f;
  const int64_t at0 = blockIdx.y * int64_t{max_runs} * n_heads + head;
  const auto max_and_sum = [&](int r) {
    return *reinterpret_cast<const float2*>(part_ml + (at0 + int64_t{r} * n_heads) * 2);
  };
  const int group = tid / (kMergeThreads / kMergeGroups), column = tid % (kMergeThreads / kMergeGroups);
  const auto values = [&](int r) {
    return *reinterpret_cast<const float4*>(part_o + (at0 + int64_t{r} * n_heads) * a.d + 4 * column);
  };
  pdl_wait();
  pdl_launch();  // after the wait: the product that follows streams weights, which keys and values go before
  // The first values, and every warp for itself the largest of the maxima: one load's time.
  const int mine = 4 * column < a.d ? runs : 0;
  float4 v[kMergeAhead];
#pragma unroll
  for (int i = 0; i < kMergeAhead; ++i)
    if (const int r = group + i * kMergeGroups; r < mine) v[i] = values(r);
  const int lane = tid % 32;
  const float m0 = lane < runs ? max_and_sum(lane).x : -INFINITY,
              m1 = lane + 32 < runs ? max_and_sum(lane + 32).x : -INFINITY;
  float top = fmaxf(m0, m1);
#pragma unroll 1
  for (int r = lane + 64; r < runs; r += 32) top = fmaxf(top, max_and_sum(r).x);
  top = warp_max(top);
#pragma unroll 1
  for (int r = tid; r < runs; r += kMergeThreads) {
    const float2 ml = max_and_sum(r);
    fl[r] = make_float2(expf(ml.x - top), ml.y);
  }
  __syncthreads();
  float4 o = make_float4(0, 0, 0, 0);
  const auto add = [&](const float4& value, float f) {
    o.x = fmaf(value.x, f, o.x);
    o.y = fmaf(value.y, f, o.y);
    o.z = fmaf(value.z, f, o.z);
    o.w = fmaf(value.w, f, o.w);
  };
#pragma unroll
  for (int i = 0; i < kMergeAhead; ++i)
    if (const int r = group + i * kMergeGroups; r < mine) add(v[i], fl[r].x);
#pragma unroll 1
  for (int r = group + kMergeAhead * kMergeGroups; r < mine; r += kMergeGroups) add(values(r), fl[r].x);
  if (4 * column < a.d) part[group][column] = o;
  float l = 0;
#pragma unroll 8
  for (int r = 0; r < runs; ++r) l = fmaf(fl[r].y, fl[r].x, l);
  __syncthreads();
  if (tid >= a.d) return;
  float sum = 0;
#pragma unroll
  for (int q = 0; q < kMergeGroups; ++q) sum += reinterpret_cast<const float*>(part[q])[tid];
  a.y[t * a.y_stride + head * a.d + tid] = list.size > 0 ? sum / l * gate : 0.0f;
}

// ---- runs on tensor cores ----

constexpr int kTileThreads = 128;
constexpr int kWidth = 256;
constexpr int kPitch = kWidth + 8;  // BF16s: rows start in different banks
constexpr int kPPitch = kRunTokens + 8;
constexpr int kSPitch = kRunTokens + 4;

// Two BF16 whose sum is a float's first 16 bits.
__device__ __forceinline__ void split_bf16(float v, __nv_bfloat16& high, __nv_bfloat16& low) {
  high = __float2bfloat16_rn(v);
  low = __float2bfloat16_rn(v - __bfloat162float(high));
}

struct RunShared {
  __nv_bfloat16 k[kRunTokens][kPitch], v[kRunTokens][kPitch];
  __nv_bfloat16 q[2][16][kPitch], p[2][16][kPPitch];
  float s[16][kSPitch];
};

// Block (run, kv head, row): one run of a decode row. Warp w fetches and multiplies keys 16w … 16w + 15.
//
// From the choice to the first key there are two steps, the block's number and the key: where the list ends follows from
// the row's position, and the row's page table lies in shared memory by then. Where all blocks are chosen, keys and values
// are fetched before the choice has ended.
__global__ void __launch_bounds__(kTileThreads)
    qsa_run_tile_kernel(const __grid_constant__ AttendArgs a, float* part_o, float* part_ml,
                        int64_t first_row, int max_runs) {
  extern __shared__ float4 shared4[];
  RunShared& sh = *reinterpret_cast<RunShared*>(shared4);
  const int run = static_cast<int>(blockIdx.x), kv = static_cast<int>(blockIdx.y);
  const int64_t t = first_row + blockIdx.z;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, c = lane % 4;
  // The choice starts this kernel after its own wait, so queries, positions, keys and values are there.
  const KeyList list(a, t);
  const int n = min(kRunTokens, list.size - run * kRunTokens);
  if (n <= 0) {
    pdl_wait();
    return;
  }
  int32_t* table = reinterpret_cast<int32_t*>(sh.v);  // of pages, until values come
  constexpr int kTablePages = sizeof(sh.v) / sizeof(int32_t);
  if (list.chosen) {
    const int n_pages = min((list.end + kPageTokens - 1) / kPageTokens, kTablePages);
#pragma unroll 4
    for (int i = tid; i < n_pages; i += kTileThreads) table[i] = list.pages[i];
  }
  const float* q = a.q_gate + t * a.q_stride + kv * a.group * 2 * kWidth;
  for (int i = tid; i < 16 * kWidth / 4; i += kTileThreads) {
    const int head = i / (kWidth / 4), dim = i % (kWidth / 4) * 4;
    float4 f = make_float4(0, 0, 0, 0);
    if (head < a.group) f = *reinterpret_cast<const float4*>(q + head * 2 * kWidth + dim);
    const float v[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) split_bf16(v[e], sh.q[0][head][dim + e], sh.q[1][head][dim + e]);
  }
  __syncthreads();
  if (list.chosen) {
    pdl_wait();
    pdl_launch();  // after the wait: the merge reads queries and positions before its own
  }
  // A lane finds the row of its key; 32 bits count the rows, 512 bytes each, of any memory.
  int row = 0;
  if (const int j = 16 * warp + lane % 16; j < n) {
    const int at = list.entry(run * kRunTokens + j), page = at / kPageTokens;
    const int id = list.chosen && page < kTablePages ? table[page] : list.pages[page];
    row = (id * a.n_kv + kv) * kPageTokens + at % kPageTokens;
  }
  const auto fetch = [&](__nv_bfloat16(*to)[kPitch], const uint8_t* from) {
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      const int j = 16 * warp + r;
      const int64_t at = int64_t{__shfl_sync(0xffffffffu, row, r)} * kWidth + 8 * lane;
      cp_async16(&to[j][8 * lane], reinterpret_cast<const __nv_bfloat16*>(from) + at, j < n);
    }
    cp_async_commit();
  };
  fetch(sh.k, a.k);
  __syncthreads();  // every warp has done with the table
  fetch(sh.v, a.v);
  if (!list.chosen) {
    pdl_wait();
    pdl_launch();
  }
  cp_async_wait<1>();
  __syncwarp();  // its keys are this warp's own copies
  // Scores of keys 16·warp … 16·warp + 15.
  // Sums of the queries' two parts, and of even and odd steps, run beside each other: a product waits for the one before it
  // of its sum, some 30 cycles.
  float part[2][2][2][4] = {};  // [step % 2][high, low][tile]
#pragma unroll 4
  for (int step = 0; step < kWidth / 16; ++step) {
    uint32_t b[4], high[4], low[4];
    ldmatrix4(b, &sh.k[16 * warp + lane / 16 * 8 + lane % 8][16 * step + lane / 8 % 2 * 8]);
    ldmatrix4(high, &sh.q[0][lane % 16][16 * step + lane / 16 * 8]);
    ldmatrix4(low, &sh.q[1][lane % 16][16 * step + lane / 16 * 8]);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      auto& sum = part[step % 2];
      mma_bf16(sum[0][tile], high[0], high[1], high[2], high[3], b[2 * tile], b[2 * tile + 1]);
      mma_bf16(sum[1][tile], low[0], low[1], low[2], low[3], b[2 * tile], b[2 * tile + 1]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float dot =
          (part[0][0][tile][i] + part[1][0][tile][i]) + (part[0][1][tile][i] + part[1][1][tile][i]);
      sh.s[g + 8 * (i / 2)][16 * warp + 8 * tile + 2 * c + i % 2] = dot * a.scale;
    }
  __syncthreads();
  const int64_t head0 = ((blockIdx.z * max_runs + run) * int64_t{a.n_kv} + kv) * a.group;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = 4 * warp + i;
    const float s0 = lane < n ? sh.s[head][lane] : -INFINITY,
                s1 = lane + 32 < n ? sh.s[head][lane + 32] : -INFINITY;
    const float m = warp_max(fmaxf(s0, s1));
    const float e0 = lane < n ? expf(s0 - m) : 0.0f, e1 = lane + 32 < n ? expf(s1 - m) : 0.0f;
    split_bf16(e0, sh.p[0][head][lane], sh.p[1][head][lane]);
    split_bf16(e1, sh.p[0][head][lane + 32], sh.p[1][head][lane + 32]);
    const float l = warp_sum(e0 + e1);
    if (lane == 0 && head < a.group)
      *reinterpret_cast<float2*>(part_ml + (head0 + head) * 2) = make_float2(m, l);
  }
  cp_async_wait<0>();
  __syncthreads();
  // Values of dimensions 64·warp … 64·warp + 63.
  float o[8][4] = {};
#pragma unroll
  for (int step = 0; step < kRunTokens / 16; ++step) {
    uint32_t high[4], low[4];
    ldmatrix4(high, &sh.p[0][lane % 16][16 * step + lane / 16 * 8]);
    ldmatrix4(low, &sh.p[1][lane % 16][16 * step + lane / 16 * 8]);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t b[4];
      ldmatrix4_trans(b,
                      &sh.v[16 * step + lane / 8 % 2 * 8 + lane % 8][64 * warp + 16 * pair + lane / 16 * 8]);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        mma_bf16(o[2 * pair + tile], high[0], high[1], high[2], high[3], b[2 * tile], b[2 * tile + 1]);
        mma_bf16(o[2 * pair + tile], low[0], low[1], low[2], low[3], b[2 * tile], b[2 * tile + 1]);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < 8; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = g + 8 * half, dim = 64 * warp + 8 * tile + 2 * c;
      if (head < a.group)
        *reinterpret_cast<float2*>(part_o + (head0 + head) * kWidth + dim) =
            make_float2(o[tile][2 * half], o[tile][2 * half + 1]);
    }
}

struct TileShared {
  __nv_bfloat16 k[kRunTokens][kPitch], v[kRunTokens][kPitch];
  __nv_bfloat16 p[16][kPPitch];
  float s[16][kSPitch];
  float before[16], l[16], m[16];
  int64_t rows[2][kRunTokens];
};

__device__ __forceinline__ void fetch_tile(__nv_bfloat16 (*to)[kPitch], const uint8_t* from,
                                           const int64_t* rows, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < kRunTokens * (kWidth / 8); i += kTileThreads) {
    const int j = i / (kWidth / 8), c = i % (kWidth / 8) * 8;
    const bool valid = j < n;
    cp_async16(&to[j][c], reinterpret_cast<const __nv_bfloat16*>(from) + (valid ? rows[j] * kWidth + c : 0),
               valid);
  }
  cp_async_commit();
}

// Block (kv head, row).
__global__ void __launch_bounds__(kTileThreads)
    qsa_tile_kernel(const __grid_constant__ AttendArgs a, int64_t first_row) {
  extern __shared__ float4 shared4[];
  TileShared& sh = *reinterpret_cast<TileShared*>(shared4);
  pdl_launch();
  pdl_wait();
  const int kv = static_cast<int>(blockIdx.x);
  const int64_t t = first_row + blockIdx.y;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, c = lane % 4;
  const KeyList list(a, t);
  float* y = a.y + t * a.y_stride + kv * a.group * kWidth;
  if (list.size == 0) {
    for (int i = tid; i < a.group * kWidth; i += kTileThreads) y[i] = 0;
    return;
  }
  const float* q = a.q_gate + t * a.q_stride + kv * a.group * 2 * kWidth;
  uint32_t qa[kWidth / 16][4];
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + 8 * (i % 2), dim = 16 * step + 2 * c + 8 * (i / 2);
      const float* from = q + head * 2 * kWidth + dim;
      qa[step][i] = head < a.group ? pack_bf16(from[0], from[1]) : 0u;
    }
  if (tid < 16) {
    sh.m[tid] = -INFINITY;
    sh.l[tid] = 0;
  }
  const auto find_rows = [&](int run) {
    const int i = run * kRunTokens + tid;
    if (tid < kRunTokens && i < list.size) sh.rows[run % 2][tid] = list.row(i, kv, a.n_kv);
  };
  const auto size_of = [&](int run) { return min(kRunTokens, list.size - run * kRunTokens); };
  const int runs = (list.size + kRunTokens - 1) / kRunTokens;
  find_rows(0);
  __syncthreads();
  fetch_tile(sh.k, a.k, sh.rows[0], size_of(0));
  fetch_tile(sh.v, a.v, sh.rows[0], size_of(0));

  float o[8][4] = {};
  for (int run = 0; run < runs; ++run) {
    const int n = size_of(run);
    cp_async_wait<1>();
    __syncthreads();
    // Scores of keys 16·warp … 16·warp + 15.
    float s[2][4] = {};
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
      uint32_t b[4];
      ldmatrix4(b, &sh.k[16 * warp + lane / 16 * 8 + lane % 8][16 * step + lane / 8 % 2 * 8]);
      mma_bf16(s[0], qa[step][0], qa[step][1], qa[step][2], qa[step][3], b[0], b[1]);
      mma_bf16(s[1], qa[step][0], qa[step][1], qa[step][2], qa[step][3], b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sh.s[g + 8 * (i / 2)][16 * warp + 8 * tile + 2 * c + i % 2] = s[tile][i] * a.scale;
    if (run + 1 < runs) find_rows(run + 1);
    __syncthreads();
    if (run + 1 < runs) {
      fetch_tile(sh.k, a.k, sh.rows[(run + 1) % 2], size_of(run + 1));
    } else {
      cp_async_commit();
    }
    for (int head = 4 * warp; head < 4 * warp + 4; ++head) {
      const float s0 = lane < n ? sh.s[head][lane] : -INFINITY,
                  s1 = lane + 32 < n ? sh.s[head][lane + 32] : -INFINITY;
      const float m = sh.m[head], top = fmaxf(m, warp_max(fmaxf(s0, s1)));
      const float e0 = lane < n ? expf(s0 - top) : 0.0f, e1 = lane + 32 < n ? expf(s1 - top) : 0.0f;
      const float l = warp_sum(e0 + e1);
      sh.p[head][lane] = __float2bfloat16_rn(e0);
      sh.p[head][lane + 32] = __float2bfloat16_rn(e1);
      __syncwarp();
      if (lane == 0) {
        sh.before[head] = expf(m - top);
        sh.l[head] = sh.l[head] * sh.before[head] + l;
        sh.m[head] = top;
      }
    }
    cp_async_wait<1>();
    __syncthreads();
    // Values of dimensions 64·warp … 64·warp + 63.
    const float before0 = sh.before[g], before1 = sh.before[g + 8];
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      o[tile][0] *= before0;
      o[tile][1] *= before0;
      o[tile][2] *= before1;
      o[tile][3] *= before1;
    }
#pragma unroll
    for (int step = 0; step < kRunTokens / 16; ++step) {
      uint32_t pa[4];
      ldmatrix4(pa, &sh.p[lane % 16][16 * step + lane / 16 * 8]);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t b[4];
        ldmatrix4_trans(
            b, &sh.v[16 * step + lane / 8 % 2 * 8 + lane % 8][64 * warp + 16 * pair + lane / 16 * 8]);
        mma_bf16(o[2 * pair], pa[0], pa[1], pa[2], pa[3], b[0], b[1]);
        mma_bf16(o[2 * pair + 1], pa[0], pa[1], pa[2], pa[3], b[2], b[3]);
      }
    }
    __syncthreads();
    if (run + 1 < runs) {
      fetch_tile(sh.v, a.v, sh.rows[(run + 1) % 2], size_of(run + 1));
    } else {
      cp_async_commit();
    }
  }
#pragma unroll
  for (int tile = 0; tile < 8; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + 8 * (i / 2), dim = 64 * warp + 8 * tile + 2 * c + i % 2;
      if (head >= a.group) continue;
      const float gate = q[head * 2 * kWidth + kWidth + dim];
      y[head * kWidth + dim] = o[tile][i] / sh.l[head] * scalar::sigmoid(gate);
    }
}

template <typename T>
auto run_kernel(int group) {
  if (group <= 4) return qsa_run_kernel<T, 4>;
  if (group <= 12) return qsa_run_kernel<T, 12>;
  return qsa_run_kernel<T, kMaxGroup>;
}

}  // namespace

void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  AttendArgs a{};
  a.y = y.as<float>();
  a.q_gate = q_gate.as<float>();
  a.k = reinterpret_cast<const uint8_t*>(cache.k.data);
  a.v = reinterpret_cast<const uint8_t*>(cache.v.data);
  a.blocks = selection.blocks.as<int32_t>();
  a.y_stride = y.row_stride;
  a.q_stride = q_gate.row_stride;
  a.block_stride = selection.blocks.row_stride;
  a.batch = batch;
  a.n_kv = shape.n_kv;
  a.group = shape.n_heads / shape.n_kv;
  a.d = shape.d_head;
  a.budget = shape.budget_blocks;
  a.shift = cache.shift;
  a.scale = 1.0f / sqrtf(static_cast<float>(shape.d_head));
  QUERN_CHECK(a.group <= kMaxGroup && a.d <= kMaxWidth && a.d % 8 == 0,
              "qsa_attend on CUDA: at most 16 query heads a kv head, d_head a multiple of 8 up to 256");

  const DType kv = cache.k.dtype;
  const bool tiles = kv == DType::BF16 && a.d == kWidth;
  const int64_t longest = std::min<int64_t>(int64_t{shape.budget_blocks} * kBlockTokens + kBlockTokens - 1,
                                            std::max<int64_t>(batch.max_tokens, 1));
  const int max_runs = ceil_div(longest, kRunTokens);
  const auto run_kernel_of = tiles               ? qsa_run_tile_kernel
                             : kv == DType::F32  ? run_kernel<float>(a.group)
                             : kv == DType::BF16 ? run_kernel<__nv_bfloat16>(a.group)
                                                 : run_kernel<__half>(a.group);
  constexpr int64_t kPieceRows = 64;  // bounds the scratch of the runs
  const int64_t end = tiles ? batch.n_decode_rows : batch.n_rows;
  for (int64_t first = 0; first < end;) {
    const int64_t rows = std::min(kPieceRows, end - first);
    ScratchScope scope(s);
    const Tensor o = s.scratch(DType::F32, {rows * max_runs * shape.n_heads, a.d});
    const Tensor ml = s.scratch(DType::F32, {rows * max_runs * shape.n_heads, 2});
    launch(s, run_kernel_of,
           dim3(static_cast<unsigned>(max_runs), static_cast<unsigned>(a.n_kv), static_cast<unsigned>(rows)),
           tiles ? kTileThreads : kRunThreads, tiles ? sizeof(RunShared) : 0, 1, a, o.as<float>(),
           ml.as<float>(), first, max_runs);
    launch(s, qsa_merge_kernel, dim3(static_cast<unsigned>(shape.n_heads), static_cast<unsigned>(rows)),
           kMergeThreads, sizeof(float) * 2 * static_cast<size_t>(max_runs), 1, a, o.as<float>(),
           ml.as<float>(), first, max_runs);
    first += rows;
  }
  // Grid dimensions y and z end at 65535.
  constexpr int64_t kGridRows = 32768;
  for (int64_t first = end; first < batch.n_rows; first += kGridRows) {
    const int64_t rows = std::min(kGridRows, batch.n_rows - first);
    launch(s, qsa_tile_kernel, dim3(static_cast<unsigned>(a.n_kv), static_cast<unsigned>(rows)), kTileThreads,
           sizeof(TileShared), 1, a, first);
  }
}

}  // namespace quern::cuda

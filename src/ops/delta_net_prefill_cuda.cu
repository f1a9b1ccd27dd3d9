// The delta net for prompt rows, in chunks of 64 at absolute multiples of 64 positions (the WY form of the
// gated delta rule; Yang, Kautz, Hatamizadeh 2024, §3). With G_i = g_1 + … + g_i within a chunk and
//   A_ij = beta_i exp(G_i - G_j) k_i·k_j   (j < i)       P_ij = exp(G_i - G_j) q_i·k_j   (j ≤ i)
//   U = (I + A)^-1 (beta V)          W = (I + A)^-1 (beta exp(G) K)
// everything but M is known before the sequence is walked. The walk does what must be done in order, chunk after chunk,
//   V' = U - W M                     M = exp(G_C) M + (exp(G_C - G) K)ᵀ V'
// and leaves V' and the M each chunk began with; then for all chunks at once
//   O = exp(G) Q M + P V'            y = norm ⊙ O / rms(O) ⊙ gate(z)
// Rows missing from a chunk are zeros (k = q = v = 0, beta = 0, g = 0), so a row does not depend on what
// follows it. The inverse is a substitution, a column a thread; the products are TF32 split in two, so all of it
// has float32's accuracy.
#include "ops/cuda/delta_net_launch.cuh"
#include "ops/cuda/mma.cuh"

namespace quern::cuda {
namespace {

constexpr int kChunk = 64, kThreads = 256;

struct Chunk {
  int32_t row, n_rows, segment, unused;  // n_rows 0: no chunk
};
struct ChunkList {
  Chunk* chunks;
  int2* of_segment;  // first chunk and number of chunks
  int32_t max_chunks;
};

// Scratch of one step: rows of q | k | v normalised, log decays and betas by row; the rest by (chunk, head).
struct Work {
  float* c;
  float* g;      // [T, n_v]
  float* beta;   // [T, n_v]
  float* big_g;  // [chunks, n_v, 64]
  float* u;      // [chunks, n_v, 64, 128], then V'
  float* w;
  float* p;  // [chunks, n_v, 64, 64]
  float* m;  // [chunks, n_v, 128, 128]: M before the chunk
  ChunkList list;
  int32_t first_row;  // of the prompt rows: row t lies at t - first_row
};

// A thread's part of 16 rows and 8 · N columns, where mma.sync leaves a result; `at` is its first value, rows lie kHeadDim
// apart.
template <int N>
__device__ __forceinline__ void load_result(float (&r)[N][4], const float* at) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const float2 f = *reinterpret_cast<const float2*>(at + 4 * e * kHeadDim + 8 * j);
      r[j][e] = f.x;
      r[j][e + 1] = f.y;
    }
  }
}

__global__ void chunk_list_kernel(const __grid_constant__ DeltaView d, ChunkList list) {
  pdl_launch();
  pdl_wait();
  for (int i = threadIdx.x; i < list.max_chunks; i += blockDim.x) list.chunks[i] = {0, 0, 0, 0};
  __syncthreads();
  if (threadIdx.x == 0) {
    int at = 0;
    for (int i = 0; i < d.batch.n_segments; ++i) {
      const Segment s = d.batch.segments[i];
      int n = 0;
      if (s.role == Role::Prefill && s.n_rows > 0) {
        n = (s.position + s.n_rows + kChunk - 1) / kChunk - s.position / kChunk;
      }
      list.of_segment[i] = make_int2(at, n);
      at += n;
    }
  }
  __syncthreads();
  for (int i = 0; i < d.batch.n_segments; ++i) {
    const int2 range = list.of_segment[i];
    const Segment s = d.batch.segments[i];
    const int base = s.position / kChunk * kChunk;
    for (int j = threadIdx.x; j < range.y; j += blockDim.x) {
      const int begin = max(base + j * kChunk, s.position),
                end = min(base + (j + 1) * kChunk, s.position + s.n_rows);
      list.chunks[range.x + j] = {s.row + begin - s.position, end - begin, i, 0};
    }
  }
}

constexpr int kConvRows = 16;

// Block (rows, heads): a warp walks kConvRows rows of one head, four channels a lane, with the three rows before in
// registers: convolution, silu, l2 norms. The last block of a row group does its decays and betas.
__global__ __launch_bounds__(kThreads) void delta_conv_kernel(const __grid_constant__ DeltaView d,
                                                              Work work) {
  pdl_launch();
  pdl_wait();
  const int lane = threadIdx.x % 32;
  const int first = work.first_row + static_cast<int>(blockIdx.x) * kConvRows,
            end = min(first + kConvRows, static_cast<int>(d.batch.n_rows));
  if (blockIdx.y + 1 == gridDim.y) {
    for (int i = threadIdx.x; i < (end - first) * d.n_v; i += kThreads) {
      const int t = first + i / d.n_v, h = i % d.n_v;
      if (d.batch.segments[d.batch.segment_of[t]].role != Role::Prefill) continue;
      work.g[int64_t{t - work.first_row} * d.n_v + h] = d.decay_of(t, h);
      work.beta[int64_t{t - work.first_row} * d.n_v + h] = d.beta_of(t, h);
    }
    return;
  }
  const int h = static_cast<int>(blockIdx.y) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (h >= 2 * d.n_k + d.n_v) return;
  const int channel = h * kHeadDim + 4 * lane;
  float4 taps[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) taps[i] = *reinterpret_cast<const float4*>(d.conv + (int64_t{channel} + i) * 4);
  float4 x[4];  // rows t - 3 … t
  int current = -1;
  Segment segment;
  for (int t = first; t < end; ++t) {
    const int of = d.batch.segment_of[t];
    if (of != current) {
      current = of;
      segment = d.batch.segments[of];
#pragma unroll
      for (int back = 3; back > 0; --back) x[4 - back] = d.input(segment, t - back, channel);
    }
    if (segment.role != Role::Prefill) continue;
    x[0] = x[1], x[1] = x[2], x[2] = x[3];
    x[3] = d.input(segment, t, channel);
    float v[4], squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto part = [&](const float4& f) { return i == 0 ? f.x : i == 1 ? f.y : i == 2 ? f.z : f.w; };
      float sum = taps[i].x * part(x[0]);
      sum = fmaf(taps[i].y, part(x[1]), sum);
      sum = fmaf(taps[i].z, part(x[2]), sum);
      sum = fmaf(taps[i].w, part(x[3]), sum);
      v[i] = scalar::silu(sum);
      squares = fmaf(v[i], v[i], squares);
    }
    float scale = 1;
    if (h < 2 * d.n_k) {
      scale = rsqrtf(warp_sum(squares) + 1e-6f);
      if (h < d.n_k) scale /= sqrtf(static_cast<float>(kHeadDim));
    }
    *reinterpret_cast<float4*>(work.c + (t - work.first_row) * d.channels() + channel) =
        make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
  }
}

// Pending rows of a prompt segment go into M first.
__global__ __launch_bounds__(kStateThreads) void delta_replay_kernel(const __grid_constant__ DeltaView d) {
  pdl_launch();
  pdl_wait();
  __shared__ float part[8 * kHeadDim], kv[2 * kHeadDim];
  const Segment segment = d.batch.segments[blockIdx.y];
  if (segment.role != Role::Prefill || segment.n_pending == 0) return;
  const int head = static_cast<int>(blockIdx.x);
  float m[32];
  float* M = d.state(segment.slot, head);
  load_state<kHeadDim>(m, M, 0);
  Pending<kHeadDim> pending;
  pending.load(d, segment.slot, head, 0, 0);
  replay<kHeadDim>(m, d, segment.slot, head, 0, segment.n_pending, pending, kv, part);
  store_state<kHeadDim>(m, M, 0);
}

// Rows of tiles in shared memory, in floats: read across for A (kLd, kLdP) or down a column (kLdT, kLdM
// of the walk) no bank is met
// twice.
constexpr int kLd = 132, kLdT = 136, kLdP = 68;

// What TF32 keeps of a float, by cutting; the rest of it is exact in a float. (Rounding would take a conversion for each,
// at a sixteenth of the rate of these two.)
__device__ __forceinline__ void split(float f, uint32_t& high, uint32_t& low) {
  high = __float_as_uint(f) & 0xffffe000u;
  low = __float_as_uint(f - __uint_as_float(high));
}

// acc += A B for one m16 tile and kN n8 tiles: A(m, k) = a[m·am + k·ak], B(k, n) = b[k·bk + n·bn].
// The products of what
// TF32 drops are added, for float32's accuracy.
template <int kN>
__device__ __forceinline__ void mma_block(float (&acc)[kN][4], const float* a, int am, int ak, const float* b,
                                          int bk, int bn, int depth) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const float *a0 = a + g * am + t * ak, *a1 = a0 + 8 * am, *b0 = b + t * bk + g * bn;
#pragma unroll 4
  for (int k = 0; k < depth; k += 8) {
    uint32_t ah[4], al[4];
    split(a0[k * ak], ah[0], al[0]);
    split(a1[k * ak], ah[1], al[1]);
    split(a0[(k + 4) * ak], ah[2], al[2]);
    split(a1[(k + 4) * ak], ah[3], al[3]);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      uint32_t h0, h1, l0, l1;
      split(b0[k * bk + 8 * j * bn], h0, l0);
      split(b0[(k + 4) * bk + 8 * j * bn], h1, l1);
      mma_tf32(acc[j], al, h0, h1);
      mma_tf32(acc[j], ah, l0, l1);
      mma_tf32(acc[j], ah, h0, h1);
    }
  }
}

constexpr int kChunkShared = (2 * kChunk * kLd + kChunk * kChunk + 3 * kChunk) * 4;

// Block (head, chunk): U, W and P.
__global__ __launch_bounds__(kThreads) void delta_chunk_kernel(const __grid_constant__ DeltaView d,
                                                               Work work) {
  extern __shared__ __align__(16) float shared[];
  pdl_launch();
  pdl_wait();
  float* k = shared;
  float* q = k + kChunk * kLd;
  float* a = q + kChunk * kLd;  // [64][64]
  float* big_g = a + kChunk * kChunk;
  float* beta = big_g + kChunk;
  float* exp_g = beta + kChunk;
  const Chunk chunk = work.list.chunks[blockIdx.y];
  if (chunk.n_rows == 0) return;
  const int head = static_cast<int>(blockIdx.x), key_head = d.key_head(head), tid = threadIdx.x;
  const int64_t row0 = chunk.row - work.first_row;
  const float* c = work.c + row0 * d.channels();
  for (int i = tid; i < kChunk * kHeadDim / 4; i += kThreads) {
    const int r = i / (kHeadDim / 4), f = i % (kHeadDim / 4) * 4;
    const float* row = c + r * d.channels() + f;
    const bool in = r < chunk.n_rows;
    const float4 zero = make_float4(0, 0, 0, 0);
    *reinterpret_cast<float4*>(q + r * kLd + f) =
        in ? *reinterpret_cast<const float4*>(row + key_head * kHeadDim) : zero;
    *reinterpret_cast<float4*>(k + r * kLd + f) =
        in ? *reinterpret_cast<const float4*>(row + (d.n_k + key_head) * kHeadDim) : zero;
  }
  if (tid < kChunk) {
    big_g[tid] = tid < chunk.n_rows ? work.g[(row0 + tid) * d.n_v + head] : 0.0f;
    beta[tid] = tid < chunk.n_rows ? work.beta[(row0 + tid) * d.n_v + head] : 0.0f;
  }
  __syncthreads();
  const int64_t at = int64_t{blockIdx.y} * d.n_v + head;
  if (tid < 32) {  // the running sums: of pairs, then over the lanes
    const float first = big_g[2 * tid], pair = first + big_g[2 * tid + 1];
    float sum = pair;
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
      const float before = __shfl_up_sync(0xffffffffu, sum, i);
      if (tid >= i) sum += before;
    }
    float before = __shfl_up_sync(0xffffffffu, sum, 1);
    if (tid == 0) before = 0;
    __syncwarp();
    big_g[2 * tid] = before + first;
    big_g[2 * tid + 1] = sum;
    exp_g[2 * tid] = expf(before + first);
    exp_g[2 * tid + 1] = expf(sum);
    *reinterpret_cast<float2*>(work.big_g + at * kChunk + 2 * tid) = make_float2(before + first, sum);
  }
  __syncthreads();

  const int warp = tid / 32, lane = tid % 32, m0 = warp % 4 * 16, n0 = warp / 4 * 32;
  float* p = work.p + at * kChunk * kChunk;
  {
    float kk[4][4] = {}, qk[4][4] = {};
    mma_block<4>(kk, k + m0 * kLd, kLd, 1, k + n0 * kLd, 1, kLd, kHeadDim);
    mma_block<4>(qk, q + m0 * kLd, kLd, 1, k + n0 * kLd, 1, kLd, kHeadDim);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = m0 + lane / 4 + 8 * (e / 2), s = n0 + 8 * j + 2 * (lane % 4) + e % 2;
        const float decay = s <= r ? expf(big_g[r] - big_g[s]) : 0.0f;
        a[r * kChunk + s] = s < r ? beta[r] * decay * kk[j][e] : 0.0f;
        p[r * kChunk + s] = decay * qk[j][e];
      }
    }
  }
  __syncthreads();

  // Thread = one of 256 columns of [beta V | beta exp(G) K].
  const int column = tid % kHeadDim;
  const bool is_v = tid < kHeadDim;
  float x[kChunk];
  const float* v = c + (2 * d.n_k + head) * kHeadDim + column;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float value =
        is_v ? (i < chunk.n_rows ? v[i * d.channels()] : 0.0f) : k[i * kLd + column] * exp_g[i];
    x[i] = beta[i] * value;
  }
#pragma unroll
  for (int i = 1; i < kChunk; ++i) {
    const float4* row = reinterpret_cast<const float4*>(a + i * kChunk);
    float sum[2] = {x[i], 0.0f};  // over even and odd j
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 f = row[j / 4];
      sum[0] = fmaf(-f.x, x[j], sum[0]);
      if (j + 1 < i) sum[1] = fmaf(-f.y, x[j + 1], sum[1]);
      if (j + 2 < i) sum[0] = fmaf(-f.z, x[j + 2], sum[0]);
      if (j + 3 < i) sum[1] = fmaf(-f.w, x[j + 3], sum[1]);
    }
    x[i] = sum[0] + sum[1];
  }
  float* to = (is_v ? work.u : work.w) + at * kChunk * kHeadDim + column;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i * kHeadDim] = x[i];
}

constexpr int kStageFloats = kChunk * (kLd + kLdT);
constexpr int walk_shared(int columns, int stages) {
  return (stages * (kStageFloats + kChunk) + (kHeadDim + kChunk) * (columns + 8)) * 4;
}

// Block (head and kColumns of its columns, segment): walks the chunks of the segment. With two stages the next chunk's W
// and K are on their way while this one's are used. M is in shared memory as an operand and in registers as what it is
// added to. What a column's values are does not depend on either.
template <int kColumns, int kStages>
__global__ __launch_bounds__(kThreads) void delta_walk_kernel(const __grid_constant__ DeltaView d,
                                                              Work work) {
  constexpr int kLdM = kColumns + 8, kParts = kHeadDim / kColumns, kHalf = kColumns / 2;
  extern __shared__ __align__(16) float shared[];
  pdl_launch();
  pdl_wait();
  float* stages = shared;                      // W [64][kLd] and K [64][kLdT] of each stage
  float* M = stages + kStages * kStageFloats;  // [128][kLdM]
  float* v = M + kHeadDim * kLdM;              // [64][kLdM]: exp(G_C - G) V'
  float* all_g = v + kChunk * kLdM;            // [kStages][64]
  const int2 range = work.list.of_segment[blockIdx.y];
  if (range.y == 0) return;
  const Segment segment = d.batch.segments[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x) / kParts,
            column0 = static_cast<int>(blockIdx.x) % kParts * kColumns;
  const int key_head = d.key_head(head), tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4,
            t = lane % 4;
  const auto fetch = [&](int index) {
    if (index < range.x + range.y) {
      const Chunk chunk = work.list.chunks[index];
      const int64_t at = int64_t{index} * d.n_v + head;
      float* w = stages + index % kStages * kStageFloats;
      float* k = w + kChunk * kLd;
      const float* wg = work.w + at * kChunk * kHeadDim;
      const float* kg =
          work.c + int64_t{chunk.row - work.first_row} * d.channels() + (d.n_k + key_head) * kHeadDim;
      for (int i = tid; i < kChunk * kHeadDim / 4; i += kThreads) {
        const int r = i / (kHeadDim / 4), f = i % (kHeadDim / 4) * 4;
        const bool in = r < chunk.n_rows;
        cp_async16(w + r * kLd + f, wg + r * kHeadDim + f, true);
        cp_async16(k + r * kLdT + f, kg + (in ? r * d.channels() + f : 0), in);
      }
      if (tid < kChunk / 4)
        cp_async16(all_g + index % kStages * kChunk + 4 * tid, work.big_g + at * kChunk + 4 * tid, true);
    }
    cp_async_commit();
  };
  fetch(range.x);
  // A warp's part of M: 16 rows, all columns of the block.
  float* state = d.state(segment.slot, head) + column0;
  float m[kColumns / 8][4];
  load_result(m, state + (warp * 16 + g) * kHeadDim + 2 * t);
  const int m0 = warp % 4 * 16, n0 = warp / 4 * kHalf;
  for (int index = range.x; index < range.x + range.y; ++index) {
    const int64_t at = int64_t{index} * d.n_v + head;
    float* before = work.m + at * kHeadDim * kHeadDim + column0;
    float* ug = work.u + at * kChunk * kHeadDim + column0;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int r = warp * 16 + g + 4 * e, n = 8 * j + 2 * t;
        const float2 f = make_float2(m[j][e], m[j][e + 1]);
        *reinterpret_cast<float2*>(M + r * kLdM + n) = f;
        *reinterpret_cast<float2*>(before + r * kHeadDim + n) = f;
      }
    }
    float u[kHalf / 8][4];
    load_result(u, ug + (m0 + g) * kHeadDim + n0 + 2 * t);
    cp_async_wait<0>();
    __syncthreads();
    if (kStages > 1) fetch(index + 1);
    const float* w = stages + index % kStages * kStageFloats;
    const float* k = w + kChunk * kLd;
    const float* big_g = all_g + index % kStages * kChunk;
    const float last = big_g[kChunk - 1];

    // V' = U - W M: warp = 16 rows by half of the columns.
    float wm[kHalf / 8][4] = {};
    mma_block<kHalf / 8>(wm, w + m0 * kLd, kLd, 1, M + n0, kLdM, 1, kHeadDim);
    const float rest[2] = {expf(last - big_g[m0 + g]), expf(last - big_g[m0 + g + 8])};
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int r = m0 + g + 4 * e, n = n0 + 8 * j + 2 * t;
        const float2 f = make_float2(u[j][e] - wm[j][e], u[j][e + 1] - wm[j][e + 1]);
        *reinterpret_cast<float2*>(ug + r * kHeadDim + n) = f;
        *reinterpret_cast<float2*>(v + r * kLdM + n) = make_float2(f.x * rest[e / 2], f.y * rest[e / 2]);
      }
    }
    __syncthreads();
    // M = exp(G_C) M + Kᵀ V'
    const float keep = expf(last);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) m[j][e] *= keep;
    }
    mma_block<kColumns / 8>(m, k + warp * 16, 1, kLdT, v, kLdM, 1, kChunk);
    if (kStages == 1) {
      __syncthreads();
      fetch(index + 1);
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      *reinterpret_cast<float2*>(state + (warp * 16 + g + 4 * e) * kHeadDim + 8 * j + 2 * t) =
          make_float2(m[j][e], m[j][e + 1]);
    }
  }
}

constexpr int kOutShared = (kChunk * kLd + kChunk * kLdT + kChunk * kLdP + 4 * kChunk) * 4;

// Block (head, chunk): O, the gated norm, y. Warp = 16 rows by 64 columns; M comes in two halves of its rows, then V'.
__global__ __launch_bounds__(kThreads, 2) void delta_out_kernel(const __grid_constant__ DeltaView d,
                                                                Work work) {
  extern __shared__ __align__(16) float shared[];
  pdl_launch();
  pdl_wait();
  float* q = shared;             // [64][kLd]
  float* b = q + kChunk * kLd;   // [64][kLdT]
  float* p = b + kChunk * kLdT;  // [64][kLdP]
  float* exp_g = p + kChunk * kLdP;
  float* squares = exp_g + kChunk;  // [2][64], by half of the columns
  const Chunk chunk = work.list.chunks[blockIdx.y];
  if (chunk.n_rows == 0) return;
  const int head = static_cast<int>(blockIdx.x), key_head = d.key_head(head), tid = threadIdx.x;
  const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4, m0 = warp % 4 * 16,
            n0 = warp / 4 * 64;
  const int64_t at = int64_t{blockIdx.y} * d.n_v + head;
  const float* qg = work.c + int64_t{chunk.row - work.first_row} * d.channels() + key_head * kHeadDim;
  const float* mg = work.m + at * kHeadDim * kHeadDim;
  const auto fetch = [&](const float* from) {
    for (int i = tid; i < kChunk * kHeadDim / 4; i += kThreads) {
      const int r = i / (kHeadDim / 4), f = i % (kHeadDim / 4) * 4;
      cp_async16(b + r * kLdT + f, from + r * kHeadDim + f, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
  };
  for (int i = tid; i < kChunk * kHeadDim / 4; i += kThreads) {
    const int r = i / (kHeadDim / 4), f = i % (kHeadDim / 4) * 4;
    const bool in = r < chunk.n_rows;
    cp_async16(q + r * kLd + f, qg + (in ? r * d.channels() + f : 0), in);
  }
  for (int i = tid; i < kChunk * kChunk / 4; i += kThreads) {
    const int r = i / (kChunk / 4), f = i % (kChunk / 4) * 4;
    cp_async16(p + r * kLdP + f, work.p + at * kChunk * kChunk + r * kChunk + f, true);
  }
  if (tid < kChunk) exp_g[tid] = expf(work.big_g[at * kChunk + tid]);
  float o[8][4] = {};
  fetch(mg);
  mma_block<8>(o, q + m0 * kLd, kLd, 1, b + n0, kLdT, 1, kChunk);
  __syncthreads();
  fetch(mg + kChunk * kHeadDim);
  mma_block<8>(o, q + m0 * kLd + kChunk, kLd, 1, b + n0, kLdT, 1, kChunk);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[j][e] *= exp_g[m0 + g + 8 * (e / 2)];
  }
  fetch(work.u + at * kChunk * kHeadDim);
  mma_block<8>(o, p + m0 * kLdP, kLdP, 1, b + n0, kLdT, 1, kChunk);

  float sum[2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e / 2] = fmaf(o[j][e], o[j][e], sum[e / 2]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    if (t == 0) squares[warp / 4 * kChunk + m0 + g + 8 * half] = sum[half];
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = m0 + g + 8 * half;
    if (r >= chunk.n_rows) continue;
    const float scale = rsqrtf((squares[r] + squares[kChunk + r]) / static_cast<float>(kHeadDim) + d.eps);
    float* y = d.y + int64_t{chunk.row + r} * d.y_stride + head * kHeadDim;
    const float* z = d.z + int64_t{chunk.row + r} * d.z_stride + head * kHeadDim;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int n = n0 + 8 * j + 2 * t + e;
        y[n] = d.norm[n] * (o[j][2 * half + e] * scale) * d.gated(z[n]);
      }
    }
  }
}

// Block (segment, i): the ring takes the segment's i-th row from its end; the convolution has read the ring by now.
__global__ __launch_bounds__(kThreads) void delta_ring_kernel(const __grid_constant__ DeltaView d) {
  pdl_launch();
  pdl_wait();
  const Segment segment = d.batch.segments[blockIdx.x];
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.y);
  if (segment.role != Role::Prefill || r < 0) return;
  float* ring =
      d.ring + (int64_t{segment.slot} * kConvRing + (segment.position + r) % kConvRing) * d.channels();
  const float* from = d.qkv + int64_t{segment.row + r} * d.qkv_stride;
  for (int64_t c = threadIdx.x; c < d.channels(); c += kThreads) ring[c] = from[c];
}

}  // namespace

void delta_net_prefill(Stream& s, const DeltaView& d) {
  QUERN_CHECK(d.qkv_stride % 4 == 0 && reinterpret_cast<uintptr_t>(d.qkv) % 16 == 0,
              "delta_net on CUDA: rows of qkv begin on 16 bytes");
  ScratchScope scope(s);
  const int64_t n = d.batch.n_rows - d.batch.n_decode_rows, n_segments = d.batch.n_segments;
  const int64_t max_chunks = n / kChunk + 2 * n_segments;
  const auto floats = [&](int64_t count) { return s.scratch(DType::F32, {count}).as<float>(); };
  Work work;
  work.c = floats(n * (2 * d.n_k + d.n_v) * kHeadDim);
  work.g = floats(n * d.n_v);
  work.beta = floats(n * d.n_v);
  work.big_g = floats(max_chunks * d.n_v * kChunk);
  work.u = floats(max_chunks * d.n_v * kChunk * kHeadDim);
  work.w = floats(max_chunks * d.n_v * kChunk * kHeadDim);
  work.p = floats(max_chunks * d.n_v * kChunk * kChunk);
  work.m = floats(max_chunks * d.n_v * kHeadDim * kHeadDim);
  work.list.chunks = s.scratch(DType::I32, {max_chunks, 4}).as<Chunk>();
  work.list.of_segment = s.scratch(DType::I32, {n_segments, 2}).as<int2>();
  work.list.max_chunks = static_cast<int32_t>(max_chunks);
  work.first_row = static_cast<int32_t>(d.batch.n_decode_rows);
  const auto n_v = static_cast<unsigned>(d.n_v), segments = static_cast<unsigned>(n_segments);
  launch(s, chunk_list_kernel, dim3(1), 256, 0, 1, d, work.list);
  launch(s, delta_conv_kernel, dim3(blocks(n, kConvRows), blocks(2 * d.n_k + d.n_v, kThreads / 32) + 1),
         kThreads, 0, 1, d, work);
  launch(s, delta_replay_kernel, dim3(n_v, segments), kStateThreads, 0, 1, d);
  launch(s, delta_chunk_kernel, dim3(n_v, static_cast<unsigned>(max_chunks)), kThreads, kChunkShared, 1, d,
         work);
  const auto walk = [&]<int kColumns, int kStages>() {
    launch(s, delta_walk_kernel<kColumns, kStages>, dim3(kHeadDim / kColumns * n_v, segments), kThreads,
           walk_shared(kColumns, kStages), 1, d, work);
  };
  is_hopper(s) ? walk.operator()<64, 2>() : walk.operator()<32, 1>();
  launch(s, delta_out_kernel, dim3(n_v, static_cast<unsigned>(max_chunks)), kThreads, kOutShared, 1, d, work);
  launch(s, delta_ring_kernel, dim3(segments, kConvRing), kThreads, 0, 1, d);
}

}  // namespace quern::cuda

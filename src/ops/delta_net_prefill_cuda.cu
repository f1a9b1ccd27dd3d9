// The delta net for prompt rows, in chunks of 64 at absolute multiples of 64 positions (the WY form of the
// gated delta rule; Yang, Kautz, Hatamizadeh 2024, §3). With G_i = g_1 + … + g_i within a chunk and
//   A_ij = beta_i exp(G_i - G_j) k_i·k_j   (j < i)       P_ij = exp(G_i - G_j) q_i·k_j   (j ≤ i)
//   U = (I + A)^-1 (beta V)          W = (I + A)^-1 (beta exp(G) K)
// everything but M is known before the sequence is walked; then, chunk after chunk,
//   V' = U - W M        O = exp(G) Q M + P V'        M = exp(G_C) M + (exp(G_C - G) K)ᵀ V'
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

// Scratch of one step: rows of q | k | v normalised, log decays and betas by row; U, W, P by (chunk, head).
struct Work {
  float* c;
  float* g;     // [T, n_v]
  float* beta;  // [T, n_v]
  float* u;     // [chunks, n_v, 64, 128]
  float* w;
  float* p;  // [chunks, n_v, 64, 64]
  ChunkList list;
  int32_t first_row;  // of the prompt rows: row t lies at t - first_row
};

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

// One block a row, a warp a head: convolution, silu, l2 norms, gates.
__global__ __launch_bounds__(kThreads) void delta_conv_kernel(const __grid_constant__ DeltaView d,
                                                              Work work) {
  pdl_launch();
  pdl_wait();
  const int t = work.first_row + static_cast<int>(blockIdx.x), warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const Segment segment = d.batch.segments[d.batch.segment_of[t]];
  float* row = work.c + blockIdx.x * d.channels();
  if (segment.role != Role::Prefill) return;
  for (int h = warp; h < 2 * d.n_k + d.n_v; h += kThreads / 32) {
    float v[4], squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = d.convolved(segment, t, h * kHeadDim + lane + 32 * i);
      squares = fmaf(v[i], v[i], squares);
    }
    float scale = 1;
    if (h < 2 * d.n_k) {
      scale = rsqrtf(warp_sum(squares) + 1e-6f);
      if (h < d.n_k) scale /= sqrtf(static_cast<float>(kHeadDim));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) row[h * kHeadDim + lane + 32 * i] = v[i] * scale;
  }
  for (int h = threadIdx.x; h < d.n_v; h += kThreads) {
    work.g[int64_t{blockIdx.x} * d.n_v + h] = d.decay_of(t, h);
    work.beta[int64_t{blockIdx.x} * d.n_v + h] = d.beta_of(t, h);
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
  replay<kHeadDim>(m, d, segment.slot, head, 0, segment.n_pending, kv, part);
  store_state<kHeadDim>(m, M, 0);
}

constexpr int kLd = 132;   // rows of 128 floats whose A-tile reads meet no bank twice
constexpr int kLdT = 136;  // rows read down a column
constexpr int kLdM = 72, kLdP = 68;

// acc += A B for one m16 tile and kN n8 tiles: A(m, k) = a[m·am + k·ak], B(k, n) = b[k·bk + n·bn]. kSplit adds
// the products of the parts TF32 drops, for float32's accuracy.
template <int kN, bool kSplit>
__device__ __forceinline__ void mma_block(float (&acc)[kN][4], const float* a, int am, int ak, const float* b,
                                          int bk, int bn, int depth) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int k = 0; k < depth; k += 8) {
    float af[4] = {a[g * am + (k + t) * ak], a[(g + 8) * am + (k + t) * ak], a[g * am + (k + t + 4) * ak],
                   a[(g + 8) * am + (k + t + 4) * ak]};
    uint32_t ah[4], al[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ah[i] = to_tf32(af[i]);
      if constexpr (kSplit) al[i] = to_tf32(af[i] - __uint_as_float(ah[i]));
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float b0 = b[(k + t) * bk + (8 * j + g) * bn], b1 = b[(k + t + 4) * bk + (8 * j + g) * bn];
      const uint32_t h0 = to_tf32(b0), h1 = to_tf32(b1);
      if constexpr (kSplit) {
        mma_tf32(acc[j], al, h0, h1);
        mma_tf32(acc[j], ah, to_tf32(b0 - __uint_as_float(h0)), to_tf32(b1 - __uint_as_float(h1)));
      }
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
  for (int i = tid; i < kChunk * kHeadDim; i += kThreads) {
    const int r = i / kHeadDim, at = i % kHeadDim;
    const bool in = r < chunk.n_rows;
    q[r * kLd + at] = in ? c[r * d.channels() + key_head * kHeadDim + at] : 0.0f;
    k[r * kLd + at] = in ? c[r * d.channels() + (d.n_k + key_head) * kHeadDim + at] : 0.0f;
  }
  if (tid < kChunk) {
    big_g[tid] = tid < chunk.n_rows ? work.g[(row0 + tid) * d.n_v + head] : 0.0f;
    beta[tid] = tid < chunk.n_rows ? work.beta[(row0 + tid) * d.n_v + head] : 0.0f;
  }
  __syncthreads();
  if (tid == 0) {
    float sum = 0;
    for (int i = 0; i < kChunk; ++i) {
      sum += big_g[i];
      big_g[i] = sum;
      exp_g[i] = expf(sum);
    }
  }
  __syncthreads();

  const int64_t at = int64_t{blockIdx.y} * d.n_v + head;
  const int warp = tid / 32, lane = tid % 32, m0 = warp % 4 * 16, n0 = warp / 4 * 32;
  float* p = work.p + at * kChunk * kChunk;
  {
    float kk[4][4] = {}, qk[4][4] = {};
    mma_block<4, true>(kk, k + m0 * kLd, kLd, 1, k + n0 * kLd, 1, kLd, kHeadDim);
    mma_block<4, true>(qk, q + m0 * kLd, kLd, 1, k + n0 * kLd, 1, kLd, kHeadDim);
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
    float sum = x[i];
#pragma unroll
    for (int j = 0; j < i; ++j) sum = fmaf(-a[i * kChunk + j], x[j], sum);
    x[i] = sum;
  }
  float* to = (is_v ? work.u : work.w) + at * kChunk * kHeadDim + column;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i * kHeadDim] = x[i];
}

constexpr int kColumns = 64;  // of the state, a block
constexpr int kWalkShared =
    (kHeadDim * kLdM + 2 * kChunk * kLd + kChunk * kLdT + kChunk * kLdP + kChunk * kLdM + kChunk) * 4;

// Block (head and half of its columns, segment): walks the chunks of the segment.
__global__ __launch_bounds__(kThreads) void delta_walk_kernel(const __grid_constant__ DeltaView d,
                                                              Work work) {
  extern __shared__ __align__(16) float shared[];
  pdl_launch();
  pdl_wait();
  float* M = shared;               // [128][kLdM]
  float* w = M + kHeadDim * kLdM;  // [64][kLd]
  float* q = w + kChunk * kLd;     // [64][kLd]
  float* k = q + kChunk * kLd;     // [64][kLdT], times exp(G_C - G)
  float* p = k + kChunk * kLdT;    // [64][kLdP]
  float* v = p + kChunk * kLdP;    // [64][kLdM]: V'
  float* exp_g = v + kChunk * kLdM;
  const int2 range = work.list.of_segment[blockIdx.y];
  if (range.y == 0) return;
  const Segment segment = d.batch.segments[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x) / 2, column0 = static_cast<int>(blockIdx.x) % 2 * kColumns;
  const int key_head = d.key_head(head), tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4,
            t = lane % 4;
  float* state = d.state(segment.slot, head) + column0;
  for (int i = tid; i < kHeadDim * kColumns; i += kThreads) {
    M[i / kColumns * kLdM + i % kColumns] = state[i / kColumns * kHeadDim + i % kColumns];
  }
  for (int index = range.x; index < range.x + range.y; ++index) {
    const Chunk chunk = work.list.chunks[index];
    const int64_t row0 = chunk.row - work.first_row, at = int64_t{index} * d.n_v + head;
    if (tid < 32) {  // the running sums again, in the same order
      if (lane == 0) {
        float sum = 0;
        for (int i = 0; i < kChunk; ++i) {
          sum += i < chunk.n_rows ? work.g[(row0 + i) * d.n_v + head] : 0.0f;
          exp_g[i] = sum;
        }
      }
    }
    const float* wg = work.w + at * kChunk * kHeadDim;
    const float* pg = work.p + at * kChunk * kChunk;
    const float* c = work.c + row0 * d.channels();
    for (int i = tid; i < kChunk * kHeadDim / 4; i += kThreads) {
      const int r = i / (kHeadDim / 4), f = i % (kHeadDim / 4) * 4;
      const bool in = r < chunk.n_rows;
      const float4 zero = make_float4(0, 0, 0, 0);
      *reinterpret_cast<float4*>(w + r * kLd + f) = *reinterpret_cast<const float4*>(wg + r * kHeadDim + f);
      *reinterpret_cast<float4*>(q + r * kLd + f) =
          in ? *reinterpret_cast<const float4*>(c + r * d.channels() + key_head * kHeadDim + f) : zero;
      *reinterpret_cast<float4*>(k + r * kLdT + f) =
          in ? *reinterpret_cast<const float4*>(c + r * d.channels() + (d.n_k + key_head) * kHeadDim + f)
             : zero;
    }
    for (int i = tid; i < kChunk * kChunk / 4; i += kThreads) {
      const int r = i / (kChunk / 4), f = i % (kChunk / 4) * 4;
      *reinterpret_cast<float4*>(p + r * kLdP + f) = *reinterpret_cast<const float4*>(pg + r * kChunk + f);
    }
    __syncthreads();
    const float last = exp_g[kChunk - 1];
    for (int i = tid; i < kChunk * kHeadDim; i += kThreads) {
      const int r = i / kHeadDim;
      k[r * kLdT + i % kHeadDim] *= expf(last - exp_g[r]);
    }

    // V' = U - W M: warp = 16 rows by 32 columns. O's share of M beside it.
    const int m0 = warp % 4 * 16, n0 = warp / 4 * 32;
    float wm[4][4] = {}, o[4][4] = {};
    mma_block<4, true>(wm, w + m0 * kLd, kLd, 1, M + n0, kLdM, 1, kHeadDim);
    mma_block<4, true>(o, q + m0 * kLd, kLd, 1, M + n0, kLdM, 1, kHeadDim);
    const float* ug = work.u + at * kChunk * kHeadDim + column0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = m0 + g + 8 * (e / 2), n = n0 + 8 * j + 2 * t + e % 2;
        v[r * kLdM + n] = ug[r * kHeadDim + n] - wm[j][e];
        o[j][e] *= expf(exp_g[r]);
      }
    }
    __syncthreads();
    mma_block<4, true>(o, p + m0 * kLdP, kLdP, 1, v + n0, kLdM, 1, kChunk);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = m0 + g + 8 * (e / 2), n = n0 + 8 * j + 2 * t + e % 2;
        if (r < chunk.n_rows) d.y[(chunk.row + r) * d.y_stride + head * kHeadDim + column0 + n] = o[j][e];
      }
    }
    // M = exp(G_C) M + Kᵀ V': warp = 16 rows of M, all columns. Its own part of M only: nothing else reads it now.
    float next[8][4];
    const float keep = expf(last);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        next[j][e] = keep * M[(warp * 16 + g + 8 * (e / 2)) * kLdM + 8 * j + 2 * t + e % 2];
      }
    }
    mma_block<8, true>(next, k + warp * 16, 1, kLdT, v, kLdM, 1, kChunk);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        M[(warp * 16 + g + 8 * (e / 2)) * kLdM + 8 * j + 2 * t + e % 2] = next[j][e];
    }
    __syncthreads();
  }
  for (int i = tid; i < kHeadDim * kColumns; i += kThreads) {
    state[i / kColumns * kHeadDim + i % kColumns] = M[i / kColumns * kLdM + i % kColumns];
  }
}

// One block a row: the gated norm in place, and the ring's newest rows, which the convolution has read by now.
__global__ __launch_bounds__(kThreads) void delta_norm_kernel(const __grid_constant__ DeltaView d,
                                                              int first_row) {
  pdl_launch();
  pdl_wait();
  const int t = first_row + static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Segment segment = d.batch.segments[d.batch.segment_of[t]];
  if (segment.role != Role::Prefill) return;
  for (int h = warp; h < d.n_v; h += kThreads / 32) {
    float* y = d.y + t * d.y_stride + h * kHeadDim;
    const float* z = d.z + t * d.z_stride + h * kHeadDim;
    float o[4], squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      o[i] = y[lane + 32 * i];
      squares = fmaf(o[i], o[i], squares);
    }
    const float r = rsqrtf(warp_sum(squares) / static_cast<float>(kHeadDim) + d.eps);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      y[lane + 32 * i] = d.norm[lane + 32 * i] * (o[i] * r) * d.gated(z[lane + 32 * i]);
  }
  if (t + kConvRing >= segment.row + segment.n_rows) {
    const int position = segment.position + t - segment.row;
    float* ring = d.ring + (int64_t{segment.slot} * kConvRing + position % kConvRing) * d.channels();
    for (int64_t c = threadIdx.x; c < d.channels(); c += kThreads) ring[c] = d.qkv[t * d.qkv_stride + c];
  }
}

}  // namespace

void delta_net_prefill(Stream& s, const DeltaView& d) {
  ScratchScope scope(s);
  const int64_t n = d.batch.n_rows - d.batch.n_decode_rows, n_segments = d.batch.n_segments;
  const int64_t max_chunks = n / kChunk + 2 * n_segments;
  const auto floats = [&](int64_t count) { return s.scratch(DType::F32, {count}).as<float>(); };
  Work work;
  work.c = floats(n * (2 * d.n_k + d.n_v) * kHeadDim);
  work.g = floats(n * d.n_v);
  work.beta = floats(n * d.n_v);
  work.u = floats(max_chunks * d.n_v * kChunk * kHeadDim);
  work.w = floats(max_chunks * d.n_v * kChunk * kHeadDim);
  work.p = floats(max_chunks * d.n_v * kChunk * kChunk);
  work.list.chunks = s.scratch(DType::I32, {max_chunks, 4}).as<Chunk>();
  work.list.of_segment = s.scratch(DType::I32, {n_segments, 2}).as<int2>();
  work.list.max_chunks = static_cast<int32_t>(max_chunks);
  work.first_row = static_cast<int32_t>(d.batch.n_decode_rows);
  const auto n_v = static_cast<unsigned>(d.n_v), segments = static_cast<unsigned>(n_segments);
  launch(s, chunk_list_kernel, dim3(1), 256, 0, 1, d, work.list);
  launch(s, delta_conv_kernel, dim3(static_cast<unsigned>(n)), kThreads, 0, 1, d, work);
  launch(s, delta_replay_kernel, dim3(n_v, segments), kStateThreads, 0, 1, d);
  launch(s, delta_chunk_kernel, dim3(n_v, static_cast<unsigned>(max_chunks)), kThreads, kChunkShared, 1, d,
         work);
  launch(s, delta_walk_kernel, dim3(2 * n_v, segments), kThreads, kWalkShared, 1, d, work);
  launch(s, delta_norm_kernel, dim3(static_cast<unsigned>(n)), kThreads, 0, 1, d, work.first_row);
}

}  // namespace quern::cuda

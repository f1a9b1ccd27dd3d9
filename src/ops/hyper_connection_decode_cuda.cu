// hc_mix for decode rows, in two launches that read down, inject and up once.
//
// The first is [down; inject] by the un-normalised x ⊙ (1 + norm): the normalisation is one scalar a stream,
// so a block that holds a piece of K within one stream also sums its squares, and the first block of the
// cluster scales each stream's partial sums as it adds them. The second is up, its sigmoid, and the mean over
// streams: a warp a stream, 16 columns of h a block.
//
// Without clusters the first is three: the normalised rows, linear's products of them, and what becomes of those.
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;  // of a block of the first
constexpr int kHalves = 2;                         // of K in the second, a warp each

// Columns of x ⊙ (1 + norm), with the sums of squares of x on the way: squares[warp · n_squares + column].
struct ScaledRows {
  static constexpr int kEarly = 1;  // chunks a thread whose norm it holds before x is there
  const MixerView& m;
  XTile tile;
  float norm[kEarly][8];
  float scale;  // streams are not normalised yet: F16 holds 64 times as much of them

  __device__ __forceinline__ ScaledRows(const MixerView& mixer, const XTile& t)
      : m(mixer), tile(t), scale(t.order == XOrder::Brain ? 1.0f : 0x1p-6f) {
#pragma unroll
    for (int u = 0; u < kEarly; ++u) {
      const int i = static_cast<int>(threadIdx.x) + kThreads * u;
      if (8 * i < tile.width) load_eight(norm[u], m.norm, tile.k0 + 8 * i, tile.k0 + tile.width, true);
    }
  }
  __device__ __forceinline__ void put(int c, int i, const float (&x)[8], const float (&w)[8],
                                      float& q) const {
    float v[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      q = fmaf(x[e], x[e], q);
      v[e] = x[e] * (1.0f + w[e]) * scale;
    }
    tile.put(c, i, v);
  }
  // kAtOnce columns' loads are on their way together.
  template <int kAtOnce = 2>
  __device__ __forceinline__ void stage(int first, float* squares, int n_squares) const {
    const int end = tile.k0 + tile.width, tid = static_cast<int>(threadIdx.x);
#pragma unroll kAtOnce
    for (int c = 0; c < tile.n_columns; ++c) {
      const float* row = m.x + (first + c) * m.x_stride;
      float x[kEarly][8], q = 0;
#pragma unroll
      for (int u = 0; u < kEarly; ++u)
        load_eight(x[u], row, min(tile.k0 + 8 * (tid + kThreads * u), end - 8), end, true);
#pragma unroll
      for (int u = 0; u < kEarly; ++u) {
        if (8 * (tid + kThreads * u) < tile.width) put(c, tid + kThreads * u, x[u], norm[u], q);
      }
      for (int i = tid + kThreads * kEarly; 8 * i < tile.width; i += kThreads) {
        float w[8];
        load_eight(x[0], row, tile.k0 + 8 * i, end, true);
        load_eight(w, m.norm, tile.k0 + 8 * i, end, true);
        put(c, i, x[0], w, q);
      }
      q = warp_sum(q);
      if (tid % 32 == 0) squares[tid / 32 * n_squares + c] = q;
    }
  }
};

// cluster = streams · per_stream blocks along K; tiles of 16 rows of down, then one of inject.
constexpr int kDownColumns = 8;
struct DownSums {
  uint64_t all;  // of the cluster's first block: every block's sums have come
  float part[kWarps][kDownColumns * 16], part_squares[kWarps][kDownColumns];
  float sum[2 * kMaxStreams][kDownColumns * 16];  // of the cluster's first block: every block's
  float squares[2 * kMaxStreams][kDownColumns];
};
template <unsigned kFormats>
__device__ __forceinline__ void hc_down(const MixerView& m, const RingPlan& plan, float* d, float* r_out,
                                        int per_stream, int first, int tile, bool is_inject, uint8_t* memory,
                                        DownSums& sums) {
  constexpr int kColumns = kDownColumns;
  auto& [all, part, part_squares, sum, squares] = sums;
  const int rank = cluster_rank();
  const WeightView w = known<kFormats>(choose(is_inject, m.inject, m.down));
  const int row = is_inject ? 0 : tile * 16;

  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int steps = m.width / per_stream / step_values(w);  // of this block
  const int begin = rank * steps + part_begin(steps, warp, kWarps),
            end = rank * steps + part_begin(steps, warp + 1, kWarps);
  WeightRing ring(plan, memory + warp * plan.bytes, w);
  ring.aim(w, row, w, row + 8, begin, end);
  ring.begin(begin, end - begin);
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) ring.put();
  const int n_columns = min(kColumns, m.n_rows - first);
  const ScaledRows rows(m,
                        x_tile(memory + kWarps * plan.bytes, w, n_columns, rank * steps, (rank + 1) * steps));
  const float inverse = 1.0f / (static_cast<float>(m.streams) * rows.scale);
  cluster_wait();  // the first has its barrier
  pdl_wait();
  pdl_launch();  // after the wait: the next kernel may read x before its own
  rows.stage(first, &part_squares[0][0], kColumns);
  __syncthreads();
  float acc[1][4] = {};
  walk<1, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring,
                    x_place(rows.tile, w, tid % 32 / 4, begin), 0, 1, [&] { ring.put(); });
  finish<1>(acc, w, row, w, row + 8);
  store_tile<1>(part[warp], acc);
  __syncthreads();
  for (int i = tid; i < n_columns * 16; i += kThreads) {
    float v = part[0][i];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part[p][i];
    cluster_send(&sum[rank][i], &all, 0, v);
  }
  if (const int c = kThreads - 1 - tid; c < n_columns) {  // by other warps than the sums
    float v = part_squares[0][c];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part_squares[p][c];
    cluster_send(&squares[rank][c], &all, 0, v);
  }
  if (rank == 0 && tid < n_columns * 16) {
    barrier_wait_cluster(&all, 0);
    for (int i = tid; i < n_columns * 16; i += kThreads) {
      const int c = i / 16, t = first + c, n = row + i % 16;
      float v = 0;
#pragma unroll
      for (int s = 0; s < kMaxStreams; ++s) {
        if (s >= m.streams) break;
        const int p = s * per_stream;
        const float square = per_stream == 2 ? squares[p][c] + squares[p + 1][c] : squares[p][c];
        const float r = rsqrtf(square / static_cast<float>(m.width) + m.eps);
        if (tile == 0 && i % 16 == s) r_out[t * m.streams + s] = r;
        v = fmaf(r, per_stream == 2 ? sum[p][i] + sum[p + 1][i] : sum[p][i], v);
      }
      if (n >= w.n) continue;
      v *= inverse;
      if (is_inject) {
        m.inj[t * m.inj_stride + n] = 2.0f * scalar::sigmoid(v);
      } else {
        d[int64_t{t} * m.rank + n] = scalar::silu(v);
      }
    }
  }
}
template <unsigned kFormats>
__global__ __launch_bounds__(kThreads, 3) void hc_down_kernel(const __grid_constant__ MixerView m,
                                                              const __grid_constant__ RingPlan plan, float* d,
                                                              float* r_out, int per_stream, int row_groups) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ DownSums sums;
  const int cluster = m.streams * per_stream, at = static_cast<int>(blockIdx.x) / cluster;
  const int tile = at / row_groups, first = at % row_groups * kDownColumns;
  if (threadIdx.x == 0) {
    barrier_init(&sums.all, 1);
    fence_barrier_init();
    barrier_expect(&sums.all, cluster * min(kDownColumns, m.n_rows - first) * 17 * 4);
  }
  __syncwarp();
  cluster_arrive();
  const bool is_inject = tile >= (m.rank + 15) / 16;
  with_known<kFormats>(is_inject ? m.inject.kind : m.down.kind, [&]<unsigned kKnown>() {
    hc_down<kKnown>(m, plan, d, r_out, per_stream, first, tile, is_inject, memory, sums);
  });
}

// More than eight rows: a block keeps its 16 rows' x for up to kManyTiles tiles of down, and the blocks of a cluster share
// what is left to do. Block `tile_blocks - 1` of the tiles is inject's, where there is one.
constexpr int kManyTiles = 4, kManyColumns = 16;

template <unsigned kFormats>
__global__ __launch_bounds__(kThreads, 2) void hc_down_many_kernel(const __grid_constant__ MixerView m,
                                                                   const __grid_constant__ RingPlan plan,
                                                                   float* d, float* r_out, int per_stream,
                                                                   int row_groups, int tiles_per_block) {
  constexpr int kValues = kManyColumns * 16;
  static_assert(kValues == kThreads);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[kWarps][kValues];
  __shared__ float part_squares[kWarps][kManyColumns];
  __shared__ float sum[kManyTiles][kValues];
  __shared__ float squares[kManyColumns];
  __shared__ float r_of[kManyColumns][kMaxStreams];
  const int cluster = m.streams * per_stream;
  const int rank = static_cast<int>(blockIdx.x) % cluster, at = static_cast<int>(blockIdx.x) / cluster;
  const int first_tile = at / row_groups * tiles_per_block, first = at % row_groups * kManyColumns;
  const int down_tiles = (m.rank + 15) / 16;
  const bool is_inject = first_tile >= down_tiles;
  const WeightView w = choose(is_inject, m.inject, m.down);
  const int row0 = is_inject ? 0 : first_tile * 16,
            n_tiles = is_inject ? 1 : min(tiles_per_block, down_tiles - first_tile);

  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int steps = m.width / per_stream / step_values(w);  // of this block
  const int begin = rank * steps + part_begin(steps, warp, kWarps),
            end = rank * steps + part_begin(steps, warp + 1, kWarps);
  WeightRing ring(plan, memory + warp * plan.bytes, w);
  int tile_in = 0;
  ring.aim(w, row0, w, row0 + 8, begin, end);
  const auto put = [&] {
    if (ring.empty() && tile_in + 1 < n_tiles) {
      ++tile_in;
      ring.aim(w, row0 + 16 * tile_in, w, row0 + 16 * tile_in + 8, begin, end);
    }
    ring.put();
  };
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) put();
  const int n_columns = min(kManyColumns, m.n_rows - first);
  const ScaledRows rows(m,
                        x_tile(memory + kWarps * plan.bytes, w, n_columns, rank * steps, (rank + 1) * steps));
  pdl_wait();
  pdl_launch();  // after the wait: the next kernel may read x before its own
  rows.stage<4>(first, &part_squares[0][0], kManyColumns);
  __syncthreads();
  const uint32_t from = x_place(rows.tile, w, tid % 32 / 4, begin);
  const int eight = static_cast<int>(x_place(rows.tile, w, 8 + tid % 32 / 4, begin) - from);
#pragma unroll 1
  for (int i = 0; i < n_tiles; ++i) {
    float acc[2][4] = {};
    const int row = row0 + 16 * i;
    ring.begin(begin, end - begin);
    walk<2, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring, from, eight, 2, put);
    finish<2>(acc, w, row, w, row + 8);
    store_tile<2>(part[warp], acc);
    __syncthreads();
    float v = part[0][tid];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part[p][tid];
    sum[i][tid] = v;
    __syncthreads();
  }
  if (tid < n_columns) {
    float v = part_squares[0][tid];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part_squares[p][tid];
    squares[tid] = v;
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  for (int i = tid; i < n_columns * m.streams; i += kThreads) {
    const int c = i / m.streams, s = i % m.streams;
    float q = 0;
    for (int p = 0; p < per_stream; ++p) q += cluster_load(&squares[c], s * per_stream + p);
    const float r = rsqrtf(q / static_cast<float>(m.width) + m.eps);
    r_of[c][s] = r;
    if (first_tile == 0 && rank == 0) r_out[(first + c) * m.streams + s] = r;
  }
  __syncthreads();
  const float inverse = 1.0f / (static_cast<float>(m.streams) * rows.scale);
  const int all = n_tiles * kValues;
  for (int i = all * rank / cluster + tid; i < all * (rank + 1) / cluster; i += kThreads) {
    const int c = i % kValues / 16, t = first + c, n = row0 + i / kValues * 16 + i % 16;
    if (c >= n_columns || n >= w.n) continue;
    float piece[2 * kMaxStreams];
#pragma unroll
    for (int p = 0; p < 2 * kMaxStreams; ++p) piece[p] = p < cluster ? cluster_load(&sum[0][i], p) : 0.0f;
    float v = 0;
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      if (s >= m.streams) break;
      const float q = per_stream == 2 ? piece[2 * s] + piece[2 * s + 1] : piece[s];
      v = fmaf(r_of[c][s], q, v);
    }
    v *= inverse;
    if (is_inject) {
      m.inj[t * m.inj_stride + n] = 2.0f * scalar::sigmoid(v);
    } else {
      d[int64_t{t} * m.rank + n] = scalar::silu(v);
    }
  }
  cluster_arrive();
  cluster_wait();
}

// ---- without clusters ----

// Block (stream, row): r[t, s], and n = x r (1 + norm) in f32.
__global__ __launch_bounds__(kThreads) void hc_scale_kernel(const __grid_constant__ MixerView m, float* n,
                                                            float* r_out) {
  __shared__ float shared[kWarps];
  pdl_wait();
  const int s = static_cast<int>(blockIdx.x), t = static_cast<int>(blockIdx.y);
  const float* x = m.x + t * m.x_stride + int64_t{s} * m.width;
  float q = 0;
  for (int i = static_cast<int>(threadIdx.x); i < m.width; i += kThreads) q = fmaf(x[i], x[i], q);
  const float r = rsqrtf(block_sum<kThreads>(q, shared) / static_cast<float>(m.width) + m.eps);
  if (threadIdx.x == 0) r_out[t * m.streams + s] = r;
  const int64_t at = (int64_t{t} * m.streams + s) * m.width;
  for (int i = static_cast<int>(threadIdx.x); i < m.width; i += kThreads)
    n[at + i] = x[i] * r * (1.0f + m.norm[int64_t{s} * m.width + i]);
}
// Block (row): d = silu(d / S), inj = 2 sigmoid(inj / S).
__global__ __launch_bounds__(kThreads) void hc_gates_kernel(const __grid_constant__ MixerView m, float* d) {
  pdl_wait();
  const int64_t t = blockIdx.x;
  const float inverse = 1.0f / static_cast<float>(m.streams);
  for (int i = static_cast<int>(threadIdx.x); i < m.rank; i += kThreads)
    d[t * m.rank + i] = scalar::silu(d[t * m.rank + i] * inverse);
  if (m.inj && threadIdx.x < static_cast<unsigned>(m.streams)) {
    float* inj = m.inj + t * m.inj_stride + threadIdx.x;
    *inj = 2.0f * scalar::sigmoid(*inj * inverse);
  }
}
void hc_down_alone(Stream& s, const MixerView& m, float* d, float* r) {
  ScratchScope scope(s);
  const auto rows = static_cast<unsigned>(m.n_rows);
  const int wide = m.streams * m.width;
  const Tensor n = s.scratch(DType::F32, {m.n_rows, wide});
  launch(s, hc_scale_kernel, dim3(static_cast<unsigned>(m.streams), rows), kThreads, 0, 1, m, n.as<float>(),
         r);
  const ProductView products[2] = {{m.down, d, m.rank, 0}, {m.inject, m.inj, m.inj_stride, 0}};
  linear_decode(s, {products, m.inj ? 2u : 1u}, rows_f32(n), Epilogue::Store, {});
  launch(s, hc_gates_kernel, dim3(rows), kThreads, 0, 1, m, d);
}

// Two warps a stream, 16 columns of h a block.
template <int kTiles>
using UpSums = float[kMaxStreams][kHalves][8 * kTiles * 16];
template <int kTiles, unsigned kFormats>
__device__ __forceinline__ void hc_up(const MixerView& m, const RingPlan& plan, const float* d,
                                      const float* r, int row_groups, uint8_t* memory, UpSums<kTiles>& mix) {
  constexpr int kColumns = 8 * kTiles;
  const int i0 = static_cast<int>(blockIdx.x) / row_groups * 16;
  const int first = static_cast<int>(blockIdx.x) % row_groups * kColumns;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, n_threads = static_cast<int>(blockDim.x);
  const WeightView w = known<kFormats>(m.up);
  const int steps = stream_steps(w), row = warp / kHalves * m.width + i0;
  const int begin = part_begin(steps, warp % kHalves, kHalves),
            end = part_begin(steps, warp % kHalves + 1, kHalves);
  WeightRing ring(plan, memory + warp * plan.bytes, w);
  ring.aim(w, row, w, row + 8, begin, end);
  ring.begin(begin, end - begin);
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) ring.put();
  // What the block's first columns are multiplied by: hc_down lets this kernel start after its own wait, so x is there.
  const int n_columns = min(kColumns, m.n_rows - first);
  const int mine = first + tid / 16, column = i0 + tid % 16;
  const bool works = tid < 16 * n_columns && column < m.width;
  float x_of[kMaxStreams] = {}, norm_of[kMaxStreams] = {};
  if (works) {
#pragma unroll
    for (int q = 0; q < kMaxStreams; ++q) {
      if (q >= m.streams) break;
      x_of[q] = __ldcg(m.x + mine * m.x_stride + int64_t{q} * m.width + column);
      norm_of[q] = m.norm[int64_t{q} * m.width + column];
    }
  }
  const auto rows = known_rows<kFormats>(RowsF32{d, m.rank, m.n_rows, m.rank, m.rank % 16 == 0});
  const XTile x = x_tile(memory + m.streams * kHalves * plan.bytes, w, n_columns, 0, steps);
  pdl_wait();
  float r_of[kMaxStreams] = {};
  if (works) {
#pragma unroll
    for (int q = 0; q < kMaxStreams; ++q) {
      if (q < m.streams) r_of[q] = __ldcg(r + mine * m.streams + q);
    }
  }
  if (tid < 64 || n_threads == kThreads) {
    n_threads == kThreads ? stage_rows<kThreads>(x, rows, nullptr, first, tid)
                          : stage_rows<64>(x, rows, nullptr, first, tid);
  }
  __syncthreads();
  float acc[kTiles][4] = {};
  const uint32_t from = x_place(x, w, tid % 32 / 4, begin);
  const int eight = kTiles == 1 ? 0 : static_cast<int>(x_place(x, w, 8 + tid % 32 / 4, begin) - from);
  walk<kTiles, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring, from, eight, kTiles,
                         [&] { ring.put(); });
  finish<kTiles>(acc, w, row, w, row + 8);
  store_tile<kTiles>(mix[warp / kHalves][warp % kHalves], acc);
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(m.streams);
  for (int i = tid; i < n_columns * 16; i += n_threads) {
    const int t = first + i / 16, c = i0 + i % 16;
    if (c >= m.width) continue;
    float v = 0;
#pragma unroll
    for (int q = 0; q < kMaxStreams; ++q) {
      if (q >= m.streams) break;
      const int64_t at = int64_t{q} * m.width + c;
      const float x_at = i == tid ? x_of[q] : m.x[t * m.x_stride + at];
      const float r_at = i == tid ? r_of[q] : r[t * m.streams + q];
      const float norm = i == tid ? norm_of[q] : m.norm[at];
      v = fmaf(scalar::sigmoid(mix[q][0][i] + mix[q][1][i]), x_at * r_at * (1.0f + norm), v);
    }
    m.h[t * m.h_stride + c] = v * inverse;
  }
}
template <int kTiles, unsigned kFormats>
__global__ __launch_bounds__(kMaxStreams* kHalves * 32,
                             kTiles == 1 ? 3 : 2) void hc_up_kernel(const __grid_constant__ MixerView m,
                                                                    const __grid_constant__ RingPlan plan,
                                                                    const float* d, const float* r,
                                                                    int row_groups) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ UpSums<kTiles> mix;
  pdl_launch();
  with_known<kFormats>(
      m.up.kind, [&]<unsigned kKnown>() { hc_up<kTiles, kKnown>(m, plan, d, r, row_groups, memory, mix); });
}

}  // namespace

int hc_step(const MixerView& m) {
  return std::max({kStep, step_values(m.down), m.inj ? step_values(m.inject) : 0});
}

void hc_mix_decode(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.width % hc_step(m) == 0 && m.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.x) % 16 == 0,
              "hc_mix on CUDA takes streams of whole steps");
  ScratchScope scope(s);
  const Tensor d = s.scratch(DType::F32, {m.n_rows, m.rank}),
               r = s.scratch(DType::F32, {m.n_rows, m.streams});
  const int per_stream = m.width % (2 * hc_step(m)) == 0 ? 2 : 1, cluster = m.streams * per_stream;
  const int tiles = ceil_div(m.rank, 16) + (m.inj ? 1 : 0);
  const bool any = !streams(m.down) || !streams(m.up) || (m.inj && !streams(m.inject));
  const bool only =
      only_known(m.down) && only_known(m.up) && (!m.inj || only_known(m.inject)) && m.rank % 16 == 0;
  const int columns = m.n_rows <= 8 && !any ? 8 : 16, groups = ceil_div(m.n_rows, columns),
            used = std::min(columns, m.n_rows);
  const auto x_bytes = [&](const WeightView& w) {
    return x_stride(w, m.width / per_stream / step_values(w)) * used;
  };
  const int block_width = m.width / per_stream;
  const auto down_steps = [&](const WeightView& w) { return ceil_div(block_width / step_values(w), kWarps); };
  const int up_x = x_stride(m.up, stream_steps(m.up)) * used;
  constexpr int kUpOwn = 9 * 1024;  // at least hc_up's own arrays
  const RingPlan down = ring_plan(std::max(down_steps(m.down), m.inj ? down_steps(m.inject) : 1), 1, 2,
                                  is_f4(m.down) || (m.inj && is_f4(m.inject))),
                 up = ring_plan_beside(s, m.streams * kHalves, up_x + kUpOwn,
                                       ceil_div(stream_steps(m.up), kHalves), 1, 2, is_f4(m.up));
  const auto down_shared =
      static_cast<size_t>(kWarps * down.bytes + std::max(x_bytes(m.down), m.inj ? x_bytes(m.inject) : 0));
  if (!is_hopper(s)) {
    hc_down_alone(s, m, d.as<float>(), r.as<float>());
  } else if (columns == 8) {
    launch(s, only ? hc_down_kernel<kOnly> : hc_down_kernel<kWalkStreams>,
           dim3(static_cast<unsigned>(tiles * groups * cluster)), kThreads, down_shared, cluster, m, down,
           d.as<float>(), r.as<float>(), per_stream, groups);
  } else {
    // As few blocks as two a multiprocessor.
    const int down_tiles = ceil_div(m.rank, 16);
    const auto blocks_of = [&](int n) {
      return (ceil_div(down_tiles, n) + (m.inj ? 1 : 0)) * groups * cluster;
    };
    int of_block = 1;
    while (of_block < kManyTiles && blocks_of(of_block) > 2 * multiprocessors(s)) ++of_block;
    launch(s, any ? hc_down_many_kernel<kWalkAny> : hc_down_many_kernel<kWalkStreams>,
           dim3(static_cast<unsigned>(blocks_of(of_block))), kThreads, down_shared, cluster, m, down,
           d.as<float>(), r.as<float>(), per_stream, groups, of_block);
  }
  launch(s,
         any            ? hc_up_kernel<2, kWalkAny>
         : columns == 8 ? only ? hc_up_kernel<1, kOnly> : hc_up_kernel<1, kWalkStreams>
                        : hc_up_kernel<2, kWalkStreams>,
         dim3(static_cast<unsigned>(ceil_div(m.width, 16) * groups)), m.streams * kHalves * 32,
         static_cast<size_t>(m.streams * kHalves * up.bytes + up_x), 1, m, up,
         static_cast<const float*>(d.as<float>()), static_cast<const float*>(r.as<float>()), groups);
}

}  // namespace quern::cuda

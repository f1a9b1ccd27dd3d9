// hc_mix for decode rows, in two launches that read down, inject and up once.
//
// The first is [down; inject] by the un-normalised x ⊙ (1 + norm): the normalisation is one scalar a stream,
// so a block that holds a piece of K within one stream also sums its squares, and who adds up the pieces scales
// each stream's. Up to four rows, or without clusters: every block of the second does that for itself, which
// costs it a few loads that are on their way together; more rows: the blocks of a cluster. The second is up, its
// sigmoid, and the mean over streams: two warps a stream, 16 columns of h a block.
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;  // of a block of the first
constexpr int kHalves = 2;                         // of K in the second, a warp each
constexpr int kFewRows = 4;  // two take 8.4 us so, three 12 by clusters; eight 18 so and 14 by clusters

// What streams, which are not normalised yet, are multiplied by for a weight that takes them in that order: F16 holds 64 times
// as much of them.
__device__ __forceinline__ float scale_of(XOrder order) { return order == XOrder::Brain ? 1.0f : 0x1p-6f; }

// Columns of x ⊙ (1 + norm), with the sums of squares of x on the way: squares[warp · n_squares + column].
struct ScaledRows {
  static constexpr int kEarly = 1;  // chunks a thread whose norm it holds before x is there
  const MixerView& m;
  XTile tile;
  float norm[kEarly][8];
  float scale;

  __device__ __forceinline__ ScaledRows(const MixerView& mixer, const XTile& t)
      : m(mixer), tile(t), scale(scale_of(t.order)) {
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

// What the first launch leaves of few rows: of each of `pieces` = streams · per_stream pieces of K the sums of
// [down; inject] and of the squares of x.
constexpr int kMaxPieces = 2 * kMaxStreams;
struct MixerPieces {
  float* sum = nullptr;  // [T, stride, kMaxPieces]: of down's rows, padded to whole tiles, then of inject's
  // [tiles, T, kMaxPieces]: a copy a tile, so that not all who read them ask one slice of the L2
  float* squares = nullptr;
  int32_t stride = 0, per_stream = 0, tiles = 0;
};
// What one value of [down; inject] of one row is made of.
struct MixerSums {
  float4 squares[2], sum[2];

  __device__ __forceinline__ static const float4* squares_of(const MixerView& m, const MixerPieces& pieces,
                                                             int t) {
    const int copy = static_cast<int>(blockIdx.x) % pieces.tiles;
    return reinterpret_cast<const float4*>(pieces.squares + (int64_t{copy} * m.n_rows + t) * kMaxPieces);
  }
  __device__ __forceinline__ static const float4* sums_of(const MixerPieces& pieces, int t, int n) {
    return reinterpret_cast<const float4*>(pieces.sum + (int64_t{t} * pieces.stride + n) * kMaxPieces);
  }
  __device__ __forceinline__ void load(const float4* of_squares, const float4* of_sums) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] = __ldcg(of_squares + i);
      sum[i] = __ldcg(of_sums + i);
    }
  }
  // Σ_s r[s] · (the sums of stream s), and r[s] = 1 / rms of stream s. `inverse`: 1 / width.
  __device__ __forceinline__ float add(const MixerView& m, int per_stream, float inverse,
                                       float (&r)[kMaxStreams]) const {
    const float q[kMaxPieces] = {squares[0].x, squares[0].y, squares[0].z, squares[0].w,
                                 squares[1].x, squares[1].y, squares[1].z, squares[1].w};
    const float v[kMaxPieces] = {sum[0].x, sum[0].y, sum[0].z, sum[0].w,
                                 sum[1].x, sum[1].y, sum[1].z, sum[1].w};
    float all = 0;
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      r[s] = rsqrtf((per_stream == 2 ? q[2 * s] + q[2 * s + 1] : q[s]) * inverse + m.eps);
      if (s < m.streams) all = fmaf(r[s], per_stream == 2 ? v[2 * s] + v[2 * s + 1] : v[s], all);
    }
    return all;
  }
};

// Block (tile of 16 rows of down or inject, group of eight rows of x, piece of K).
constexpr int kDownColumns = 8;
struct DownSums {
  float part[kWarps][kDownColumns * 16], part_squares[kWarps][kDownColumns];
};
template <unsigned kFormats>
__device__ __forceinline__ void hc_down(const MixerView& m, const RingPlan& plan, const MixerPieces& pieces,
                                        int piece, int first, int tile, bool is_inject, uint8_t* memory,
                                        DownSums& sums) {
  constexpr int kColumns = kDownColumns;
  auto& [part, part_squares] = sums;
  const WeightView w = known<kFormats>(choose(is_inject, m.inject, m.down));
  const int row = is_inject ? 0 : tile * 16;

  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32;
  const int steps = m.width / pieces.per_stream / step_values(w);  // of this block
  const int begin = piece * steps + part_begin(steps, warp, kWarps),
            end = piece * steps + part_begin(steps, warp + 1, kWarps);
  WeightRing ring(plan, memory + warp * plan.bytes, w);
  ring.aim(w, row, w, row + 8, begin, end);
  ring.begin(begin, end - begin);
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) ring.put();
  const int n_columns = min(kColumns, m.n_rows - first);
  const ScaledRows rows(
      m, x_tile(memory + kWarps * plan.bytes, w, n_columns, piece * steps, (piece + 1) * steps));
  pdl_wait();
  rows.stage(first, &part_squares[0][0], kColumns);
  __syncthreads();
  float acc[1][4] = {};
  walk<1, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring,
                    x_place(rows.tile, w, tid % 32 / 4, begin), 0, 1, [&] { ring.put(); });
  finish<1>(acc, w, row, w, row + 8);
  store_tile<1>(part[warp], acc);
  __syncthreads();
  if (tid < n_columns * 16) {
    float v = part[0][tid];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part[p][tid];
    pieces.sum[(int64_t{first + tid / 16} * pieces.stride + tile * 16 + tid % 16) * kMaxPieces + piece] = v;
  }
  if (const int c = kThreads - 1 - tid; c < n_columns) {  // by other warps than the sums
    float v = part_squares[0][c];
#pragma unroll
    for (int p = 1; p < kWarps; ++p) v += part_squares[p][c];
    pieces.squares[(int64_t{tile} * m.n_rows + first + c) * kMaxPieces + piece] = v;
  }
}
template <unsigned kFormats>
__global__ __launch_bounds__(kThreads, 3) void hc_down_kernel(const __grid_constant__ MixerView m,
                                                              const __grid_constant__ RingPlan plan,
                                                              const __grid_constant__ MixerPieces pieces,
                                                              int row_groups) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ DownSums sums;
  pdl_launch();
  const int n_pieces = m.streams * pieces.per_stream, piece = static_cast<int>(blockIdx.x) % n_pieces,
            at = static_cast<int>(blockIdx.x) / n_pieces;
  const int tile = at / row_groups, first = at % row_groups * kDownColumns;
  const bool is_inject = tile >= (m.rank + 15) / 16;
  with_known<kFormats>(is_inject ? m.inject.kind : m.down.kind, [&]<unsigned kKnown>() {
    hc_down<kKnown>(m, plan, pieces, piece, first, tile, is_inject, memory, sums);
  });
}

// More rows: a block keeps its 16 rows' x for up to kManyTiles tiles of down, and the blocks of a cluster share
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
  pdl_launch();
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
    const float r = rsqrtf(q * (1.0f / static_cast<float>(m.width)) + m.eps);
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

// Two warps a stream, 16 columns of h a block. kPieces: d and r come as the pieces of few rows, and blocks behind the others
// add up inject's; otherwise they lie in d [T, rank] and r [T, streams].
struct MixerDown {
  const float *d = nullptr, *r = nullptr;
  MixerPieces pieces;
};
template <int kTiles>
struct UpSums {
  float mix[kMaxStreams][kHalves][8 * kTiles * 16];
  float r[8 * kTiles][kMaxStreams];
};
// What the sums of ScaledRows are multiplied by: the mean over streams is in it.
__device__ __forceinline__ float unscaled(const MixerView& m, const WeightView& w) {
  return 1.0f / (static_cast<float>(m.streams) * scale_of(x_order(w)));
}
// Columns of x as the product takes them, of pieces; r of its rows. Addresses are made before the wait, which is in here.
template <int kTiles, typename Also>
__device__ __forceinline__ void stage_pieces(const MixerView& m, const MixerPieces& pieces, const XTile& x,
                                             int first, UpSums<kTiles>& sums, Also&& also) {
  const int tid = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  float of_down = unscaled(m, m.down), of_width = 1.0f / static_cast<float>(m.width);
  const int all = x.n_columns * x.width;
  int i = min(tid, all - 1), c = x.n_columns == 1 ? 0 : i / x.width, k = i - c * x.width;
  const float4 *of_squares = MixerSums::squares_of(m, pieces, first + c),
               *of_sums = MixerSums::sums_of(pieces, first + c, min(k, m.rank - 1));
  made_here(of_squares);
  made_here(of_sums);
  made_here(of_down);
  made_here(of_width);
  pdl_wait();
  MixerSums value;
  value.load(of_squares, of_sums);
  also();
  i = tid;
#pragma unroll 1
  while (i < all) {
    float r[kMaxStreams];
    const float v = value.add(m, pieces.per_stream, of_width, r);
    reinterpret_cast<uint16_t*>(x.x + c * x.stride)[XTile::place(x.order, k)] =
        XTile::packed(x.order, k < m.rank ? scalar::silu(v * of_down) : 0.0f);
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      if (k == s) sums.r[c][s] = r[s];
    }
    i += n_threads;
    if (i >= all) break;
    c = i / x.width, k = i - c * x.width;
    value.load(MixerSums::squares_of(m, pieces, first + c),
               MixerSums::sums_of(pieces, first + c, min(k, m.rank - 1)));
  }
}
// inj of the rows: by a block of its own, so that no other one is late.
__device__ __forceinline__ void inject_pieces(const MixerView& m, const MixerPieces& pieces, int first,
                                              int n_columns) {
  pdl_wait();
  for (int j = static_cast<int>(threadIdx.x); j < n_columns * m.streams; j += static_cast<int>(blockDim.x)) {
    const int t = first + j / m.streams, n = j % m.streams;
    MixerSums value;
    value.load(MixerSums::squares_of(m, pieces, t),
               MixerSums::sums_of(pieces, t, (m.rank + 15) / 16 * 16 + n));
    float r[kMaxStreams];
    const float v = value.add(m, pieces.per_stream, 1.0f / static_cast<float>(m.width), r);
    m.inj[t * m.inj_stride + n] = 2.0f * scalar::sigmoid(v * unscaled(m, m.inject));
  }
}
template <int kTiles, unsigned kFormats, bool kPieces>
__device__ __forceinline__ void hc_up(const MixerView& m, const RingPlan& plan, const MixerDown& down,
                                      int row_groups, uint8_t* memory, UpSums<kTiles>& sums) {
  constexpr int kColumns = 8 * kTiles;
  const int i0 = static_cast<int>(blockIdx.x) / row_groups * 16;
  const int first = static_cast<int>(blockIdx.x) % row_groups * kColumns;
  if (kPieces && i0 >= m.width) {
    inject_pieces(m, down.pieces, first, min(kColumns, m.n_rows - first));
    return;
  }
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
  // What the means are of: a thread has one stream of a column, and a warp all streams of eight columns of a row.
  const int n_columns = min(kColumns, m.n_rows - first), items = n_columns * 64;
  const auto row_of = [](int i) { return i / 64; };
  const auto column_of = [](int i) { return i / 32 % 2 * 8 + i % 8; };
  const int stream = tid % 32 / 8;
  const auto at_of = [&](int i) { return int64_t{stream} * m.width + i0 + column_of(i); };
  const auto there = [&](int i) { return i < items && stream < m.streams && i0 + column_of(i) < m.width; };
  const float* of_x = m.x + (first + row_of(tid)) * m.x_stride + at_of(tid);
  float x_of = 0, norm_of = there(tid) ? m.norm[at_of(tid)] : 0.0f;
  const XTile x = x_tile(memory + m.streams * kHalves * plan.bytes, w, n_columns, 0, steps);
  made_here(of_x);
  const auto load_x = [&] {
    if (there(tid)) x_of = __ldcg(of_x);
  };
  if constexpr (kPieces) {
    stage_pieces(m, down.pieces, x, first, sums, load_x);
  } else {
    pdl_wait();
    load_x();
    const auto rows = known_rows<kFormats>(RowsF32{down.d, m.rank, m.n_rows, m.rank, m.rank % 16 == 0});
    for (int i = tid; i < n_columns * m.streams; i += n_threads)
      sums.r[i / m.streams][i % m.streams] = __ldcg(down.r + first * m.streams + i);
    if (tid < 64 || n_threads == kThreads) {
      n_threads == kThreads ? stage_rows<kThreads>(x, rows, nullptr, first, tid)
                            : stage_rows<64>(x, rows, nullptr, first, tid);
    }
  }
  __syncthreads();
  float acc[kTiles][4] = {};
  const uint32_t from = x_place(x, w, tid % 32 / 4, begin);
  const int eight = kTiles == 1 ? 0 : static_cast<int>(x_place(x, w, 8 + tid % 32 / 4, begin) - from);
  walk<kTiles, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring, from, eight, kTiles,
                         [&] { ring.put(); });
  finish<kTiles>(acc, w, row, w, row + 8);
  store_tile<kTiles>(sums.mix[warp / kHalves][warp % kHalves], acc);
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(m.streams);
#pragma unroll 1
  for (int i = tid; i < items; i += n_threads) {
    const int t = row_of(i), c = column_of(i);
    const bool mine = there(i);
    if (i != tid && mine) {
      x_of = m.x[(first + t) * m.x_stride + at_of(i)];
      norm_of = m.norm[at_of(i)];
    }
    float gate = 0, n = 0;
    if (mine) {
      gate = scalar::sigmoid(sums.mix[stream][0][t * 16 + c] + sums.mix[stream][1][t * 16 + c]);
      n = x_of * sums.r[t][stream] * (1.0f + norm_of);
    }
    float v = 0;
#pragma unroll
    for (int q = 0; q < kMaxStreams; ++q) {
      const int lane = tid % 8 + 8 * q;
      const float g = __shfl_sync(0xffffffffu, gate, lane), of_stream = __shfl_sync(0xffffffffu, n, lane);
      if (q < m.streams) v = fmaf(g, of_stream, v);
    }
    if (stream == 0 && i0 + c < m.width) m.h[(first + t) * m.h_stride + i0 + c] = v * inverse;
  }
}
template <int kTiles, unsigned kFormats, bool kPieces>
__global__ __launch_bounds__(kMaxStreams* kHalves * 32,
                             kTiles == 1 ? 3 : 2) void hc_up_kernel(const __grid_constant__ MixerView m,
                                                                    const __grid_constant__ RingPlan plan,
                                                                    const __grid_constant__ MixerDown down,
                                                                    int row_groups) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ UpSums<kTiles> sums;
  pdl_launch();
  with_known<kFormats>(m.up.kind, [&]<unsigned kKnown>() {
    hc_up<kTiles, kKnown, kPieces>(m, plan, down, row_groups, memory, sums);
  });
}

}  // namespace

int hc_step(const MixerView& m) {
  return std::max({kStep, step_values(m.down), m.inj ? step_values(m.inject) : 0});
}

void hc_mix_decode(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.width % hc_step(m) == 0 && m.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.x) % 16 == 0,
              "hc_mix on CUDA takes streams of whole steps");
  ScratchScope scope(s);
  const int per_stream = m.width % (2 * hc_step(m)) == 0 ? 2 : 1, n_pieces = m.streams * per_stream;
  const int down_tiles = ceil_div(m.rank, 16), tiles = down_tiles + (m.inj ? 1 : 0);
  const bool any = !streams(m.down) || !streams(m.up) || (m.inj && !streams(m.inject));
  const bool only =
      only_known(m.down) && only_known(m.up) && (!m.inj || only_known(m.inject)) && m.rank % 16 == 0;
  const bool few = m.n_rows <= kFewRows || !is_hopper(s);
  const int columns = few ? 8 : 16, groups = ceil_div(m.n_rows, columns), used = std::min(columns, m.n_rows);
  const auto x_bytes = [&](const WeightView& w) {
    return x_stride(w, m.width / per_stream / step_values(w)) * used;
  };
  const int block_width = m.width / per_stream;
  const auto down_steps = [&](const WeightView& w) { return ceil_div(block_width / step_values(w), kWarps); };
  const int up_x = x_stride(m.up, stream_steps(m.up)) * used,
            down_x = std::max(x_bytes(m.down), m.inj ? x_bytes(m.inject) : 0);
  constexpr int kDownOwn = 20 * 1024, kUpOwn = 10 * 1024;  // at least the kernels' own arrays
  const RingPlan down = ring_plan_beside(s, kWarps, down_x + kDownOwn,
                                         std::max(down_steps(m.down), m.inj ? down_steps(m.inject) : 1), 1, 2,
                                         is_f4(m.down) || (m.inj && is_f4(m.inject))),
                 up = ring_plan_beside(s, m.streams * kHalves, up_x + kUpOwn,
                                       ceil_div(stream_steps(m.up), kHalves), 1, 2, is_f4(m.up));
  const auto down_shared = static_cast<size_t>(kWarps * down.bytes + down_x),
             up_shared = static_cast<size_t>(m.streams * kHalves * up.bytes + up_x);
  const int up_blocks = ceil_div(m.width, 16);
  MixerDown between;
  if (few) {
    MixerPieces& pieces = between.pieces;
    pieces.per_stream = per_stream;
    pieces.stride = tiles * 16;
    pieces.sum = s.scratch(DType::F32, {m.n_rows * pieces.stride, kMaxPieces}).as<float>();
    pieces.tiles = tiles;
    pieces.squares = s.scratch(DType::F32, {tiles * m.n_rows, kMaxPieces}).as<float>();
    launch(s,
           only  ? hc_down_kernel<kOnly>
           : any ? hc_down_kernel<kWalkAny>
                 : hc_down_kernel<kWalkStreams>,
           dim3(static_cast<unsigned>(tiles * groups * n_pieces)), kThreads, down_shared, 1, m, down, pieces,
           groups);
    launch(s,
           only  ? hc_up_kernel<1, kOnly, true>
           : any ? hc_up_kernel<1, kWalkAny, true>
                 : hc_up_kernel<1, kWalkStreams, true>,
           dim3(static_cast<unsigned>((up_blocks + (m.inj ? 1 : 0)) * groups)), m.streams * kHalves * 32,
           up_shared, 1, m, up, between, groups);
    return;
  }
  const Tensor d = s.scratch(DType::F32, {m.n_rows, m.rank}),
               r = s.scratch(DType::F32, {m.n_rows, m.streams});
  between.d = d.as<float>();
  between.r = r.as<float>();
  // As few blocks as two a multiprocessor.
  const auto blocks_of = [&](int n) {
    return (ceil_div(down_tiles, n) + (m.inj ? 1 : 0)) * groups * n_pieces;
  };
  int of_block = 1;
  while (of_block < kManyTiles && blocks_of(of_block) > 2 * multiprocessors(s)) ++of_block;
  launch(s, any ? hc_down_many_kernel<kWalkAny> : hc_down_many_kernel<kWalkStreams>,
         dim3(static_cast<unsigned>(blocks_of(of_block))), kThreads, down_shared, n_pieces, m, down,
         d.as<float>(), r.as<float>(), per_stream, groups, of_block);
  const auto up_kernel = [&]<int kTiles>() {
    return any ? hc_up_kernel<kTiles, kWalkAny, false> : hc_up_kernel<kTiles, kWalkStreams, false>;
  };
  launch(s, m.n_rows <= 8 ? up_kernel.operator()<1>() : up_kernel.operator()<2>(),
         dim3(static_cast<unsigned>(up_blocks * groups)), m.streams * kHalves * 32, up_shared, 1, m, up,
         between, groups);
}

}  // namespace quern::cuda

// linear for decode rows: skinny products that read each weight once, whatever the number of rows.
//
// K is cut into two pieces, or into sixteen over the four blocks of a cluster where a long K meets few rows of weight.
// The pieces of a block are summed in order, then blocks: an order that depends on (n, k) only.
//
// One row by a long K: a block takes a whole tile of 16 rows of the weight, a warp two pieces. The sums are those of the
// cluster that more rows take, whose x leaves no room for whole tiles.
// Up to eight rows: a warp takes a piece of a tile of 16 rows of a weight, and tile after tile; x is staged once.
// More rows, 32 at a time: a warp takes a tile and walks the pieces itself, and the eight warps of a block share x, which
// passes through shared memory 128 values of K at a time. Blocks of the same weights run side by side: the second finds
// them in the cache.
#include <array>

#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kFewRows = 8, kFewWarps = 4, kFewThreads = kFewWarps * 32,
              kFewBlocks = 5;  // of a multiprocessor, at most
constexpr int kManyWarps = 8, kManyThreads = kManyWarps * 32, kManyTiles = 4, kManyRows = 8 * kManyTiles,
              kPassValues = 128;

struct DecodeArgs {
  std::array<ProductView, kMaxProducts> products;  // first_tile: the first of its blocks
  int32_t n_products = 0;
  int32_t cluster = 1, pieces = 1, tiles_per_block = 1;  // pieces of K of one block
  RingPlan plan;
  RowsF32 x;
  Epilogue epilogue = Epilogue::Store;
  Injection injection;

  __device__ __forceinline__ const ProductView& product_of(int block) const {
    int p = 0;
    while (p + 1 < n_products && block >= products[p + 1].first_tile) ++p;
    return products[p];
  }
  __device__ __forceinline__ void write(const ProductView& product, int t, int n, float v) const {
    if (epilogue == Epilogue::Store) {
      product.y[t * product.y_stride + n] = v;
      return;
    }
    for (int s = 0; s < injection.streams; ++s) {
      float* y = product.y + t * product.y_stride + int64_t{s} * product.w.n + n;
      *y = fmaf(injection.inj[t * injection.stride + s], v, *y);
    }
  }
};

// What an injection adds to, read before the product is there.
struct Residual {
  float before[kMaxStreams], inj[kMaxStreams];

  __device__ __forceinline__ static float* at(const ProductView& p, int t, int s, int n) {
    return p.y + t * p.y_stride + int64_t{s} * p.w.n + n;
  }
  __device__ __forceinline__ void load(const DecodeArgs& a, const ProductView& p, int t, int n) {
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      if (s >= a.injection.streams) break;
      before[s] = *at(p, t, s, n);
      inj[s] = a.injection.inj[t * a.injection.stride + s];
    }
  }
  __device__ __forceinline__ void add(const DecodeArgs& a, const ProductView& p, int t, int n,
                                      float v) const {
#pragma unroll
    for (int s = 0; s < kMaxStreams; ++s) {
      if (s >= a.injection.streams) break;
      *at(p, t, s, n) = fmaf(inj[s], v, before[s]);
    }
  }
};

template <unsigned kFormats>
__global__ __launch_bounds__(kFewThreads,
                             kFewBlocks) void linear_few_kernel(const __grid_constant__ DecodeArgs a) {
  pdl_launch();
  constexpr int kTile = 8 * 16;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[2][kFewWarps][kTile];
  __shared__ float sum[kTile];
  const int rank = static_cast<int>(blockIdx.x) % a.cluster, block = static_cast<int>(blockIdx.x) / a.cluster;
  const ProductView& product = a.product_of(block);
  const WeightView& w = product.w;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, pieces = a.pieces,
            sides = kFewWarps / pieces;
  const int side = warp / pieces;  // of `sides` tiles side by side, the warp's
  const int first_tile = (block - product.first_tile) * a.tiles_per_block,
            end_tile = min(first_tile + a.tiles_per_block, (w.n + 15) / 16);
  const int steps = stream_steps(w), parts = pieces * a.cluster;
  const int begin = part_begin(steps, rank * pieces + warp % pieces, parts),
            end = part_begin(steps, rank * pieces + warp % pieces + 1, parts);

  WeightRing ring(a.plan, memory + warp * a.plan.bytes, w);
  int tile_in = first_tile + side;  // that goes into the ring
  ring.aim(w, tile_in * 16, w, tile_in * 16 + 8, begin, tile_in < end_tile ? end : begin);
  const auto put = [&] {
    if (ring.empty() && tile_in + sides < end_tile) {
      tile_in += sides;
      ring.aim(w, tile_in * 16, w, tile_in * 16 + 8, begin, end);
    }
    ring.put();
  };
#pragma unroll 1
  for (int i = 0; i < a.plan.depth; ++i) put();

  const XTile x =
      x_tile(memory + kFewWarps * a.plan.bytes, w, a.x.n_rows, part_begin(steps, rank * pieces, parts),
             part_begin(steps, (rank + 1) * pieces, parts));
  pdl_wait();
  const bool early = a.epilogue == Epilogue::Inject && sides == 1 && a.tiles_per_block == 1 && rank == 0 &&
                     tid / 16 < a.x.n_rows && first_tile * 16 + tid % 16 < w.n;
  Residual residual;
  if (early) residual.load(a, product, tid / 16, first_tile * 16 + tid % 16);
  stage_rows<kFewThreads>(x, a.x, nullptr, 0, tid);
  __syncthreads();
  const uint32_t from = x_place(x, w, tid % 32 / 4, begin);
  int buffer = 0;
  for (int tile0 = first_tile; tile0 < end_tile; tile0 += sides, buffer ^= 1) {
    const int row = (tile0 + side) * 16;
    if (tile0 + side < end_tile) {
      float acc[1][4] = {};
      ring.begin(begin, end - begin);
      walk<1, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring, from, 0, 1, put);
      finish<1>(acc, w, row, w, row + 8);
      store_tile<1>(part[buffer][warp], acc);
    }
    __syncthreads();
    for (int s = 0; s < min(sides, end_tile - tile0); ++s) {
      const int t = tid / 16, n = (tile0 + s) * 16 + tid % 16;
      float v = part[buffer][s * pieces][tid];
      for (int p = 1; p < pieces; ++p) v += part[buffer][s * pieces + p][tid];
      if (a.cluster > 1) {
        sum[tid] = v;  // one tile a block
        cluster_arrive();
        cluster_wait();
        for (int r = 1; r < a.cluster && rank == 0; ++r) v += cluster_load(&sum[tid], r);
      }
      if (rank == 0 && t < a.x.n_rows && n < w.n) {
        early ? residual.add(a, product, t, n, v) : a.write(product, t, n, v);
      }
      if (a.cluster > 1) {  // the others' shared memory lives until the first has read it
        cluster_arrive();
        cluster_wait();
      }
    }
  }
}

constexpr int kLongWarps = 8, kLongThreads = kLongWarps * 32, kLongBlocks = 4,
              kLongPieces = 4;  // pieces as of a cluster
using LongTile = BlockTiles<kLongThreads>;

template <unsigned kFormats>
__global__ __launch_bounds__(kLongThreads, 2) void linear_long_kernel(const __grid_constant__ DecodeArgs a) {
  pdl_launch();
  constexpr int kPieces = kLongBlocks * kLongPieces, kEach = kPieces / kLongWarps;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[kPieces][16];
  const int block = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x), warp = tid / 32,
            lane = tid % 32;
  const ProductView& product = a.product_of(block);
  const WeightView& w = product.w;
  const int row = (block - product.first_tile) * 16, steps = stream_steps(w);
  LongTile tile(a.plan, memory, w);
  __syncthreads();
  tile.aim(w, row, w, row + 8, 0, steps);
  tile.put();
  const XTile x = x_tile(memory + a.plan.bytes, w, 1, 0, steps);
  pdl_wait();
  const int n = row + tid;
  const bool writes = tid < 16 && n < w.n, injects = a.epilogue == Epilogue::Inject;
  Residual residual;
  if (writes && injects) residual.load(a, product, 0, n);
  stage_rows<kLongThreads>(x, a.x, nullptr, 0, tid);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < kEach; ++i) {
    const int piece = warp * kEach + i, first = part_begin(steps, piece, kPieces),
              last = part_begin(steps, piece + 1, kPieces);
    float acc[1][4] = {};
    tile.begin(first, last - first);
    walk<1, kFormats, true>(acc, w, row, w, row + 8, first, last - first, tile,
                            x_place(x, w, lane / 4, first), 0, 1, [] {});
    finish<1>(acc, w, row, w, row + 8);
    if (lane % 4 == 0) {
      part[piece][lane / 4] = acc[0][0];
      part[piece][lane / 4 + 8] = acc[0][2];
    }
  }
  __syncthreads();
  if (!writes) return;
  float v = 0;
#pragma unroll
  for (int b = 0; b < kLongBlocks; ++b) {
    float of_block = part[b * kLongPieces][tid];
#pragma unroll
    for (int p = 1; p < kLongPieces; ++p) of_block += part[b * kLongPieces + p][tid];
    v = b == 0 ? of_block : v + of_block;
  }
  injects ? residual.add(a, product, 0, n, v) : a.write(product, 0, n, v);
}

// Columns are rows `first` … of x; those beyond n_rows are zeros.
struct Pass {
  float4 v[kManyRows * kPassValues / 8 / kManyThreads][2];

  __device__ __forceinline__ void load(const RowsF32& x, int first, int k0, int n_tiles) {
#pragma unroll
    for (int q = 0; q < kManyRows * kPassValues / 8 / kManyThreads; ++q) {
      const int i = static_cast<int>(threadIdx.x) + q * kManyThreads, c = i / (kPassValues / 8),
                k = k0 + i % (kPassValues / 8) * 8;
      if (c >= 8 * n_tiles) break;
      float f[8] = {};
      if (first + c < x.n_rows) load_eight(f, x.row(first + c), k, x.k, x.wide);
      v[q][0] = make_float4(f[0], f[1], f[2], f[3]);
      v[q][1] = make_float4(f[4], f[5], f[6], f[7]);
    }
  }
  __device__ __forceinline__ void store(const XTile& tile, int n_tiles) const {
#pragma unroll
    for (int q = 0; q < kManyRows * kPassValues / 8 / kManyThreads; ++q) {
      const int i = static_cast<int>(threadIdx.x) + q * kManyThreads, c = i / (kPassValues / 8);
      if (c >= 8 * n_tiles) break;
      const float f[8] = {v[q][0].x, v[q][0].y, v[q][0].z, v[q][0].w,
                          v[q][1].x, v[q][1].y, v[q][1].z, v[q][1].w};
      tile.put(c, i % (kPassValues / 8), f);
    }
  }
};

template <unsigned kFormats>
__global__ __launch_bounds__(kManyThreads, 2) void linear_many_kernel(const __grid_constant__ DecodeArgs a,
                                                                      int row_groups) {
  pdl_launch();
  constexpr int kTile = kManyRows * 16;
  extern __shared__ __align__(128) uint8_t memory[];
  const int rank = static_cast<int>(blockIdx.x) % a.cluster, at = static_cast<int>(blockIdx.x) / a.cluster;
  const int block = at / row_groups, first = at % row_groups * kManyRows;
  const ProductView& product = a.product_of(block);
  const WeightView& w = product.w;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = (block - product.first_tile) * kManyWarps + warp, row = tile * 16;
  const bool works = row < w.n;
  const int steps = stream_steps(w), pieces = a.pieces, parts = pieces * a.cluster;
  const int begin = part_begin(steps, rank * pieces, parts),
            end = part_begin(steps, (rank + 1) * pieces, parts);
  const int n_columns = min(kManyRows, a.x.n_rows - first), n_tiles = (n_columns + 7) / 8;

  WeightRing ring(a.plan, memory + warp * a.plan.bytes, w);
  ring.aim(w, row, w, row + 8, begin, works ? end : begin);
  ring.begin(begin, end - begin);
  const auto put = [&] { ring.put(); };
#pragma unroll 1
  for (int i = 0; i < a.plan.depth; ++i) put();

  const int pass_steps = kPassValues / step_values(w);
  XTile x[2];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    x[b] = x_tile(memory + kManyWarps * a.plan.bytes, w, 8 * n_tiles, 0, pass_steps);
    x[b].x += b * x[b].stride * 8 * n_tiles;
  }
  const float rest = code_rest(w);
  const float f0 = w.row_factor(row + lane / 4) * rest, f1 = w.row_factor(row + 8 + lane / 4) * rest;
  float acc[kManyTiles][4] = {}, total[kManyTiles][4] = {};
  int piece = 0, piece_end = part_begin(steps, rank * pieces + 1, parts);
  const auto close_pieces = [&](int step) {
    while (piece < pieces && step == piece_end) {
#pragma unroll
      for (int j = 0; j < kManyTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float v = acc[j][i] * (i < 2 ? f0 : f1);
          total[j][i] = piece == 0 ? v : total[j][i] + v;
          acc[j][i] = 0;
        }
      }
      ++piece;
      piece_end = part_begin(steps, rank * pieces + piece + 1, parts);
    }
  };
  pdl_wait();
  Pass next;
  next.load(a.x, first, begin * step_values(w), n_tiles);
  next.store(x[0], n_tiles);
  __syncthreads();
  close_pieces(begin);
  for (int at_step = begin, b = 0; at_step < end; at_step += pass_steps, b ^= 1) {
    const int stop = min(at_step + pass_steps, end);
    const bool more = stop < end;
    if (more) next.load(a.x, first, stop * step_values(w), n_tiles);
    if (works) {
      const uint32_t from = x_place(b == 0 ? x[0] : x[1], w, lane / 4, 0);
      for (int step = at_step; step < stop;) {
        const int until = min(stop, piece_end);
        walk<kManyTiles, kFormats>(acc, w, row, w, row + 8, step, until - step, ring,
                                   from + (step - at_step) * step_values(w) * 2, 8 * x[0].stride, n_tiles,
                                   put);
        step = until;
        close_pieces(step);
      }
    }
    if (more) next.store(b == 0 ? x[1] : x[0], n_tiles);
    __syncthreads();
  }

  float* sums = reinterpret_cast<float*>(x[0].x);  // used up
#pragma unroll
  for (int j = 0; j < kManyTiles; ++j) {
    if (j >= n_tiles) break;
    const float one[1][4] = {{total[j][0], total[j][1], total[j][2], total[j][3]}};
    store_tile<1>(sums + warp * kTile + j * 128, one);
  }
  if (a.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncwarp();
  }
  if (rank == 0 && works) {
    for (int i = lane; i < 16 * n_columns; i += 32) {
      const int t = first + i / 16, n = row + i % 16;
      if (n >= w.n) continue;
      const float* mine = sums + warp * kTile + i;
      float v = *mine;
      for (int r = 1; r < a.cluster; ++r) v += cluster_load(mine, r);
      a.write(product, t, n, v);
    }
  }
  if (a.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
}

// A function of (n, k) alone: it is part of the order of the sum.
int cluster_of(Stream& s, const WeightView& w) {
  return is_hopper(s) && w.k >= 4096 && w.n <= 4096 ? kLongBlocks : 1;
}

// Tiles of a block, or pairs of them: few blocks, since to begin one costs about a tenth of a tile, and about the same number of tiles for
// every multiprocessor.
int few_tiles(Stream& s, int tiles, int resident) {
  const int n = multiprocessors(s), most = ceil_div(tiles, resident * n);
  int best = most;
  double best_cost = 1e30;
  for (int r = 1; r <= most; ++r) {
    const int n_blocks = ceil_div(tiles, r), of_one = ceil_div(n_blocks, n);
    const double cost = of_one * (r + 0.1);
    if ((r == most || n_blocks <= 2 * resident * n) && cost < best_cost) {
      best_cost = cost;
      best = r;
    }
  }
  return best;
}

}  // namespace

void linear_decode(Stream& s, std::span<const ProductView> products, const RowsF32& x, Epilogue epilogue,
                   const Injection& injection) {
  QUERN_CHECK(injection.streams <= kMaxStreams, "linear_inject on CUDA takes at most 4 streams");
  const bool few = x.n_rows <= kFewRows;
  for (size_t begin = 0; begin < products.size();) {
    DecodeArgs a;
    a.cluster = cluster_of(s, products[begin].w);
    a.pieces = a.cluster > 1 ? kLongPieces : 2;
    a.x = x;
    a.epilogue = epilogue;
    a.injection = injection;
    size_t end = begin;
    int tiles = 0;
    for (; end < products.size() && a.n_products < kMaxProducts; ++end) {
      if (cluster_of(s, products[end].w) != a.cluster) break;
      a.products[a.n_products++] = products[end];
      tiles += ceil_div(products[end].w.n, 16);
    }
    begin = end;
    int x_bytes = 0, most_steps = 1;
    bool all_stream = true, f4 = false;
    for (int i = 0; i < a.n_products; ++i) {
      const WeightView& w = a.products[i].w;
      all_stream &= streams(w);
      f4 |= is_f4(w);
      const int of_block = ceil_div(stream_steps(w), a.cluster) + 1;
      most_steps = std::max(most_steps, few ? ceil_div(stream_steps(w), a.cluster * a.pieces) : of_block);
      x_bytes = std::max(x_bytes, few ? x_stride(w, of_block) * x.n_rows
                                      : 2 * kManyRows * x_stride(w, kPassValues / step_values(w)));
    }
    if (a.cluster > 1 && x.n_rows == 1 && a.n_products == 1 && LongTile::takes(a.products[0].w)) {
      const WeightView& w = a.products[0].w;
      a.products[0].first_tile = 0;
      a.plan = LongTile::plan_of(w, 1, true);
      launch(s, linear_long_kernel<kWalkStreams>, dim3(blocks(w.n, 16)), kLongThreads,
             static_cast<size_t>(a.plan.bytes + x_stride(w, stream_steps(w))), 1, a);
      continue;
    }
    a.plan = ring_plan(most_steps, a.cluster == 1 ? 2 : 1, 2, f4, few ? kMaxStageSteps : 3);
    const int few_bytes = kFewWarps * a.plan.bytes + x_bytes, sides = kFewWarps / a.pieces,
              resident = std::clamp(220 * 1024 / (few_bytes + 6 * 1024), 1, kFewBlocks);
    a.tiles_per_block = !few             ? kManyWarps
                        : a.cluster == 1 ? sides * few_tiles(s, ceil_div(tiles, sides), resident)
                                         : 1;
    int n_blocks = 0;
    for (int i = 0; i < a.n_products; ++i) {
      a.products[i].first_tile = n_blocks;
      n_blocks += ceil_div(ceil_div(a.products[i].w.n, 16), a.tiles_per_block);
    }
    if (few) {
      launch(s, all_stream ? linear_few_kernel<kWalkStreams> : linear_few_kernel<kWalkAny>,
             dim3(static_cast<unsigned>(n_blocks * a.cluster)), kFewThreads, static_cast<size_t>(few_bytes),
             a.cluster, a);
    } else {
      const int groups = ceil_div(x.n_rows, kManyRows);
      launch(
          s, all_stream ? linear_many_kernel<kWalkStreams> : linear_many_kernel<kWalkAny>,
          dim3(static_cast<unsigned>(n_blocks * groups * a.cluster)), kManyThreads,
          static_cast<size_t>(kManyWarps * a.plan.bytes + std::max(x_bytes, kManyWarps * kManyRows * 16 * 4)),
          a.cluster, a, groups);
    }
  }
}

}  // namespace quern::cuda

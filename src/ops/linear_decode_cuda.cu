// linear for decode rows: skinny products that read each weight once, whatever the number of rows.
//
// K is cut into two pieces, or into sixteen over the four blocks of a cluster where a long K meets few rows of weight.
// The pieces of a block are summed in order, then blocks: an order that depends on (n, k) only.
//
// One row by a long K: a block takes a whole tile of 16 rows of the weight, a warp two pieces. The sums are those of the
// cluster that more rows take, whose x leaves no room for whole tiles.
// Up to eight rows: a warp takes a piece of a tile of 16 rows of a weight, and tile after tile; x is staged once.
// More rows, 32 at a time: a warp takes a tile and walks the pieces itself, and the eight warps of a block share x, which
// passes through shared memory 128 values of K at a time. A kernel before it rounds x and lays it out as the products
// take it, so that what a pass needs is one bulk copy. Here instructions bind, not the memory, so FP8 weights have a walk
// of their own: a pass of a tile's rows comes by cp.async, under one scale, and meets all columns without a branch.
#include <array>

#include "ops/cuda/f8_tile.cuh"
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kFewRows = 8, kFewWarps = 4, kFewThreads = kFewWarps * 32,
              kFewBlocks = 5;  // of a multiprocessor, at most
constexpr int kManyWarps = 8, kManyThreads = kManyWarps * 32, kPassValues = 128, kManyStages = 3,
              kMaxOrders = 4;
static_assert(kPassValues == kF8Pass);
// Tiles of eight rows that a block has.
int many_tiles(int n_rows) { return n_rows <= 16 ? 2 : 4; }

// x as one kind of weight takes it: [group of rows][pass][row][stride bytes], zeros beyond x.
struct PackedX {
  XOrder order = XOrder::Brain;
  int32_t stride = 0;
  uint8_t* x = nullptr;
};
using PackedXs = std::array<PackedX, kMaxOrders>;

struct DecodeArgs {
  std::array<ProductView, kMaxProducts> products;  // first_tile: the first of its blocks
  int32_t n_products = 0;
  int32_t cluster = 1, pieces = 1, tiles_per_block = 1;  // pieces of K of one block
  RingPlan plan;
  std::array<int8_t, kMaxProducts> packed{};  // of more than kFewRows rows: which of these
  PackedXs packed_x;
  int32_t n_passes = 0, weight_bytes = 0;  // of shared memory, before the passes
  RowsF32 x;
  Epilogue epilogue = Epilogue::Store;
  Injection injection;

  __device__ __forceinline__ int index_of(int block) const {
    int p = 0;
    while (p + 1 < n_products && block >= products[p + 1].first_tile) ++p;
    return p;
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

constexpr int kFewTile = 8 * 16;
struct FewSums {
  float part[2][kFewWarps][kFewTile], sum[kFewTile];
};
template <unsigned kFormats>
__device__ __forceinline__ void linear_few(const DecodeArgs& a, const ProductView& product, int block,
                                           int rank, uint8_t* memory, FewSums& sums) {
  auto& [part, sum] = sums;
  const WeightView w = known<kFormats>(product.w);
  const RowsF32 x_rows = known_rows<kFormats>(a.x);
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
  stage_rows<kFewThreads>(x, x_rows, nullptr, 0, tid);
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
// So many registers that beside four blocks there is room for one of the delta net's, which asks for its state that early.
template <unsigned kFormats>
__global__ __maxnreg__(kFormats == kOnly ? 88
                                         : 96) void linear_few_kernel(const __grid_constant__ DecodeArgs a) {
  pdl_launch();
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ FewSums sums;
  const bool alone = a.cluster == 1;
  const int rank = alone ? 0 : static_cast<int>(blockIdx.x) % a.cluster,
            block = alone ? static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) / a.cluster;
  const ProductView& product = a.products[a.index_of(block)];
  with_known<kFormats>(product.w.kind,
                       [&]<unsigned kKnown>() { linear_few<kKnown>(a, product, block, rank, memory, sums); });
}

constexpr int kLongWarps = 8, kLongThreads = kLongWarps * 32, kLongBlocks = 4,
              kLongPieces = 4;  // pieces as of a cluster
using LongTile = BlockTiles<kLongThreads>;

constexpr int kLongParts = kLongBlocks * kLongPieces;
template <unsigned kFormats>
__device__ __forceinline__ void linear_long(const DecodeArgs& a, uint8_t* memory,
                                            float (&part)[kLongParts][16]) {
  constexpr int kPieces = kLongParts, kEach = kPieces / kLongWarps;
  const int block = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x), warp = tid / 32,
            lane = tid % 32;
  const ProductView& product = a.products[0];
  const WeightView w = known<kFormats>(product.w);
  const RowsF32 x_rows = known_rows<kFormats>(a.x);
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
  stage_rows<kLongThreads>(x, x_rows, nullptr, 0, tid);
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
template <unsigned kFormats>
__global__ __launch_bounds__(kLongThreads, 2) void linear_long_kernel(const __grid_constant__ DecodeArgs a) {
  pdl_launch();
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[kLongParts][16];
  with_known<kFormats>(a.products[0].w.kind,
                       [&]<unsigned kKnown>() { linear_long<kKnown>(a, memory, part); });
}

// Block (pass, group of `rows` rows).
__global__ __launch_bounds__(kManyThreads) void pack_kernel(const __grid_constant__ RowsF32 x,
                                                            const __grid_constant__ PackedXs to, int n_orders,
                                                            int rows) {
  pdl_launch();
  pdl_wait();
  constexpr int kChunks = kPassValues / 8;
  const int first = static_cast<int>(blockIdx.y) * rows, pass = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks; i += kManyThreads) {
    const int c = i / kChunks, chunk = i % kChunks;
    float v[8] = {};
    if (first + c < x.n_rows) load_eight(v, x.row(first + c), pass * kPassValues + 8 * chunk, x.k, x.wide);
#pragma unroll
    for (int o = 0; o < kMaxOrders; ++o) {
      if (o >= n_orders) break;
      const int64_t at = (int64_t{blockIdx.y} * gridDim.x + pass) * rows * to[o].stride;
      XTile{to[o].x + at, to[o].stride, rows, 0, kPassValues, to[o].order}.put(c, chunk, v);
    }
  }
}

template <int kTiles, unsigned kFormats>
__global__ __launch_bounds__(kManyThreads, 2) void linear_many_kernel(const __grid_constant__ DecodeArgs a,
                                                                      int row_groups) {
  pdl_launch();
  constexpr int kRows = 8 * kTiles, kTile = kRows * 16;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t full[kManyStages], empty[kManyStages];
  const int rank = static_cast<int>(blockIdx.x) % a.cluster, at = static_cast<int>(blockIdx.x) / a.cluster;
  const int block = at / row_groups, group = at % row_groups, first = group * kRows;
  const int index = a.index_of(block);
  const ProductView& product = a.products[index];
  const WeightView& w = product.w;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = (block - product.first_tile) * kManyWarps + warp, row = tile * 16;
  const bool works = row < w.n, f8 = is_f8(w);
  const int steps = stream_steps(w), pieces = a.pieces, parts = pieces * a.cluster;
  const int begin = part_begin(steps, rank * pieces, parts),
            end = part_begin(steps, (rank + 1) * pieces, parts);
  const int n_columns = min(kRows, a.x.n_rows - first);

  // Passes lie on multiples of kPassValues; the first and the last may have fewer steps of this part.
  const int pass_steps = kPassValues / step_values(w), stride = a.packed_x[a.packed[index]].stride;
  const int first_pass = begin / pass_steps, end_pass = (end + pass_steps - 1) / pass_steps;
  const int pass_bytes = kRows * stride;
  uint8_t* const stages = memory + a.weight_bytes;
  const uint8_t* const from_x = a.packed_x[a.packed[index]].x + int64_t{group} * a.n_passes * pass_bytes;
  const auto fetch = [&](int pass) {  // kCopyLanes of the first warp
    const int i = pass - first_pass, s = i % kManyStages;
    if (i >= kManyStages) barrier_wait(empty + s, (i / kManyStages - 1) & 1);
    barrier_expect(full + s, pass_bytes);
    bulk_copy(shared_address(stages) + s * pass_bytes, from_x + int64_t{pass} * pass_bytes, pass_bytes,
              full + s);
    barrier_copied(full + s);
  };
  const auto begin_passes = [&] {
    pdl_wait();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kManyStages; ++i) {
        barrier_init(full + i, kCopyLanes);
        barrier_init(empty + i, kManyWarps);
      }
      fence_async_proxy();
    }
    __syncwarp();
    if (threadIdx.x < kCopyLanes)
      for (int p = first_pass; p < min(end_pass, first_pass + kManyStages - 1); ++p) fetch(p);
    __syncthreads();
  };
  // f(pass, x of the pass) for all of them.
  const auto each_pass = [&](auto&& f) {
#pragma unroll 1
    for (int pass = first_pass; pass < end_pass; ++pass) {
      if (threadIdx.x < kCopyLanes && pass + kManyStages - 1 < end_pass) fetch(pass + kManyStages - 1);
      __syncwarp();
      const int i = pass - first_pass, s = i % kManyStages;
      barrier_wait(full + s, i / kManyStages & 1);
      const XTile x{stages + s * pass_bytes, stride, kRows, 0, kPassValues, XOrder::Brain};
      f(pass, x_place(x, w, lane / 4, 0));
      barrier_arrive_warp(empty + s);
    }
  };

  const float rest = code_rest(w);
  const float f0 = w.row_factor(row + lane / 4) * rest, f1 = w.row_factor(row + 8 + lane / 4) * rest;
  float acc[kTiles][4] = {}, total[kTiles][4] = {};
  int piece = 0, piece_end = part_begin(steps, rank * pieces + 1, parts);
  const auto close_pieces = [&](int step) {
    while (piece < pieces && step == piece_end) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
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
  if (f8) {
    F8Tile weights(memory + warp * kF8Stages * kF8Stage, w, row, w, row + 8);
#pragma unroll
    for (int i = 0; i < kF8Stages - 1; ++i) {
      if (first_pass + i < end_pass) weights.fetch(first_pass + i, i);
      cp_async_commit();
    }
    const auto scale_of = [&](int pass) { return pass < end_pass ? f8_scale(w, row, pass) : 1.0f; };
    float next_scale = scale_of(first_pass);
    begin_passes();
    close_pieces(begin);
    int stage = 0, next = kF8Stages - 1;
    each_pass([&](int pass, uint32_t x) {
      const float scale = next_scale;
      next_scale = scale_of(pass + 1);
      cp_async_wait<kF8Stages - 2>();
      __syncwarp();
      if (pass + kF8Stages - 1 < end_pass) weights.fetch(pass + kF8Stages - 1, next);
      cp_async_commit();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = 2 * pass + half;
        if (step < begin || step >= end) continue;
        weights.step<kTiles>(acc, stage, half, scale, scale, [&](int j, uint4(&b)[2]) {
          b[0] = shared16(x + 128 * half + j * 8 * stride);
          b[1] = shared16(x + 128 * half + j * 8 * stride + 16);
        });
        close_pieces(step + 1);
      }
      next = stage;
      if (++stage == kF8Stages) stage = 0;
    });
  } else {
    WeightRing ring(a.plan, memory + warp * a.plan.bytes, w);
    ring.aim(w, row, w, row + 8, begin, works ? end : begin);
    ring.begin(begin, end - begin);
    const auto put = [&] { ring.put(); };
#pragma unroll 1
    for (int i = 0; i < a.plan.depth; ++i) put();
    begin_passes();
    close_pieces(begin);
    each_pass([&](int pass, uint32_t x) {
      if (!works) return;
      const int stop = min((pass + 1) * pass_steps, end);
      for (int step = max(pass * pass_steps, begin); step < stop;) {
        const int until = min(stop, piece_end);
        walk<kTiles, kFormats>(acc, w, row, w, row + 8, step, until - step, ring,
                               x + (step - pass * pass_steps) * step_values(w) * 2, 8 * stride, kTiles, put);
        step = until;
        close_pieces(step);
      }
    });
  }
  __syncthreads();  // x is used up

  float* sums = reinterpret_cast<float*>(stages);
  store_tile<kTiles>(sums + warp * kTile, total);
  if (a.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncwarp();
  }
  // Each block of a cluster writes its share of the columns, several values a lane at a time.
  if (works) {
    const int c0 = n_columns * rank / a.cluster, c1 = n_columns * (rank + 1) / a.cluster;
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int i0 = 16 * c0 + lane; i0 < 16 * c1; i0 += 32 * kAtOnce) {
      float v[kAtOnce];
      Residual residual[kAtOnce];
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const int i = i0 + 32 * q, t = first + i / 16, n = row + i % 16;
        if (a.epilogue == Epilogue::Inject && i < 16 * c1 && n < w.n) residual[q].load(a, product, t, n);
      }
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const float* mine = sums + warp * kTile + min(i0 + 32 * q, 16 * c1 - 1);
        v[q] = a.cluster == 1 ? *mine : cluster_load(mine, 0);
        for (int r = 1; r < a.cluster; ++r) v[q] += cluster_load(mine, r);
      }
#pragma unroll
      for (int q = 0; q < kAtOnce; ++q) {
        const int i = i0 + 32 * q, t = first + i / 16, n = row + i % 16;
        if (i >= 16 * c1 || n >= w.n) continue;
        if (a.epilogue == Epilogue::Inject) {
          residual[q].add(a, product, t, n, v[q]);
        } else {
          product.y[t * product.y_stride + n] = v[q];
        }
      }
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

// Steps of a block, or one more; and the bytes of so many rows of x for the kernel for few.
int steps_of_block(const WeightView& w, int cluster) { return ceil_div(stream_steps(w), cluster) + 1; }
int few_x(const WeightView& w, int cluster, int rows) {
  return x_stride(w, steps_of_block(w, cluster)) * rows;
}
constexpr int kFewOwn = 5 * 1024;  // at least its own arrays
// Whether a block has room for them beside the least of rings. Sums are the same where it has not.
bool takes_few(Stream& s, std::span<const ProductView> products, int rows) {
  if (rows > kFewRows) return false;
  const int rings = kFewWarps * ring_plan(1, 2, 2, true, 1).bytes;
  return std::ranges::all_of(products, [&](const ProductView& p) {
    return rings + few_x(p.w, cluster_of(s, p.w), rows) + kFewOwn <= shared_limit(s);
  });
}

// Which of these x's it is, or the first that is free.
int packed_as(const PackedXs& all, XOrder order, int stride) {
  for (int i = 0; i < kMaxOrders; ++i) {
    const PackedX& p = all[static_cast<size_t>(i)];
    if (!p.x || (p.order == order && p.stride == stride)) return i;
  }
  QUERN_CHECK(false, "products of one x on CUDA take it in at most four ways");
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
  const bool few = takes_few(s, products, x.n_rows);
  ScratchScope scope(s);
  DecodeArgs a;
  const int rows = 8 * many_tiles(x.n_rows), groups = ceil_div(x.n_rows, rows);
  if (!few) {
    a.n_passes = ceil_div(products[0].w.k, kPassValues);
    int n_orders = 0;
    for (const ProductView& p : products) {
      const int stride = x_stride(p.w, kPassValues / step_values(p.w)),
                i = packed_as(a.packed_x, x_order(p.w), stride);
      PackedX& to = a.packed_x[static_cast<size_t>(i)];
      if (to.x) continue;
      to = {x_order(p.w), stride,
            reinterpret_cast<uint8_t*>(s.scratch(DType::U8, {groups * a.n_passes, rows * stride}).data)};
      n_orders = i + 1;
    }
    launch(s, pack_kernel, dim3(static_cast<unsigned>(a.n_passes), static_cast<unsigned>(groups)),
           kManyThreads, 0, 1, x, a.packed_x, n_orders, rows);
  }
  for (size_t begin = 0; begin < products.size();) {
    a.n_products = 0;
    a.cluster = cluster_of(s, products[begin].w);
    a.pieces = a.cluster > 1 ? kLongPieces : 2;
    a.x = x;
    a.epilogue = epilogue;
    a.injection = injection;
    size_t end = begin;
    int tiles = 0;
    for (; end < products.size() && a.n_products < kMaxProducts; ++end) {
      if (cluster_of(s, products[end].w) != a.cluster) break;
      const WeightView& w = products[end].w;
      if (!few) {
        a.packed[static_cast<size_t>(a.n_products)] =
            static_cast<int8_t>(packed_as(a.packed_x, x_order(w), x_stride(w, kPassValues / step_values(w))));
      }
      a.products[a.n_products++] = products[end];
      tiles += ceil_div(products[end].w.n, 16);
    }
    begin = end;
    int x_bytes = 0, most_steps = 1;
    bool all_stream = true, f4 = false, f8 = false, only = x.wide;
    for (int i = 0; i < a.n_products; ++i) {
      const WeightView& w = a.products[i].w;
      all_stream &= streams(w);
      only &= only_known(w);
      f4 |= is_f4(w);
      f8 |= is_f8(w);
      const int of_block = steps_of_block(w, a.cluster);
      most_steps = std::max(most_steps, few ? ceil_div(stream_steps(w), a.cluster * a.pieces) : of_block);
      x_bytes = std::max(x_bytes, few ? few_x(w, a.cluster, x.n_rows)
                                      : kManyStages * rows * x_stride(w, kPassValues / step_values(w)));
    }
    if (a.cluster > 1 && x.n_rows == 1 && a.n_products == 1 && LongTile::takes(s, a.products[0].w)) {
      const WeightView& w = a.products[0].w;
      a.products[0].first_tile = 0;
      a.plan = LongTile::plan_of(w, 1, true);
      launch(s, only ? linear_long_kernel<kOnly> : linear_long_kernel<kWalkStreams>, dim3(blocks(w.n, 16)),
             kLongThreads, static_cast<size_t>(a.plan.bytes + x_stride(w, stream_steps(w))), 1, a);
      continue;
    }
    a.plan = ring_plan_beside(s, few ? kFewWarps : kManyWarps, x_bytes + kFewOwn, most_steps,
                              a.cluster == 1 ? 2 : 1, 2, f4, few ? kMaxStageSteps : 3);
    const int few_bytes = kFewWarps * a.plan.bytes + x_bytes, sides = kFewWarps / a.pieces,
              resident = std::clamp((shared_limit(s) - 7 * 1024) / (few_bytes + 6 * 1024), 1, kFewBlocks);
    a.tiles_per_block = !few             ? kManyWarps
                        : a.cluster == 1 ? sides * few_tiles(s, ceil_div(tiles, sides), resident)
                                         : 1;
    int n_blocks = 0;
    for (int i = 0; i < a.n_products; ++i) {
      a.products[i].first_tile = n_blocks;
      n_blocks += ceil_div(ceil_div(a.products[i].w.n, 16), a.tiles_per_block);
    }
    if (few) {
      launch(s,
             only         ? linear_few_kernel<kOnly>
             : all_stream ? linear_few_kernel<kWalkStreams>
                          : linear_few_kernel<kWalkAny>,
             dim3(static_cast<unsigned>(n_blocks * a.cluster)), kFewThreads, static_cast<size_t>(few_bytes),
             a.cluster, a);
    } else {
      a.weight_bytes = kManyWarps * std::max(a.plan.bytes, f8 ? kF8Stages * kF8Stage : 0);
      const auto tiles_of = [&]<int kTiles>() {
        return all_stream ? linear_many_kernel<kTiles, kWalkStreams> : linear_many_kernel<kTiles, kWalkAny>;
      };
      launch(s, rows == 16 ? tiles_of.operator()<2>() : tiles_of.operator()<4>(),
             dim3(static_cast<unsigned>(n_blocks * groups * a.cluster)), kManyThreads,
             static_cast<size_t>(a.weight_bytes + std::max(x_bytes, kManyWarps * rows * 16 * 4)), a.cluster,
             a, groups);
    }
  }
}

}  // namespace quern::cuda

// linear for decode rows: skinny products that read each weight once.
//
// A block takes 16 rows of a weight for all rows of x; its 8 warps split K and are summed in order. Where a
// long K meets few rows of weight, two blocks of a cluster split K between them and the first adds the
// second's sum to its own: enough blocks to fill the device, in an order that depends on (n, k) only.
#include <array>

#include "ops/cuda/linear_launch.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8;

struct DecodeArgs {
  std::array<ProductView, kMaxProducts> products;
  int32_t n_products = 0;
  int32_t cluster = 1, shift = 3, row_groups = 1;  // 2^shift pieces of K over the cluster's warps
  RowsF32 x;
  Epilogue epilogue = Epilogue::Store;
  Injection injection;
};

__device__ __forceinline__ int piece_begin(int steps, int piece, int shift) { return steps * piece >> shift; }

template <typename F, int kTiles>
__global__ __launch_bounds__(kWarps * 32, kTiles == 1 ? 3 : 2) void linear_decode_kernel(
    const __grid_constant__ DecodeArgs a) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles, kTile = kColumns * 16;
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ float part[kWarps][kTile];
  __shared__ float sum[kTile];
  // Blocks that read the same weights stand side by side.
  const int rank = static_cast<int>(blockIdx.x) & (a.cluster - 1);
  const int at = static_cast<int>(blockIdx.x) >> (a.shift - 3);
  const int tile = a.row_groups == 1 ? at : at / a.row_groups;
  const int first = (at - tile * a.row_groups) * kColumns;
  int p = 0;
  while (p + 1 < a.n_products && tile >= a.products[p + 1].first_tile) ++p;
  const ProductView& product = a.products[p];
  const int row = (tile - product.first_tile) * 16;

  const int warp = threadIdx.x / 32, steps = steps_of(product.w.k), piece = rank * kWarps + warp;
  const int begin = piece_begin(steps, piece, a.shift), end = piece_begin(steps, piece + 1, a.shift);
  const int first_step = piece_begin(steps, rank * kWarps, a.shift);
  const int last_step = piece_begin(steps, (rank + 1) * kWarps, a.shift);
  PlainStage<kWarps * 32> stage{a.x,
                                nullptr,
                                first,
                                {staged, staged_stride(last_step - first_step),
                                 min(kColumns, a.x.n_rows - first), first_step * kStep, last_step * kStep},
                                false};
  float acc[kTiles * 4];
  cuda::product<F, kTiles>(acc, product.w, row, begin, end, stage);
  store_tile<kTiles>(part[warp], acc);
  __syncthreads();

  for (int i = threadIdx.x; i < kTile; i += kWarps * 32) {
    float v = part[0][i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) v += part[w][i];
    sum[i] = v;
  }
  if (a.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if (rank == 0) {
    for (int i = threadIdx.x; i < kTile; i += kWarps * 32) {
      const int t = first + i / 16, n = row + i % 16;
      if (t >= a.x.n_rows || n >= product.w.n) continue;
      float v = sum[i];
      for (int r = 1; r < a.cluster; ++r) v += cluster_load(&sum[i], r);
      if (a.epilogue == Epilogue::Store) {
        product.y[t * product.y_stride + n] = v;
      } else {
        for (int s = 0; s < a.injection.streams; ++s) {
          float* y = product.y + t * product.y_stride + int64_t{s} * product.w.n + n;
          *y = fmaf(a.injection.inj[t * a.injection.stride + s], v, *y);
        }
      }
    }
  }
  if (a.cluster > 1) {  // the others' shared memory lives until the first has read it
    cluster_arrive();
    cluster_wait();
  }
}

// A function of (n, k) alone: it is part of the order of the sum.
int cluster_of(Stream& s, const WeightView& w) { return is_hopper(s) && w.k >= 4096 && w.n <= 4096 ? 2 : 1; }

}  // namespace

void linear_decode(Stream& s, std::span<const ProductView> products, const RowsF32& x, Epilogue epilogue,
                   const Injection& injection) {
  for (size_t begin = 0; begin < products.size();) {
    DecodeArgs a;
    a.cluster = cluster_of(s, products[begin].w);
    a.shift = a.cluster == 2 ? 4 : 3;
    a.x = x;
    a.epilogue = epilogue;
    a.injection = injection;
    int tiles = 0;
    size_t end = begin;
    for (; end < products.size() && a.n_products < kMaxProducts; ++end) {
      if (cluster_of(s, products[end].w) != a.cluster) break;
      ProductView& p = a.products[a.n_products++];
      p = products[end];
      p.first_tile = tiles;
      tiles += ceil_div(p.w.n, 16);
    }
    begin = end;
    const int t = x.n_rows, columns = t <= 8 ? 8 : 16;
    a.row_groups = ceil_div(t, columns);
    const int shared = staged_stride(ceil_div(steps_of(x.k), a.cluster) + 1) * std::min(t, columns);
    const WeightView* largest = &a.products[0].w;  // the kernel is made for its format
    for (int i = 1; i < a.n_products; ++i) {
      if (a.products[i].w.n > largest->n) largest = &a.products[i].w;
    }
    with_format_host(largest->kind, [&](auto format) {
      using F = decltype(format);
      launch(s, columns == 8 ? linear_decode_kernel<F, 1> : linear_decode_kernel<F, 2>,
             dim3(static_cast<unsigned>(tiles * a.row_groups * a.cluster)), kWarps * 32,
             static_cast<size_t>(shared), a.cluster, a);
    });
  }
}

}  // namespace quern::cuda

// moe_route on CUDA. The router's product takes x as two BF16 (its rounding and what is left), so that the
// logits have f32's meaning: which experts a row gets must not depend on a 16-bit rounding.
#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/tile_product.cuh"
#include "ops/cuda/top_experts.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8, kCluster = 4, kMaxGroups = 1024;

// Blocks of a row group that are done; the last one takes the group's top experts and resets the count. One
// stream runs a model, so launches do not overlap on it.
__device__ unsigned g_done[kMaxGroups];

// Columns 0-7 are the roundings of eight rows, 8-15 the rests.
struct SplitStage {
  RowsF32 rows;
  int first, n_rows;
  StagedX staged;

  template <bool kSplitPairs>
  __device__ __forceinline__ void run() {
    pdl_wait();
    const int chunks = (staged.k1 - staged.k0) / 8;
    for (int c = 0; c < n_rows; ++c) {
      for (int i = threadIdx.x; i < chunks; i += kWarps * 32) {
        float v[8], rest[8];
        load_eight(v, rows.row(first + c), staged.k0 + 8 * i, rows.k, rows.wide);
#pragma unroll
        for (int e = 0; e < 8; ++e) rest[e] = v[e] - bf16_low(pack_bf16(v[e], 0.0f));
        *reinterpret_cast<uint4*>(staged.x + c * staged.stride + 16 * i) = pack_eight<kSplitPairs>(v);
        *reinterpret_cast<uint4*>(staged.x + (8 + c) * staged.stride + 16 * i) =
            pack_eight<kSplitPairs>(rest);
      }
    }
    __syncthreads();
  }
};

template <typename F>
__global__ __launch_bounds__(kWarps * 32, 2) void route_kernel(const __grid_constant__ WeightView w,
                                                               const __grid_constant__ RowsF32 h,
                                                               float* logits, int32_t* ids, float* p,
                                                               int top_k, bool renormalise, int groups,
                                                               int cluster) {
  pdl_launch();
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ float part[kWarps][2 * 8 * 16];
  __shared__ float sum[8 * 16];
  __shared__ bool is_last;
  const int rank = static_cast<int>(blockIdx.x) % cluster, at = static_cast<int>(blockIdx.x) / cluster;
  const int tile = at / groups, group = at % groups, first = group * 8, row = tile * 16;
  const int warp = threadIdx.x / 32, steps = steps_of(w.k), parts = kWarps * cluster;
  const int first_step = part_begin(steps, rank * kWarps, parts),
            last_step = part_begin(steps, (rank + 1) * kWarps, parts);
  SplitStage stage{
      h,
      first,
      min(8, h.n_rows - first),
      {staged, staged_stride(last_step - first_step), 16, first_step * kStep, last_step * kStep}};
  float acc[2 * 4];
  product<F, 2>(acc, w, row, part_begin(steps, rank * kWarps + warp, parts),
                part_begin(steps, rank * kWarps + warp + 1, parts), stage);
  store_tile<2>(part[warp], acc);
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * 16; i += kWarps * 32) {
    float v = 0;
#pragma unroll
    for (int q = 0; q < kWarps; ++q) v += part[q][i] + part[q][8 * 16 + i];
    sum[i] = v;
  }
  cluster_arrive();
  cluster_wait();
  if (rank == 0) {
    for (int i = threadIdx.x; i < 8 * 16; i += kWarps * 32) {
      const int t = first + i / 16, n = row + i % 16;
      if (t >= h.n_rows || n >= w.n) continue;
      float v = sum[i];
      for (int r = 1; r < cluster; ++r) v += cluster_load(&sum[i], r);
      logits[int64_t{t} * w.n + n] = v;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned tiles = static_cast<unsigned>((w.n + 15) / 16);
      is_last = atomicAdd(&g_done[group], 1u) == tiles - 1;
      if (is_last) g_done[group] = 0;
    }
    __syncthreads();
    if (is_last) {
      __threadfence();
      for (int c = warp; c < 8 && first + c < h.n_rows; c += kWarps) {
        const int64_t t = first + c;
        top_experts(logits + t * w.n, w.n, top_k, renormalise, ids + t * top_k, p + t * top_k);
      }
    }
  }
  cluster_arrive();
  cluster_wait();
}

__global__ void top_experts_kernel(const float* logits, int n, int64_t n_rows, int32_t* ids, float* p,
                                   int top_k, bool renormalise) {
  pdl_launch();
  pdl_wait();
  const int64_t t = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (t < n_rows) top_experts(logits + t * n, n, top_k, renormalise, ids + t * top_k, p + t * top_k);
}

}  // namespace

void moe_route_decode(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                      int top_k, bool renormalise) {
  ScratchScope scope(s);
  const Tensor logits = s.scratch(DType::F32, {h.n_rows, router.n});
  const int groups = ceil_div(h.n_rows, 8), tiles = ceil_div(router.n, 16);
  QUERN_CHECK(groups <= kMaxGroups, "too many decode rows in one step");
  const auto kernel = router.kind == WeightKind::F32 ? route_kernel<RunF32> : route_kernel<Run16<false>>;
  launch(s, kernel, dim3(static_cast<unsigned>(tiles * groups * kCluster)), kWarps * 32,
         static_cast<size_t>(staged_stride(ceil_div(steps_of(router.k), kCluster) + 1) * 16), kCluster,
         router, h, logits.as<float>(), ids, p, top_k, renormalise, groups, kCluster);
}

void moe_route_prefill(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                       int top_k, bool renormalise) {
  ScratchScope scope(s);
  const Tensor logits = s.scratch(DType::F32, {h.n_rows, router.n});
  const PrefillRows rows = prefill_rows(s, h, true);
  linear_prefill(s, {router, logits.as<float>(), router.n, 0}, rows, Epilogue::Store, {});
  launch(s, top_experts_kernel, dim3(blocks(h.n_rows, 8)), 256, 0, 1,
         static_cast<const float*>(logits.as<float>()), router.n, int64_t{h.n_rows}, ids, p, top_k,
         renormalise);
}

void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w, int64_t n_decode_rows) {
  QUERN_CHECK(ids.packed() && p.packed() && w.router.n() <= kMaxExperts && w.top_k <= 31,
              "moe_route on CUDA takes at most 1024 experts and 31 a token");
  const WeightView router = weight_view(w.router);
  QUERN_CHECK(router.wide, "moe_route: the router on CUDA is a multiple of 16 wide and begins on 16 bytes");
  const int64_t n_rows = h.shape[0], k = w.top_k;
  if (n_decode_rows > 0) {
    moe_route_decode(s, ids.as<int32_t>(), p.as<float>(), router, rows_f32(h.slice_rows(0, n_decode_rows)),
                     w.top_k, w.renormalise);
  }
  if (n_decode_rows < n_rows) {
    moe_route_prefill(s, ids.as<int32_t>() + n_decode_rows * k, p.as<float>() + n_decode_rows * k, router,
                      rows_f32(h.slice_rows(n_decode_rows, n_rows)), w.top_k, w.renormalise);
  }
}

}  // namespace quern::cuda

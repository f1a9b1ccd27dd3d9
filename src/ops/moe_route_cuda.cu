// moe_route on CUDA. The router's product takes x as two BF16 (its rounding and what is left), so that the
// logits have f32's meaning: which experts a row gets must not depend on a 16-bit rounding.
//
// Of decode rows the last block of eight rows' ranks them; of one row whose experts rank for themselves (moe_row_cuda.cu) the
// logits are all that is wanted.
#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/top_experts.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32, kMaxGroups = 1024;

// Blocks of a row group that are done; the last one takes the group's top experts and resets the count. One
// stream runs a model, so launches do not overlap on it.
__device__ unsigned g_done[kMaxGroups];

// The roundings of up to eight rows, then the rests of all of them.
__device__ __forceinline__ void stage_split(const XTile& tile, const RowsF32& rows, int first, int n_rows) {
  const int chunks = tile.width / 8;
  for (int i = threadIdx.x; i < chunks * n_rows; i += kThreads) {
    const int c = i / chunks, at = i - c * chunks;
    float v[8], rest[8];
    load_eight(v, rows.row(first + c), tile.k0 + 8 * at, rows.k, rows.wide);
#pragma unroll
    for (int e = 0; e < 8; ++e) rest[e] = v[e] - tile.rounded(v[e]);
    tile.put(c, at, v);
    tile.put(n_rows + c, at, rest);
  }
}

template <unsigned kFormats>
__global__ __launch_bounds__(kThreads, 1) void route_kernel(const __grid_constant__ WeightView router,
                                                            const __grid_constant__ RingPlan plan,
                                                            const __grid_constant__ RowsF32 rows,
                                                            float* logits, int32_t* ids, float* p, int top_k,
                                                            bool renormalise, int groups) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ TopExperts top[8];
  __shared__ bool is_last;
  const WeightView w = known<kFormats>(router);
  const RowsF32 h = known_rows<kFormats>(rows);
  const int at = static_cast<int>(blockIdx.x);
  const int tile = at / groups, group = at % groups, first = group * 8, row = tile * 16;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, steps = stream_steps(w);
  const int begin = part_begin(steps, warp, kWarps), end = part_begin(steps, warp + 1, kWarps);
  WeightRing ring(plan, memory + warp * plan.bytes, w);
  ring.aim(w, row, w, row + 8, begin, end);
  ring.begin(begin, end - begin);
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) ring.put();
  const int n_rows = min(8, h.n_rows - first);
  const XTile x = x_tile(memory + kWarps * plan.bytes, w, n_rows, 0, steps);
  pdl_wait();
  pdl_launch();  // after the wait: the experts may read h before their own
  stage_split(x, h, first, n_rows);
  __syncthreads();
  float acc[2][4] = {};
  walk<2, kFormats>(acc, w, row, w, row + 8, begin, end - begin, ring, x_place(x, w, tid % 32 / 4, begin),
                    n_rows * x.stride, 2, [&] { ring.put(); });
  finish<2>(acc, w, row, w, row + 8);
  const auto part = [&](int w) { return reinterpret_cast<float*>(memory + w * plan.bytes + 128); };
  store_tile<2>(part(warp), acc);  // the warp's weights are used up
  __syncthreads();
  const int t = first + tid / 16, n = row + tid % 16;
  if (tid < 8 * 16 && t < h.n_rows && n < w.n) {
    float v = 0;
#pragma unroll
    for (int q = 0; q < kWarps; ++q) v += part(q)[tid] + part(q)[8 * 16 + tid];
    logits[int64_t{t} * w.n + n] = v;
  }
  if (ids == nullptr) return;
  __syncthreads();
  if (tid == 0) {
    fence_device();  // behind the barrier, for the whole block
    const unsigned tiles = static_cast<unsigned>((w.n + 15) / 16);
    is_last = atomicAdd(&g_done[group], 1u) == tiles - 1;
    if (is_last) g_done[group] = 0;
    fence_device();
  }
  __syncthreads();
  if (is_last && warp < n_rows) {
    const int64_t r = first + warp;
    top_experts(logits + r * w.n, w.n, top_k, renormalise, top[warp], ids + r * top_k, p + r * top_k);
  }
}

constexpr int kRankWarps = 8;
__global__ __launch_bounds__(kRankWarps * 32) void top_experts_kernel(const float* logits, int n,
                                                                      int64_t n_rows, int32_t* ids, float* p,
                                                                      int top_k, bool renormalise) {
  __shared__ TopExperts top[kRankWarps];
  pdl_launch();
  pdl_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t t = blockIdx.x * int64_t{kRankWarps} + warp;
  if (t < n_rows)
    top_experts(logits + t * n, n, top_k, renormalise, top[warp], ids + t * top_k, p + t * top_k);
}

// Without `ids` the logits are all.
void route_decode(Stream& s, float* logits, int32_t* ids, float* p, const WeightView& router,
                  const RowsF32& h, int top_k, bool renormalise) {
  const int tiles = ceil_div(router.n, 16), steps = ceil_div(stream_steps(router), kWarps);
  QUERN_CHECK(ceil_div(h.n_rows, 8) <= kMaxGroups, "too many decode rows in one step");
  const auto x_bytes = [&](int rows) { return x_stride(router, stream_steps(router)) * 2 * rows; };
  // All rows at once, eight a block; or as many at once as leave a block room for the least of rings.
  const int own = 8 * static_cast<int>(sizeof(TopExperts)) + 1024,
            room = shared_limit(s) - own - kWarps * ring_plan(2, 1, 2, false, 1).bytes;
  const bool only = only_known(router) && router.kind == WeightKind::BF16 && h.wide;
  int at_once = h.n_rows;
  for (int rows = 8; rows > 1 && x_bytes(std::min(rows, h.n_rows)) > room; at_once = std::min(rows, h.n_rows))
    rows /= 2;
  for (int first = 0; first < h.n_rows; first += at_once) {
    RowsF32 rows = h;
    rows.x += first * h.stride;
    rows.n_rows = std::min(at_once, h.n_rows - first);
    const int groups = ceil_div(rows.n_rows, 8), of_x = x_bytes(std::min(8, rows.n_rows));
    const RingPlan plan = ring_plan_beside(s, kWarps, of_x + own, steps, 1, 2, false);
    launch(s, only ? route_kernel<kOnlyBF16> : route_kernel<kWalk16 | kWalkF32>,
           dim3(static_cast<unsigned>(tiles * groups)), kThreads,
           static_cast<size_t>(kWarps * plan.bytes + of_x), 1, router, plan, rows,
           logits + int64_t{first} * router.n, ids ? ids + int64_t{first} * top_k : nullptr,
           p ? p + int64_t{first} * top_k : nullptr, top_k, renormalise, groups);
  }
}

}  // namespace

void moe_route_decode(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                      int top_k, bool renormalise) {
  ScratchScope scope(s);
  const Tensor logits = s.scratch(DType::F32, {h.n_rows, router.n});
  route_decode(s, logits.as<float>(), ids, p, router, h, top_k, renormalise);
}
void moe_logits_decode(Stream& s, float* logits, const WeightView& router, const RowsF32& h) {
  route_decode(s, logits, nullptr, nullptr, router, h, 0, false);
}

void moe_route_prefill(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                       int top_k, bool renormalise) {
  ScratchScope scope(s);
  const Tensor logits = s.scratch(DType::F32, {h.n_rows, router.n});
  const PrefillRows rows = prefill_rows(s, h, true);
  linear_prefill(s, {router, logits.as<float>(), router.n, 0}, rows, Epilogue::Store, {});
  launch(s, top_experts_kernel, dim3(blocks(h.n_rows, kRankWarps)), kRankWarps * 32, 0, 1,
         static_cast<const float*>(logits.as<float>()), router.n, int64_t{h.n_rows}, ids, p, top_k,
         renormalise);
}

WeightView router_view(const MoeWeights& w) {
  QUERN_CHECK(w.router.n() <= kMaxExperts && w.top_k <= kMaxTopK,
              "moe_route on CUDA takes at most 1024 experts and 31 a token");
  const WeightView router = weight_view(w.router);
  QUERN_CHECK(
      router.kind == WeightKind::BF16 || router.kind == WeightKind::F16 || router.kind == WeightKind::F32,
      "moe_route: the router on CUDA is BF16, F16 or F32");
  QUERN_CHECK(router.wide, "moe_route: the router on CUDA is a multiple of 16 wide and begins on 16 bytes");
  return router;
}

void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w, int64_t n_decode_rows) {
  QUERN_CHECK(ids.packed() && p.packed(), "moe_route: ids and p are packed");
  const WeightView router = router_view(w);
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

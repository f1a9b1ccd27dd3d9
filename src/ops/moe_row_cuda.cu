// moe for one decode row, 4-bit experts and a shared expert in FP8: gate and up in one launch, down with the sum over
// experts and the injection in a second.
//
// Where the row's experts are yet to be ranked, every block ranks the logits for itself: a block that did it for all was waited
// for, 3.3 us, and its own ranking takes one of these 1.5.
//
// Nothing here depends on a format when it runs: what a block does once costs as much as its products. Experts' tiles are
// whole in K, thus a few pieces of memory that the bulk engine copies at once. Sums are those of moe_decode_cuda.cu: gate and
// up in four parts of K, down in one.
#include "ops/cuda/f4_rows.cuh"
#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/top_experts.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kTiles = 2;  // of a block of gate and up, eight rows of each
constexpr int kWarpCopies = 4 * kTiles / kWarps;
constexpr int kMaxPairs = 8;  // of experts

using RankedLogits = RowLogits<kMaxRowExperts / 32>;

struct RowArgs {
  MoeView m;
  RowChoice choice;  // or m.ids and m.p
  RingPlan shared_gate_plan, shared_down_plan;
  uint16_t* act = nullptr;  // [top_k + 1][width] in F16, in the order down takes it
  int32_t width = 0;
  float* shared_weight = nullptr;
};

// ---- gate and up ----

// Adds up the parts' sums of a tile: `part` is [kWarps][16], eight rows of gate, then the same of up.
__device__ __forceinline__ float activation(const float (&part)[kWarps][16], int r) {
  const float g = ((part[0][r] + part[1][r]) + part[2][r]) + part[3][r];
  const float u = ((part[0][r + 8] + part[1][r + 8]) + part[2][r + 8]) + part[3][r + 8];
  return scalar::silu(g) * u;
}

// Tile after tile of the shared expert, whose weights are known before the router has run.
__device__ __forceinline__ void shared_gate_up(const RowArgs& a, uint8_t* memory,
                                               float (&part)[kTiles][kWarps][16]) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const WeightView gate = known<kOnlyF8Blocks>(a.m.shared_gate), up = known<kOnlyF8Blocks>(a.m.shared_up);
  RowsF32 h = a.m.h;
  h.wide = true;
  const int steps = stream_steps(gate), begin = part_begin(steps, warp, kWarps),
            n_steps = part_begin(steps, warp + 1, kWarps) - begin;
  const int row0 = static_cast<int>(blockIdx.x) * kTiles * 8, end = min(row0 + kTiles * 8, gate.n);
  if (row0 >= end) {
    pdl_wait();
    return;
  }
  BlockTiles<kThreads> tiles(a.shared_gate_plan, memory, gate);
  const XTile x = x_tile(memory + a.shared_gate_plan.bytes, gate, 1, 0, steps);
  stage_rows<kThreads>(x, h, nullptr, 0, tid);  // the router began behind its wait, so h is there
  __syncthreads();
  tiles.aim(gate, row0, up, row0, 0, steps);
  tiles.put();
  pdl_wait();
  pdl_launch();
  const uint32_t from = x_place(x, gate, lane / 4, begin);
#pragma unroll 1
  for (int row = row0; row < end; row += 8) {
    float acc[1][4] = {};
    tiles.begin(begin, n_steps);
    walk<1, kOnlyF8Blocks>(acc, gate, row, up, row, begin, n_steps, tiles, from, 0, 1, [] {});
    finish<1>(acc, gate, row, up, row);
    if (lane % 4 == 0) {
      part[0][warp][lane / 4] = acc[0][0];
      part[0][warp][lane / 4 + 8] = acc[0][2];
    }
    __syncthreads();
    if (tid < 8) {
      const int r = row + tid;
      a.act[int64_t{a.m.top_k} * a.width + r] = XTile::packed(XOrder::Half, activation(part[0], tid));
    }
    __syncthreads();
    tiles.release();
    if (row + 8 < end) {
      tiles.aim(gate, row + 8, up, row + 8, 0, steps);
      tiles.put();
    }
  }
}

// act[e] = silu(gate_e · h) ⊙ (up_e · h). Blocks y = 0 are the shared expert's, the last of them its gate's; block y is the
// row's y-th expert's.
__global__ __launch_bounds__(kThreads, 4) void moe_row_gate_up_kernel(const __grid_constant__ RowArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[kTiles][kWarps][16];
  __shared__ uint64_t barriers[kTiles];
  __shared__ TopExperts top;
  __shared__ int32_t chosen[2 * kMaxPairs];
  const MoeView& m = a.m;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const bool last = blockIdx.x == gridDim.x - 1;
  if (blockIdx.y == 0) {
    if (!last) {
      shared_gate_up(a, memory, part);
      return;
    }
    pdl_wait();
    pdl_launch();
    const float v = row_dot<kThreads>(m.shared_expert_gate, m.h.x, true, &part[0][0][0]);
    if (tid == 0) *a.shared_weight = scalar::sigmoid(v);
    if (const RowChoice& c = a.choice; c.logits && warp == 1) {  // for who asked
      const RankedLogits row(c.logits, m.n_experts);
      row.top_ids(m.n_experts, m.top_k, top, chosen);
      row.weights(c.logits, m.n_experts, chosen, m.top_k, c.renormalise, c.p);
      if (lane < m.top_k) c.ids[lane] = chosen[lane];
    }
    return;
  }
  if (last) return;
  const int row_bytes = static_cast<int>(m.gate.row_bytes), scale_bytes = row_bytes / 8,
            stage_bytes = gate_stage(row_bytes), up_at = up_offset(row_bytes),
            scales_at = up_at + 8 * row_bytes;
  const int first_tile = static_cast<int>(blockIdx.x) * kTiles,
            n_tiles = min(kTiles, m.gate.n / 8 - first_tile);
  const uint32_t base = shared_address(memory);
  // The router lets this kernel start behind its own wait, so h is there, and only ids are waited for.
  const XTile x{memory + kTiles * stage_bytes, 0, 1, 0, m.h.k, XOrder::Nibbles};
  barriers_for_copies(barriers, kTiles);
  for (int chunk = tid; chunk < m.h.k / 8; chunk += kThreads) {
    float v[8];
    load_eight(v, m.h.x, 8 * chunk, m.h.k, true);
    x.put(0, chunk, v);
  }
  __syncthreads();
  // A tile is four copies: rows of gate, rows of up, scales of each. Two lanes of every warp ask for one each: a warp begins
  // one copy after the other.
  const int copy = kWarpCopies * warp + lane % kWarpCopies;
  const bool of_up = copy & 1, of_scales = copy & 2;
  const int copy_tile = copy / 4, bytes = 8 * (of_scales ? scale_bytes : row_bytes);
  const auto* from = static_cast<const uint8_t*>(of_scales ? (of_up ? m.up.scale : m.gate.scale)
                                                           : (of_up ? m.up.data : m.gate.data)) +
                     int64_t{first_tile + copy_tile} * bytes;
  int64_t of_expert = of_scales ? (of_up ? m.up.expert_scales : m.gate.expert_scales)
                                : (of_up ? m.up.expert_bytes : m.gate.expert_bytes);
  uint32_t to = base + copy_tile * stage_bytes +
                (of_scales ? scales_at + (of_up ? 8 * scale_bytes : 0) : (of_up ? up_at : 0));
  if (tid == 0) {
    for (int i = 0; i < n_tiles; ++i) barrier_expect(barriers + i, 16 * (row_bytes + scale_bytes));
  }
  made_here(from);
  made_here(of_expert);
  made_here(to);
  pdl_wait();
  pdl_launch();  // behind the wait: the next kernel may read logits or ids before its own
  const int place = static_cast<int>(blockIdx.y) - 1;
  if (warp == 0) {
    if (a.choice.logits) {
      RankedLogits(a.choice.logits, m.n_experts).top_ids(m.n_experts, m.top_k, top, chosen);
    } else {
      if (lane == 0) chosen[place] = __ldcg(m.ids + place);
      __syncwarp();
    }
  }
  __syncthreads();
  const int expert = chosen[place];
  if (lane < kWarpCopies && copy_tile < n_tiles)
    bulk_copy(to, from + expert * of_expert, bytes, shared_address(barriers + copy_tile), evict_first());
  const float gate_factor =
                  (m.gate.global_scales ? m.gate.global_scales[expert] : m.gate.global_scale) * kE2m1Rest,
              up_factor = (m.up.global_scales ? m.up.global_scales[expert] : m.up.global_scale) * kE2m1Rest;
  const int steps = row_bytes / 64, begin = part_begin(steps, warp, kWarps),
            n_steps = part_begin(steps, warp + 1, kWarps) - begin;
  // Lanes of odd g take up's row as the upper one: see up_offset.
  const bool odd = g % 2;
  const uint32_t in_row = g * row_bytes + 64 * begin + 16 * t,
                 in_scales = scales_at + g * scale_bytes + 8 * begin + 2 * t;
  const uint32_t upper = base + in_row + (odd ? up_at : 0), lower = base + in_row + (odd ? 0 : up_at),
                 upper_scales = base + in_scales + (odd ? 8 * scale_bytes : 0),
                 lower_scales = base + in_scales + (odd ? 0 : 8 * scale_bytes);
  const uint32_t from_x = shared_address(x.x) + 256 * begin + 64 * t;
#pragma unroll 1
  for (int i = 0; i < n_tiles; ++i) {
    barrier_wait(barriers + i, 0);
    float acc[4] = {};
    const uint32_t stage = i * stage_bytes;
    if (n_steps > 0) {
      walk_rows(acc, upper + stage, lower + stage, upper_scales + stage, lower_scales + stage, from_x,
                n_steps);
    }
    if (t == 0) {
      part[i][warp][g] = (odd ? acc[2] : acc[0]) * gate_factor;
      part[i][warp][g + 8] = (odd ? acc[0] : acc[2]) * up_factor;
    }
  }
  __syncthreads();
  if (tid < 8 * n_tiles) {
    const int r = first_tile * 8 + tid;
    a.act[int64_t{blockIdx.y - 1} * a.width + XTile::place(XOrder::Nibbles, r)] =
        XTile::packed(XOrder::Nibbles, activation(part[tid / 8], tid % 8));
  }
}

// ---- down ----

__host__ __device__ inline int pair_bytes(int row_bytes) {  // of two experts' rows, scales and x
  return 16 * (row_bytes + row_bytes / 8) + 2 * column_stride(4 * row_bytes);
}

// Eight columns of y a block. A warp takes two experts, one in the upper and one in the lower rows of its tile; each has its
// own column of x. The last warp takes the shared expert.
__global__ __launch_bounds__((kMaxPairs + 1) * 32,
                             2) void moe_row_down_kernel(const __grid_constant__ RowArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float result[2 * kMaxPairs + 2][8], p[2 * kMaxPairs];
  __shared__ uint64_t barriers[kMaxPairs];
  __shared__ TopExperts top;
  __shared__ int32_t chosen[2 * kMaxPairs];
  const MoeView& m = a.m;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int pairs = (m.top_k + 1) / 2, row = static_cast<int>(blockIdx.x) * 8, width = m.down.n;
  const int row_bytes = static_cast<int>(m.down.row_bytes), scale_bytes = row_bytes / 8,
            x_stride = column_stride(4 * row_bytes);
  // gate and up lets this kernel start behind its own wait, so logits or ids and p, x and inj are complete.
  if (a.choice.logits) {
    if (warp == 0) RankedLogits(a.choice.logits, m.n_experts).top_ids(m.n_experts, m.top_k, top, chosen);
  } else if (tid < m.top_k) {
    chosen[tid] = __ldcg(m.ids + tid);
    p[tid] = __ldcg(m.p + tid);
  }
  __syncthreads();
  const int s = tid / 8, n = row + tid % 8;
  const bool adds = s < m.injection.streams;
  float before = 0, inj = 0;
  if (warp < pairs) {
    uint8_t* const mine = memory + warp * pair_bytes(row_bytes);
    const uint32_t base = shared_address(mine), scales_at = 16 * row_bytes,
                   x = base + scales_at + 16 * scale_bytes;
    const int first = 2 * warp, count = min(2, m.top_k - first);
    const int e = min(lane % 2, count - 1), expert = chosen[first + e];
    if (lane == 0) {
      barrier_init(barriers + warp, 1);
      fence_async_proxy();
      barrier_expect(barriers + warp, count * (8 * (row_bytes + scale_bytes) + 4 * row_bytes));
    }
    __syncwarp();
    if (lane < 4 && lane % 2 < count) {  // rows of each, scales of each
      const bool of_scales = lane / 2;
      const int bytes = 8 * (of_scales ? scale_bytes : row_bytes);
      bulk_copy(base + (of_scales ? scales_at : 0) + e * bytes,
                (of_scales ? static_cast<const uint8_t*>(m.down.scale) + expert * m.down.expert_scales
                           : m.down.data + expert * m.down.expert_bytes) +
                    int64_t{blockIdx.x} * bytes,
                bytes, shared_address(barriers + warp), evict_first());
    }
    const float factor =
        (m.down.global_scales ? m.down.global_scales[expert] : m.down.global_scale) * kE2m1Rest;
    pdl_launch();
    if (adds) {
      before = __ldcg(m.x + int64_t{s} * width + n);
      inj = __ldcg(m.injection.inj + s);
    }
    pdl_wait();
    if (lane < count) {
      bulk_copy(x + lane * x_stride, a.act + int64_t{first + lane} * a.width, 4 * row_bytes, barriers + warp);
    }
    barrier_wait(barriers + warp, 0);
    float acc[4] = {};
    const uint32_t upper = base + g * row_bytes + 16 * t, scales = base + scales_at + g * scale_bytes + 2 * t;
    const int second = count - 1;  // without a second its rows are the first's again
    walk_rows(acc, upper, upper + second * 8 * row_bytes, scales, scales + second * 8 * scale_bytes,
              x + min(g, second) * x_stride + 64 * t, row_bytes / 64);
    // Lane 4g has the first expert's row g by column 0 and the second's by column 1; their factors are the lanes' 0 and 1.
    const float f0 = __shfl_sync(0xffffffffu, factor, 0), f1 = __shfl_sync(0xffffffffu, factor, 1);
    if (t == 0) {
      result[first][g] = acc[0] * f0;
      if (second) result[first + 1][g] = acc[3] * f1;
    }
  } else {
    const WeightView w = known<kOnlyF8Blocks>(m.shared_down);
    const RingPlan& plan = a.shared_down_plan;
    uint8_t* const mine = memory + pairs * pair_bytes(row_bytes);
    const int steps = stream_steps(w);
    WeightRing ring(plan, mine, w);
    ring.aim(w, row, w, row, 0, steps, false);
    ring.begin(0, steps);
    for (int i = 0; i < plan.depth; ++i) ring.put();
    pdl_launch();
    if (const RowChoice& c = a.choice; c.logits) {
      RankedLogits(c.logits, m.n_experts).weights(c.logits, m.n_experts, chosen, m.top_k, c.renormalise, p);
    }
    const XTile x = x_tile(mine + plan.bytes, w, 1, 0, steps);
    pdl_wait();
    const uint4* from = reinterpret_cast<const uint4*>(a.act + int64_t{m.top_k} * a.width);
#pragma unroll 3
    for (int i = lane; i < w.k / 8; i += 32) *reinterpret_cast<uint4*>(x.x + 16 * i) = __ldcg(from + i);
    __syncwarp();
    float acc[1][4] = {};
    walk<1, kOnlyF8Blocks>(acc, w, row, w, row, 0, steps, ring, x_place(x, w, lane / 4, 0), 0, 1,
                           [&] { ring.put(); });
    finish<1>(acc, w, row, w, row);
    if (t == 0) result[2 * pairs][g] = acc[0][0];
  }
  __syncthreads();
  if (s < max(m.injection.streams, 1)) {
    const float v = combine(p, m.top_k, __ldcg(a.shared_weight), result[2 * pairs][tid % 8],
                            [&](int j) { return result[j][tid % 8]; });
    if (s == 0 && m.y) m.y[n] = v;
    if (adds) m.x[int64_t{s} * width + n] = fmaf(inj, v, before);
  }
}

int gate_shared(const MoeView& m) {
  return kTiles * gate_stage(static_cast<int>(m.gate.row_bytes)) + column_stride(m.h.k * 2);
}

}  // namespace

bool takes_row(Stream& s, const MoeView& m) {
  if (!is_hopper(s) || m.h.n_rows != 1 || m.top_k > 2 * kMaxPairs || !m.h.wide) return false;
  if (!in_whole_rows(m.gate, 8) || !in_whole_rows(m.up, 8) || !in_whole_rows(m.down, 8)) return false;
  for (const WeightView* w : {&m.shared_gate, &m.shared_up, &m.shared_down})
    if (w->kind != WeightKind::F8Block || !only_known(*w) || w->n % 8 != 0) return false;
  // One kernel's shared memory has room for both, and the injection's threads are those of the pairs.
  return BlockTiles<kThreads>::takes(s, m.shared_gate) && m.injection.streams * 8 <= (m.top_k + 1) / 2 * 32 &&
         gate_shared(m) <= 56 * 1024 && m.down.row_bytes <= 1024 && m.gate.n % 8 == 0;
}

void moe_row(Stream& s, const MoeView& m, const RowChoice& choice) {
  ScratchScope scope(s);
  RowArgs a;
  a.m = m;
  a.choice = choice;
  a.width = (std::max(m.gate.n, m.shared_gate.n) + 7) / 8 * 8;
  a.act = reinterpret_cast<uint16_t*>(s.scratch(DType::F16, {m.top_k + 1, a.width}).data);
  a.shared_weight = s.scratch(DType::F32, {1, 1}).as<float>();
  a.shared_gate_plan = BlockTiles<kThreads>::plan_of(m.shared_gate, 1, false);
  a.shared_down_plan = takes_whole_rows(m.shared_down) ? whole_rows_plan(m.shared_down, 16)
                                                       : ring_plan(stream_steps(m.shared_down), 1, 2, false);
  const int gate_memory = std::max(
      gate_shared(m), a.shared_gate_plan.bytes + x_stride(m.shared_gate, stream_steps(m.shared_gate)));
  launch(
      s, moe_row_gate_up_kernel,
      dim3(blocks(std::max(m.gate.n, m.shared_gate.n), 8 * kTiles) + 1, static_cast<unsigned>(m.top_k + 1)),
      kThreads, static_cast<size_t>(gate_memory), 1, a);
  const int pairs = (m.top_k + 1) / 2;
  const int down_memory = pairs * pair_bytes(static_cast<int>(m.down.row_bytes)) + a.shared_down_plan.bytes +
                          x_stride(m.shared_down, stream_steps(m.shared_down));
  launch(s, moe_row_down_kernel, dim3(blocks(m.down.n, 8)), (pairs + 1) * 32,
         static_cast<size_t>(down_memory), 1, a);
}

}  // namespace quern::cuda

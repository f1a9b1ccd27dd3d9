// moe for decode rows: each chosen expert's weights are read once.
//
// Entries are the T·K pairs (row, j); those that name one expert form a group, and blocks belong to groups. The shared
// expert's rows go by eights, as groups before the others. One row needs two launches: gate and up, then down with the
// sum over experts and the injection. More rows are sorted into groups first, write each entry's result whole and sum in
// a fourth launch, by the same function.
#include <type_traits>

#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = 8;

// ---- groups ----

// Experts that occur, ascending; group g's entries are entries[begin[g]] … entries[begin[g + 1] - 1], ascending, and
// `rows` says which row each belongs to.
struct Groups {
  int32_t *count, *experts, *begin, *entries, *rows;
};

constexpr int kGroupThreads = 1024;  // as many experts at most

__global__ __launch_bounds__(kGroupThreads) void moe_group_kernel(const int32_t* ids, int n_rows, int top_k,
                                                                  Groups g) {
  __shared__ int32_t id[kMaxDecodeEntries], entry[kMaxDecodeEntries], next[kGroupThreads],
      warps[kGroupThreads / 32];
  pdl_wait();
  pdl_launch();
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, n = n_rows * top_k;
  next[tid] = 0;
  if (tid < n) id[tid] = __ldcg(ids + tid);
  __syncthreads();
  if (tid < n) atomicAdd(&next[id[tid]], 1);
  __syncthreads();
  // Entries and experts before this one, in the halves of one sum.
  const int count = next[tid], mine = count | (count > 0 ? 1 << 16 : 0);
  int before = mine;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int other = __shfl_up_sync(0xffffffffu, before, d);
    if (lane >= d) before += other;
  }
  if (lane == 31) warps[warp] = before;
  __syncthreads();
  before -= mine;
  for (int w = 0; w < warp; ++w) before += warps[w];
  const int at = before & 0xffff, group = before >> 16;
  next[tid] = at;
  if (count > 0) {
    g.experts[group] = tid;
    g.begin[group] = at;
  }
  if (tid == kGroupThreads - 1) {
    const int groups = group + (count > 0 ? 1 : 0);
    *g.count = groups;
    g.begin[groups] = n;
  }
  __syncthreads();
  if (warp == 0) {  // row by row: a row names an expert once
    for (int t = 0; t < n_rows; ++t) {
      if (lane < top_k) {
        const int i = t * top_k + lane, to = next[id[i]];
        entry[to] = i;
        next[id[i]] = to + 1;
      }
      __syncwarp();
    }
  }
  __syncthreads();
  if (tid < n) {
    g.entries[tid] = entry[tid];
    g.rows[tid] = entry[tid] / top_k;
  }
}

// What a block works on: columns are rows of h, or entries.
struct Group {
  bool shared = false;
  int expert = 0, n = 0, first = 0;  // n columns; of the shared expert rows first … first + n - 1
  const int32_t *entries = nullptr, *rows = nullptr;
};
// Group y of the grid; of one row, entry by entry. n = 0: nothing to do. The shared expert's are there before the router
// has run.
__device__ __forceinline__ bool is_shared(const MoeView& m, int y) { return y * kColumns < m.h.n_rows; }
__device__ __forceinline__ Group group_of(const MoeView& m, const Groups& g, int y) {
  Group r;
  r.shared = is_shared(m, y);
  if (r.shared) {
    r.first = y * kColumns;
    r.n = min(kColumns, m.h.n_rows - r.first);
    return r;
  }
  y -= (m.h.n_rows + kColumns - 1) / kColumns;
  if (m.h.n_rows == 1) {
    r.expert = __ldcg(m.ids + y);
    r.first = y;
    r.n = 1;
  } else if (y < __ldcg(g.count)) {
    const int begin = __ldcg(g.begin + y);
    r.expert = __ldcg(g.experts + y);
    r.n = __ldcg(g.begin + y + 1) - begin;
    r.entries = g.entries + begin;
    r.rows = g.rows + begin;
  }
  return r;
}

// ---- gate and up ----

// act[entry, i] = silu(gate_e · h)_i · (up_e · h)_i; the shared expert's rows follow the entries. A tile is eight rows of
// gate above the same eight of up, and the warps of a block split K.
// kWhole: they share whole tiles.
template <unsigned kFormats, bool kWhole>
__global__ __launch_bounds__(kThreads, kWhole ? 4 : 5) void moe_gate_up_kernel(
    const __grid_constant__ MoeView m, const __grid_constant__ RingPlan expert_plan,
    const __grid_constant__ RingPlan shared_plan, const __grid_constant__ Groups groups, float* act,
    int width, bool packs, float* shared_weight, int tiles_per_block) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float part[kWarps][kColumns * 16];
  __shared__ float reduced[kWarps];
  const int n_entries = m.h.n_rows * m.top_k, tid = static_cast<int>(threadIdx.x), warp = tid / 32,
            y = static_cast<int>(blockIdx.y);
  const bool gate_block = blockIdx.x == gridDim.x - 1;  // the shared expert's gate
  const bool shared = is_shared(m, y), one = m.h.n_rows == 1;
  if (gate_block && !shared) return;                                  // other blocks wait
  const WeightView any_gate = choose(shared, m.shared_gate, m.gate);  // of that shape and format
  const RingPlan plan = choose(shared, shared_plan, expert_plan);
  const int steps = stream_steps(any_gate), begin = part_begin(steps, warp, kWarps),
            end = part_begin(steps, warp + 1, kWarps);
  std::conditional_t<kWhole, BlockTiles<kThreads>, WeightRing> ring(
      plan, memory + (kWhole ? 0 : warp * plan.bytes), any_gate);
  uint8_t* const x_memory =
      memory + (kWhole ? max(expert_plan.bytes, shared_plan.bytes) : kWarps * plan.bytes);
  if (kWhole && !one) __syncthreads();
  if (one && !gate_block) {
    // The router lets this kernel start after its own wait, so h is there, and only ids are waited for.
    stage_rows<kThreads>(x_tile(x_memory, any_gate, 1, 0, steps), m.h, nullptr, 0, tid);
    __syncthreads();
  }
  const bool early = shared && !gate_block;  // weights known before the router has run
  if (!early) {
    pdl_wait();
    pdl_launch();  // after the wait: the next kernel may read ids and groups before its own
  }
  const Group group = group_of(m, groups, y);
  if (gate_block) {
    for (int t = group.first; t < group.first + group.n; ++t) {
      const float v = row_dot<kThreads>(m.shared_expert_gate, m.h.row(t), m.h.wide, reduced);
      if (tid == 0) shared_weight[t] = scalar::sigmoid(v);
    }
    return;
  }
  const WeightView gate = choose(shared, m.shared_gate, m.gate.expert(group.expert)),
                   up = choose(shared, m.shared_up, m.up.expert(group.expert));
  const int row_begin = static_cast<int>(blockIdx.x) * tiles_per_block * 8,
            row_end = min(row_begin + tiles_per_block * 8, gate.n);
  if (group.n == 0 || row_begin >= row_end) {
    if (early) pdl_wait();
    return;
  }
  int row_in = row_begin, passes_in = (group.n - 1) / kColumns;
  ring.aim(gate, row_in, up, row_in, begin, end);
  const auto put = [&] {
    if (ring.empty() && (row_in + 8 < row_end || passes_in > 0)) {
      row_in += 8;
      if (row_in >= row_end) {
        --passes_in;
        row_in = row_begin;
      }
      ring.aim(gate, row_in, up, row_in, begin, end);
    }
    ring.put();
  };
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) put();
  if (early) {
    pdl_wait();
    pdl_launch();
  }
#pragma unroll 1
  for (int first = 0; first < group.n; first += kColumns) {
    const XTile x = x_tile(x_memory, gate, min(kColumns, group.n - first), 0, steps);
    if (!one) {
      stage_rows<kThreads>(x, m.h, group.rows, shared ? group.first : first, tid);
      __syncthreads();
    }
    const uint32_t from = x_place(x, gate, tid % 32 / 4, begin);
#pragma unroll 1
    for (int row = row_begin; row < row_end; row += 8) {
      float acc[1][4] = {};
      ring.begin(begin, end - begin);
      walk<1, kFormats>(acc, gate, row, up, row, begin, end - begin, ring, from, 0, 1, put);
      finish<1>(acc, gate, row, up, row);
      store_tile<1>(part[warp], acc);
      __syncthreads();
      const int c = first + tid / 8, r = row + tid % 8;
      if (tid < kColumns * 8 && c < group.n && r < gate.n) {
        const int at = tid / 8 * 16 + tid % 8;
        const float g = ((part[0][at] + part[1][at]) + part[2][at]) + part[3][at];
        const float u = ((part[0][at + 8] + part[1][at + 8]) + part[2][at + 8]) + part[3][at + 8];
        const int entry = shared          ? n_entries + group.first + c
                          : group.entries ? __ldcg(group.entries + c)
                                          : group.first;
        const float v = scalar::silu(g) * u;
        if (packs) {
          const XOrder order = x_order(shared ? m.shared_down.kind : m.down.kind);
          reinterpret_cast<uint16_t*>(act)[int64_t{entry} * width + XTile::place(order, r)] =
              XTile::packed(order, v);
        } else {
          act[int64_t{entry} * width + r] = v;
        }
      }
      __syncthreads();  // part, the tile, and after the last row x, are used up
      if constexpr (kWhole) {
        ring.release();
        put();
      }
    }
  }
}

// ---- down ----

// One row: 8 columns of y a block. A warp takes two experts, one in the upper and one in the lower rows of its tile; each
// has its own column of x. The last warp takes the shared expert.
constexpr int kMaxPairs = 8;

template <unsigned kFormats>
__global__ __launch_bounds__((kMaxPairs + 1) * 32,
                             2) void moe_down_row_kernel(const __grid_constant__ MoeView m,
                                                         const __grid_constant__ RingPlan expert_plan,
                                                         const __grid_constant__ RingPlan shared_plan,
                                                         const float* act, int width, bool packed,
                                                         const float* shared_weight, int x_bytes) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float result[2 * kMaxPairs + 2][8], p[2 * kMaxPairs];
  // gate_up lets this kernel start after its own wait, so ids, p, x and inj are complete.
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int pairs = (m.top_k + 1) / 2, row = static_cast<int>(blockIdx.x) * 8;
  const bool shared = warp == pairs, two = !shared && 2 * warp + 1 < m.top_k;
  const int first = shared ? m.top_k : 2 * warp;
  const int id0 = shared ? 0 : __ldcg(m.ids + first), id1 = two ? __ldcg(m.ids + first + 1) : id0;
  const WeightView w0 = choose(shared, m.shared_down, m.down.expert(id0)),
                   w1 = choose(shared, m.shared_down, m.down.expert(id1));
  const int steps = stream_steps(w0);
  const RingPlan plan = choose(shared, shared_plan, expert_plan);
  uint8_t* mine = memory + warp * (expert_plan.bytes + x_bytes);
  WeightRing ring(plan, mine, w0);
  ring.aim(w0, row, w1, row, 0, steps, two);
  ring.begin(0, steps);
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) ring.put();
  pdl_launch();
  // Thread (stream, column): the residual it adds to.
  const int s = tid / 8, n = row + tid % 8;
  const bool adds = s < m.injection.streams && n < w0.n;
  float before = 0, inj = 0;
  if (adds) {
    before = __ldcg(m.x + int64_t{s} * w0.n + n);
    inj = __ldcg(m.injection.inj + s);
  }
  if (tid < m.top_k) p[tid] = __ldcg(m.p + tid);
  const XTile x = x_tile(mine + plan.bytes, w0, two ? 2 : 1, 0, steps);
  const RowsF32 rows{act, width, m.top_k + 1, w0.k, width % 4 == 0 && w0.k % 16 == 0};
  pdl_wait();
  const float of_shared = __ldcg(shared_weight);
  if (packed) {  // as x lies in shared memory
    const int chunks = w0.k / 8;
#pragma unroll 5
    for (int i = lane; i < (two ? 2 : 1) * chunks; i += 32) {
      const int c = i >= chunks ? 1 : 0;
      const uint4* from = reinterpret_cast<const uint4*>(reinterpret_cast<const uint16_t*>(act) +
                                                         int64_t{first + c} * width) +
                          i - c * chunks;
      *reinterpret_cast<uint4*>(x.x + c * x.stride + 16 * (i - c * chunks)) = __ldcg(from);
    }
  } else {
    stage_rows<32>(x, rows, nullptr, first, lane);
  }
  __syncwarp();
  float acc[1][4] = {};
  walk<1, kFormats>(acc, w0, row, w1, row, 0, steps, ring, x_place(x, w0, lane / 4, 0), 0, 1,
                    [&] { ring.put(); });
  finish<1>(acc, w0, row, w1, row);
  if (lane % 4 == 0) {
    result[shared ? 2 * pairs : first][lane / 4] = acc[0][0];
    if (two) result[first + 1][lane / 4] = acc[0][3];
  }
  __syncthreads();
  if (s < max(m.injection.streams, 1) && n < w0.n) {
    const float v =
        combine(p, m.top_k, of_shared, result[2 * pairs][tid % 8], [&](int j) { return result[j][tid % 8]; });
    if (s == 0 && m.y) m.y[n] = v;
    if (adds) m.x[int64_t{s} * w0.n + n] = fmaf(inj, v, before);
  }
}

// y_e[entry, :] = down_e · act[entry, :]: a warp takes tiles of 16 columns one after the other.
template <unsigned kFormats>
__global__ __launch_bounds__(kThreads, 5) void moe_down_kernel(const __grid_constant__ MoeView m,
                                                               const __grid_constant__ RingPlan plan,
                                                               const __grid_constant__ Groups groups,
                                                               const float* act, int width, float* y,
                                                               int tiles_per_warp) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int n_entries = m.h.n_rows * m.top_k, tid = static_cast<int>(threadIdx.x), warp = tid / 32,
            lane = tid % 32;
  const Group group = group_of(m, groups, static_cast<int>(blockIdx.y));
  const WeightView down = choose(group.shared, m.shared_down, m.down.expert(group.expert));
  const int row_begin = (static_cast<int>(blockIdx.x) * kWarps + warp) * tiles_per_warp * 16,
            row_end = min(row_begin + tiles_per_warp * 16, down.n), steps = stream_steps(down);
  if (group.n == 0) {
    pdl_wait();
    pdl_launch();
    return;
  }
  WeightRing ring(plan, memory + warp * plan.bytes, down);
  int row_in = row_begin, passes_in = (group.n - 1) / kColumns;
  ring.aim(down, row_in, down, row_in + 8, 0, row_begin < row_end ? steps : 0);
  const auto put = [&] {
    if (ring.empty() && row_begin < row_end && (row_in + 16 < row_end || passes_in > 0)) {
      row_in += 16;
      if (row_in >= row_end) {
        --passes_in;
        row_in = row_begin;
      }
      ring.aim(down, row_in, down, row_in + 8, 0, steps);
    }
    ring.put();
  };
#pragma unroll 1
  for (int i = 0; i < plan.depth; ++i) put();
  pdl_wait();
  pdl_launch();
  for (int first = 0; first < group.n; first += kColumns) {
    const XTile x = x_tile(memory + kWarps * plan.bytes, down, min(kColumns, group.n - first), 0, steps);
    const RowsF32 rows{act + (group.shared ? int64_t{n_entries} * width : 0), width, 0, down.k,
                       width % 4 == 0 && down.k % 16 == 0};
    stage_rows<kThreads>(x, rows, group.entries, group.shared ? group.first : first, tid);
    __syncthreads();
    const uint32_t from = x_place(x, down, lane / 4, 0);
    for (int row = row_begin; row < row_end; row += 16) {
      float acc[1][4] = {};
      ring.begin(0, steps);
      walk<1, kFormats>(acc, down, row, down, row + 8, 0, steps, ring, from, 0, 1, put);
      finish<1>(acc, down, row, down, row + 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = first + 2 * (lane % 4) + e % 2, r = row + lane / 4 + 8 * (e / 2);
        if (c >= group.n || r >= down.n) continue;
        const int entry = group.shared ? n_entries + group.first + c : __ldcg(group.entries + c);
        y[int64_t{entry} * down.n + r] = acc[0][e];
      }
    }
    __syncthreads();  // x is used up
  }
}

}  // namespace

void moe_decode(Stream& s, const MoeView& m) {
  QUERN_CHECK(m.gate.kind == m.up.kind && m.shared_gate.kind == m.shared_up.kind,
              "an expert's gate and up have one format on CUDA");
  QUERN_CHECK(m.top_k <= 2 * kMaxPairs, "moe on CUDA takes at most 16 experts a token");
  QUERN_CHECK(m.h.n_rows * m.top_k <= kMaxDecodeEntries && m.n_experts <= kGroupThreads,
              "too many decode rows in one step for moe");
  if (takes_row(s, m)) {
    moe_row(s, m);
    return;
  }
  ScratchScope scope(s);
  const int n_rows = m.h.n_rows, n_entries = n_rows * m.top_k;
  const int width = std::max({m.gate.n, m.shared_gate.n}), h = m.down.n;
  const Tensor act = s.scratch(DType::F32, {n_entries + n_rows, width});
  const Tensor weight = s.scratch(DType::F32, {n_rows, 1});
  const Tensor sorted = s.scratch(DType::I32, {1, 2 + 2 * kGroupThreads + 2 * kMaxDecodeEntries});
  auto* at = sorted.as<int32_t>();
  const Groups groups{at, at + 1, at + 1 + kGroupThreads, at + 2 + 2 * kGroupThreads,
                      at + 2 + 2 * kGroupThreads + kMaxDecodeEntries};
  const bool one = n_rows == 1, batch = takes_batch(s, m);
  static_assert(kThreads == kSharedDotThreads);
  Tensor y;
  if (!one) y = s.scratch(DType::F32, {n_entries + n_rows, h});
  float* const y_shared = one ? nullptr : y.as<float>() + int64_t{n_entries} * h;
  if (batch && moe_batch(s, m, y.as<float>(), y_shared, weight.as<float>())) {
    moe_combine(s, m, y.as<float>(), y_shared, weight.as<float>());
    return;
  }
  const int columns = std::min(n_rows, kColumns);
  const auto slots = static_cast<unsigned>(ceil_div(n_rows, kColumns) +
                                           (batch ? 0 : std::min(n_entries, one ? n_entries : m.n_experts)));
  if (!one && !batch)
    launch(s, moe_group_kernel, dim3(1), kGroupThreads, 0, 1, m.ids, n_rows, m.top_k, groups);

  const auto x_bytes = [](const WeightView& a, const WeightView& b, int n) {
    return n * std::max(x_stride(a, stream_steps(a)), x_stride(b, stream_steps(b)));
  };
  const auto most_steps = [](const WeightView& a, const WeightView& b) {
    return std::max(stream_steps(a), stream_steps(b));
  };
  const bool all_stream = streams(m.gate) && streams(m.up) && streams(m.down) && streams(m.shared_gate) &&
                          streams(m.shared_up) && streams(m.shared_down);
  const int tiles = one || batch ? 2 : 5;  // of a block
  const bool in_f4 = is_f4(m.gate) || is_f4(m.shared_gate);
  // One row's intermediate is written as down's x lies in shared memory.
  const auto in_steps = [](const WeightView& w) { return streams(w) && w.k % step_values(w) == 0; };
  const bool packs = one && width % 8 == 0 && in_steps(m.down) && in_steps(m.shared_down);
  const int in_x = x_bytes(m.gate, m.shared_gate, columns);
  const auto gate_up = [&](auto kernel, int memory, auto... plans) {
    launch(s, kernel, dim3(blocks(width, 8 * tiles) + 1, slots), kThreads, static_cast<size_t>(memory + in_x),
           1, m, plans..., groups, act.as<float>(), width, packs, weight.as<float>(), tiles);
  };
  bool whole = all_stream;
  for (const WeightView* w : {&m.gate, &m.up, &m.shared_gate, &m.shared_up})
    whole &= BlockTiles<kThreads>::takes(s, *w);
  if (whole) {
    // Four blocks of a multiprocessor where two tiles each fit.
    constexpr int kRoom = 55 * 1024;
    const auto plan_of = [&](const WeightView& w) {
      const RingPlan two = BlockTiles<kThreads>::plan_of(w, 2, false);
      return two.bytes + in_x <= kRoom ? two : BlockTiles<kThreads>::plan_of(w, 1, false);
    };
    const RingPlan of_expert = plan_of(m.gate), of_shared = plan_of(m.shared_gate);
    gate_up(moe_gate_up_kernel<kWalkStreams, true>, std::max(of_expert.bytes, of_shared.bytes), of_expert,
            of_shared);
  } else {
    const RingPlan plan = ring_plan_beside(
        s, kWarps, in_x + 4 * 1024, ceil_div(most_steps(m.gate, m.shared_gate), kWarps), tiles, 2, in_f4);
    gate_up(moe_gate_up_kernel<kWalkAny, false>, kWarps * plan.bytes, plan, plan);
  }
  const auto* const_act = static_cast<const float*>(act.as<float>());
  if (one) {
    const int pairs = (m.top_k + 1) / 2, of_pair = x_bytes(m.down, m.down, 2);
    const auto plan_of = [&](const WeightView& w) {
      if (is_hopper(s) && takes_whole_rows(w)) return whole_rows_plan(w, 16);
      return ring_plan_beside(s, pairs + 1,
                              pairs * of_pair + x_bytes(m.shared_down, m.shared_down, 1) + 2 * 1024,
                              stream_steps(w), 1, 2, is_f4(w));
    };
    const RingPlan of_expert = plan_of(m.down), of_shared = plan_of(m.shared_down);
    launch(s, all_stream ? moe_down_row_kernel<kWalkStreams> : moe_down_row_kernel<kWalkAny>,
           dim3(blocks(h, 8)), (pairs + 1) * 32,
           static_cast<size_t>(pairs * (of_expert.bytes + of_pair) + of_shared.bytes +
                               x_bytes(m.shared_down, m.shared_down, 1)),
           1, m, of_expert, of_shared, const_act, width, packs, static_cast<const float*>(weight.as<float>()),
           of_pair);
    return;
  }
  const int tiles_per_warp = batch ? 1 : 4;
  const int down_x = x_bytes(m.down, m.shared_down, columns);
  const RingPlan plan = ring_plan_beside(s, kWarps, down_x, most_steps(m.down, m.shared_down), tiles_per_warp,
                                         2, is_f4(m.down) || is_f4(m.shared_down));
  launch(s, all_stream ? moe_down_kernel<kWalkStreams> : moe_down_kernel<kWalkAny>,
         dim3(blocks(h, kWarps * tiles_per_warp * 16), slots), kThreads,
         static_cast<size_t>(kWarps * plan.bytes + down_x), 1, m, plan, groups, const_act, width,
         y.as<float>(), tiles_per_warp);
  moe_combine(s, m, y.as<float>(), y_shared, weight.as<float>());
}

}  // namespace quern::cuda

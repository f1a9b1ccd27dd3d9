// moe for decode rows: each chosen expert's weights are read once.
//
// Slots are the T·K entries (row, j) and the shared expert. A block belongs to one slot and works only if no
// earlier entry names the same expert; it then takes every entry that does. One row needs two launches: gate
// and up, then down with the sum over experts and the injection; more rows write each entry's result whole
// and sum in a third, by the same function.
#include "ops/cuda/moe_launch.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kMaxEntries = kMaxDecodeEntries;

// The entries of a slot's expert, ascending, found by the first warp. 0 for a slot that has a leader before it.
__device__ __forceinline__ int entries_of(const int32_t* ids, int n, int slot, int32_t* entries) {
  const int lane = threadIdx.x % 32;
  const int expert = __ldcg(ids + slot);
  int count = 0;
  for (int i0 = 0; i0 < n; i0 += 32) {
    const int i = i0 + lane;
    const unsigned match = __ballot_sync(0xffffffffu, i < n && __ldcg(ids + i) == expert);
    if (match == 0) continue;
    if (count == 0 && i0 + __ffs(static_cast<int>(match)) - 1 < slot) return 0;
    if (match >> lane & 1u) entries[count + __popc(match & ((1u << lane) - 1u))] = i;
    count += __popc(match);
  }
  return count;
}

// act[entry, i] = silu(gate_e · h)_i · (up_e · h)_i; the shared expert's rows follow the entries.
template <int kTiles>
__global__ __launch_bounds__(kThreads) void moe_gate_up_kernel(const __grid_constant__ MoeView m, float* act,
                                                               int width, float* shared_weight) {
  constexpr int kColumns = 8 * kTiles;
  __shared__ float part[kWarps][2][kColumns * 16];
  __shared__ int32_t entries[kMaxEntries], list[kMaxEntries];
  __shared__ int32_t count;
  __shared__ float reduced[kWarps];
  pdl_wait();
  pdl_launch();  // after the wait: the next kernel may read ids before its own
  const int n_entries = m.h.n_rows * m.top_k, slot = static_cast<int>(blockIdx.y);
  const bool shared = slot == n_entries;
  const int tiles = (width + 15) / 16;
  if (static_cast<int>(blockIdx.x) == tiles) {  // the shared expert's gate
    if (!shared) return;
    for (int t = 0; t < m.h.n_rows; ++t) {
      const float v = row_dot<kThreads>(m.shared_expert_gate, m.h.row(t), m.h.wide, reduced);
      if (threadIdx.x == 0) shared_weight[t] = scalar::sigmoid(v);
    }
    return;
  }
  const int row = static_cast<int>(blockIdx.x) * 16;
  int n = m.h.n_rows, expert = 0;
  if (!shared) {
    expert = __ldcg(m.ids + slot);
    if (m.h.n_rows == 1) {
      n = 1;
      if (threadIdx.x == 0) {
        entries[0] = slot;
        list[0] = 0;
      }
    } else {
      if (threadIdx.x < 32) {
        const int c = entries_of(m.ids, n_entries, slot, entries);
        if (threadIdx.x == 0) count = c;
      }
      __syncthreads();
      n = count;
      if (n == 0) return;
      for (int i = threadIdx.x; i < n; i += kThreads) list[i] = entries[i] / m.top_k;
    }
    __syncthreads();
  }
  const WeightView gate = shared ? m.shared_gate : m.gate.expert(expert);
  const WeightView up = shared ? m.shared_up : m.up.expert(expert);
  if (row >= gate.n) return;
  const int warp = threadIdx.x / 32, steps = steps_of(gate.k);
  const int begin = part_begin(steps, warp, kWarps), end = part_begin(steps, warp + 1, kWarps);
  for (int first = 0; first < n; first += kColumns) {
    RowsF32 rows = m.h;
    rows.n_rows = n;
    PlainColumns columns{rows, shared ? nullptr : list, first};
    float acc[2][kTiles][4] = {};
    product<2, kTiles>(acc, {gate, up}, {row, row}, begin, end, columns, [] {});
    store_tile(part[warp][0], acc[0]);
    store_tile(part[warp][1], acc[1]);
    __syncthreads();
    for (int i = threadIdx.x; i < kColumns * 16; i += kThreads) {
      const int c = first + i / 16, r = row + i % 16;
      if (c >= n || r >= gate.n) continue;
      float g = part[0][0][i], u = part[0][1][i];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        g += part[w][0][i];
        u += part[w][1][i];
      }
      const int entry = shared ? n_entries + c : entries[c];
      act[int64_t{entry} * width + r] = scalar::silu(g) * u;
    }
    __syncthreads();
  }
}

// One row: a warp an expert, the last one the shared expert; 16 columns of y a block.
__global__ void moe_down_row_kernel(const __grid_constant__ MoeView m, const float* act, int width,
                                    const float* shared_weight) {
  pdl_launch();
  __shared__ float result[32][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool shared = warp == m.top_k;
  // gate_up lets this kernel start after its own wait, so the router's ids are complete.
  const WeightView down = shared ? m.shared_down : m.down.expert(__ldcg(m.ids + warp));
  const int row = static_cast<int>(blockIdx.x) * 16;
  float acc[1][1][4] = {};
  PlainColumns columns{
      {act + int64_t{warp} * width, width, 1, down.k, width % 4 == 0 && down.k % 16 == 0}, nullptr, 0};
  product<1, 1>(acc, {down}, {row}, 0, steps_of(down.k), columns, [] { pdl_wait(); });
  if (lane % 4 == 0) {
    result[warp][lane / 4] = acc[0][0][0];
    result[warp][lane / 4 + 8] = acc[0][0][2];
  }
  __syncthreads();
  const int i = threadIdx.x, n = row + i;
  if (i < 16 && n < down.n) {
    const float v =
        combine(m.p, m.top_k, shared_weight[0], result[m.top_k][i], [&](int j) { return result[j][i]; });
    if (m.y) m.y[n] = v;
    for (int s = 0; s < m.injection.streams; ++s) {
      float* x = m.x + int64_t{s} * down.n + n;
      *x = fmaf(m.injection.inj[s], v, *x);
    }
  }
}

// y_e[entry, :] = down_e · act[entry, :], 16 columns a warp.
template <int kTiles>
__global__ __launch_bounds__(kThreads) void moe_down_kernel(const __grid_constant__ MoeView m,
                                                            const float* act, int width, float* y) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles;
  __shared__ int32_t entries[kMaxEntries];
  __shared__ int32_t count;
  const int n_entries = m.h.n_rows * m.top_k, slot = static_cast<int>(blockIdx.y);
  const bool shared = slot == n_entries;
  int n = m.h.n_rows;
  if (!shared) {
    if (threadIdx.x < 32) {
      const int c = entries_of(m.ids, n_entries, slot, entries);
      if (threadIdx.x == 0) count = c;
    }
    __syncthreads();
    n = count;
  }
  if (n == 0) {
    pdl_wait();
    return;
  }
  const WeightView down = shared ? m.shared_down : m.down.expert(__ldcg(m.ids + slot));
  const int lane = threadIdx.x % 32,
            row = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * 16;
  bool waited = false;
  for (int first = 0; first < n; first += kColumns) {
    RowsF32 rows{act + (shared ? int64_t{n_entries} * width : 0), width, n, down.k,
                 width % 4 == 0 && down.k % 16 == 0};
    PlainColumns columns{rows, shared ? nullptr : entries, first};
    float acc[1][kTiles][4] = {};
    product<1, kTiles>(acc, {down}, {row}, 0, steps_of(down.k), columns, [&] {
      if (!waited) pdl_wait();
      waited = true;
    });
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int c = first + 8 * j + 2 * (lane % 4) + e % 2, r = row + lane / 4 + 8 * (e / 2);
        if (c >= n || r >= down.n) continue;
        const int entry = shared ? n_entries + c : entries[c];
        y[int64_t{entry} * down.n + r] = acc[0][j][e];
      }
    }
  }
}

}  // namespace

void moe_decode(Stream& s, const MoeView& m) {
  QUERN_CHECK(m.gate.kind == m.up.kind && m.shared_gate.kind == m.shared_up.kind,
              "an expert's gate and up have one format on CUDA");
  QUERN_CHECK(m.h.n_rows * m.top_k <= kMaxEntries, "too many decode rows in one step for moe");
  ScratchScope scope(s);
  const int n_entries = m.h.n_rows * m.top_k;
  const int width = std::max({m.gate.n, m.shared_gate.n}), h = m.down.n;
  const Tensor act = s.scratch(DType::F32, {n_entries + m.h.n_rows, width});
  const Tensor weight = s.scratch(DType::F32, {m.h.n_rows, 1});
  const dim3 grid(static_cast<unsigned>(ceil_div(width, 16) + 1), static_cast<unsigned>(n_entries + 1));
  launch(s, m.h.n_rows <= 8 ? moe_gate_up_kernel<1> : moe_gate_up_kernel<2>, grid, kThreads, 0, 1, m,
         act.as<float>(), width, weight.as<float>());
  if (m.h.n_rows == 1) {
    launch(s, moe_down_row_kernel, dim3(blocks(h, 16)), (m.top_k + 1) * 32, 0, 1, m,
           static_cast<const float*>(act.as<float>()), width, static_cast<const float*>(weight.as<float>()));
    return;
  }
  const Tensor y = s.scratch(DType::F32, {n_entries + m.h.n_rows, h});
  launch(s, m.h.n_rows <= 8 ? moe_down_kernel<1> : moe_down_kernel<2>,
         dim3(blocks(h, kWarps * 16), static_cast<unsigned>(n_entries + 1)), kThreads, 0, 1, m,
         static_cast<const float*>(act.as<float>()), width, y.as<float>());
  moe_combine(s, m, y.as<float>(), y.as<float>() + int64_t{n_entries} * h, weight.as<float>());
}

}  // namespace quern::cuda

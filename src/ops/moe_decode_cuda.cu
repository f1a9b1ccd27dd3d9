// moe for decode rows: each chosen expert's weights are read once.
//
// Slots are the T·K entries (row, j) and the shared expert. A block belongs to one slot and works only if no
// earlier entry names the same expert; it then takes every entry that does. One row needs two launches: gate
// and up, then down with the sum over experts and the injection; more rows write each entry's result whole
// and sum in a third, by the same function.
#include "ops/cuda/moe_launch.cuh"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kMaxEntries = kMaxDecodeEntries, kColumns = 8;

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
template <typename F>
__global__ __launch_bounds__(kThreads, 2) void moe_gate_up_kernel(const __grid_constant__ MoeView m,
                                                                  float* act, int width,
                                                                  float* shared_weight) {
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ float part[kWarps][2][kColumns * 16];
  __shared__ int32_t entries[kMaxEntries], list[kMaxEntries];
  __shared__ int32_t count;
  __shared__ float reduced[kWarps];
  pdl_wait();
  pdl_launch();  // after the wait: the next kernel may read ids before its own
  const int n_entries = m.h.n_rows * m.top_k, slot = static_cast<int>(blockIdx.y);
  const bool shared = slot >= n_entries;
  const int first_shared = (slot - n_entries) * kColumns;  // the shared expert's rows go by eights
  const int tiles = (width + 15) / 16;
  if (static_cast<int>(blockIdx.x) == tiles) {  // the shared expert's gate
    if (!shared) return;
    for (int t = first_shared; t < min(first_shared + kColumns, m.h.n_rows); ++t) {
      const float v = row_dot<kThreads>(m.shared_expert_gate, m.h.row(t), m.h.wide, reduced);
      if (threadIdx.x == 0) shared_weight[t] = scalar::sigmoid(v);
    }
    return;
  }
  const int row = static_cast<int>(blockIdx.x) * 16;
  int n = min(first_shared + kColumns, m.h.n_rows), expert = 0;
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
  const WeightView w[2] = {shared ? m.shared_gate : m.gate.expert(expert),
                           shared ? m.shared_up : m.up.expert(expert)};
  if (row >= w[0].n) return;
  const int warp = threadIdx.x / 32, steps = steps_of(w[0].k);
  const int begin = part_begin(steps, warp, kWarps), end = part_begin(steps, warp + 1, kWarps);
  for (int first = shared ? first_shared : 0; first < n; first += kColumns) {
    PlainStage<kThreads> stage{m.h,
                               shared ? nullptr : list,
                               first,
                               {staged, staged_stride(steps), min(kColumns, n - first), 0, steps * kStep},
                               true};
    float acc[2 * 4];
    product_of_two<F, 1>(acc, w[0], w[1], row, row, begin, end, stage);
    store_tile<1>(part[warp][0], acc);
    store_tile<1>(part[warp][1], acc + 4);
    __syncthreads();
    for (int i = threadIdx.x; i < kColumns * 16; i += kThreads) {
      const int c = first + i / 16, r = row + i % 16;
      if (c >= n || r >= w[0].n) continue;
      float g = part[0][0][i], u = part[0][1][i];
#pragma unroll
      for (int q = 1; q < kWarps; ++q) {
        g += part[q][0][i];
        u += part[q][1][i];
      }
      const int entry = shared ? n_entries + c : entries[c];
      act[int64_t{entry} * width + r] = scalar::silu(g) * u;
    }
    __syncthreads();
  }
}

// One row: a warp an expert, the last one the shared expert; 16 columns of y a block.
// Every expert's act is a column; a warp uses its own. The routed experts' warps stage theirs together, the shared
// expert's warp its own, in the order its format asks for; both pass one barrier of the block.
struct ActStage {
  const float* act;
  int width, k, first_thread, n_threads;
  StagedX staged;

  template <bool kSplitPairs>
  __device__ __forceinline__ void run() {
    pdl_wait();
    const int chunks = staged.k1 / 8;
    for (int i = static_cast<int>(threadIdx.x) - first_thread; i < chunks * staged.n_columns;
         i += n_threads) {
      const int c = i / chunks, at = i % chunks;
      float v[8];
      load_eight(v, act + c * width, 8 * at, k, k % 16 == 0 && width % 4 == 0);
      *reinterpret_cast<uint4*>(staged.x + c * staged.stride + 16 * at) = pack_eight<kSplitPairs>(v);
    }
    __syncthreads();
  }
};

template <typename F>
__global__ __launch_bounds__(16 * 32, 1) void moe_down_row_kernel(const __grid_constant__ MoeView m,
                                                                  const float* act, int width,
                                                                  const float* shared_weight) {
  pdl_launch();
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ float result[16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool shared = warp == m.top_k;
  // gate_up lets this kernel start after its own wait, so the router's ids are complete.
  const WeightView down = shared ? m.shared_down : m.down.expert(__ldcg(m.ids + warp));
  const int row = static_cast<int>(blockIdx.x) * 16, steps = steps_of(down.k),
            stride = staged_stride(steps_of(width));
  float acc[4];
  const int k1 = steps * kStep;
  ActStage stage = shared ? ActStage{act + int64_t{m.top_k} * width,
                                     width,
                                     down.k,
                                     32 * m.top_k,
                                     32,
                                     {staged + m.top_k * stride, stride, 1, 0, k1}}
                          : ActStage{act, width, down.k, 0, 32 * m.top_k, {staged, stride, m.top_k, 0, k1}};
  product<F, 1>(acc, down, row, 0, steps, stage, shared ? 0 : warp, true);
  if (lane % 4 == 0) {
    result[warp][lane / 4] = acc[0];
    result[warp][lane / 4 + 8] = acc[2];
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
template <typename F>
__global__ __launch_bounds__(kThreads, 2) void moe_down_kernel(const __grid_constant__ MoeView m,
                                                               const float* act, int width, float* y) {
  pdl_launch();
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ int32_t entries[kMaxEntries];
  __shared__ int32_t count;
  const int n_entries = m.h.n_rows * m.top_k, slot = static_cast<int>(blockIdx.y);
  const bool shared = slot >= n_entries;
  const int first_shared = (slot - n_entries) * kColumns;
  int n = min(first_shared + kColumns, m.h.n_rows);
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
  const int steps = steps_of(down.k);
  bool waited = false;
  for (int first = shared ? first_shared : 0; first < n; first += kColumns) {
    const RowsF32 rows{act + (shared ? int64_t{n_entries} * width : 0), width, n, down.k,
                       width % 4 == 0 && down.k % 16 == 0};
    PlainStage<kThreads> stage{rows,
                               shared ? nullptr : entries,
                               first,
                               {staged, staged_stride(steps), min(kColumns, n - first), 0, steps * kStep},
                               waited};
    float acc[4];
    product<F, 1>(acc, down, row, 0, steps, stage);
    waited = true;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int c = first + 2 * (lane % 4) + e % 2, r = row + lane / 4 + 8 * (e / 2);
      if (c >= n || r >= down.n) continue;
      const int entry = shared ? n_entries + c : entries[c];
      y[int64_t{entry} * down.n + r] = acc[e];
    }
    __syncthreads();  // the staged rows are used up
  }
}

}  // namespace

void moe_decode(Stream& s, const MoeView& m) {
  QUERN_CHECK(m.gate.kind == m.up.kind && m.shared_gate.kind == m.shared_up.kind,
              "an expert's gate and up have one format on CUDA");
  QUERN_CHECK(m.top_k <= 15, "moe on CUDA takes at most 15 experts a token");
  QUERN_CHECK(m.h.n_rows * m.top_k <= kMaxEntries, "too many decode rows in one step for moe");
  ScratchScope scope(s);
  const int n_entries = m.h.n_rows * m.top_k;
  const int width = std::max({m.gate.n, m.shared_gate.n}), h = m.down.n;
  const Tensor act = s.scratch(DType::F32, {n_entries + m.h.n_rows, width});
  const Tensor weight = s.scratch(DType::F32, {m.h.n_rows, 1});
  const int slots = n_entries + ceil_div(m.h.n_rows, kColumns), used = std::min(m.h.n_rows, kColumns);
  const int act_stride = staged_stride(steps_of(width));
  with_format_host(m.gate.kind, [&](auto format) {
    launch(s, moe_gate_up_kernel<decltype(format)>,
           dim3(static_cast<unsigned>(ceil_div(width, 16) + 1), static_cast<unsigned>(slots)), kThreads,
           static_cast<size_t>(staged_stride(steps_of(m.h.k)) * used), 1, m, act.as<float>(), width,
           weight.as<float>());
  });
  if (m.h.n_rows == 1) {
    with_format_host(m.down.kind, [&](auto format) {
      launch(s, moe_down_row_kernel<decltype(format)>, dim3(blocks(h, 16)), (m.top_k + 1) * 32,
             static_cast<size_t>(act_stride * (m.top_k + 1)), 1, m,
             static_cast<const float*>(act.as<float>()), width,
             static_cast<const float*>(weight.as<float>()));
    });
    return;
  }
  const Tensor y = s.scratch(DType::F32, {n_entries + m.h.n_rows, h});
  with_format_host(m.down.kind, [&](auto format) {
    launch(s, moe_down_kernel<decltype(format)>, dim3(blocks(h, kWarps * 16), static_cast<unsigned>(slots)),
           kThreads, static_cast<size_t>(act_stride * used), 1, m, static_cast<const float*>(act.as<float>()),
           width, y.as<float>());
  });
  moe_combine(s, m, y.as<float>(), y.as<float>() + int64_t{n_entries} * h, weight.as<float>());
}

}  // namespace quern::cuda

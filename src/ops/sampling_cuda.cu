// Three kernels, whatever the rows ask for, so that a captured step can serve any request.
//
//   adjust   all blocks: bias, penalties, mask and temperature into a copy of the logits; each chunk of the vocabulary leaves
//            its maximum and its winner: the argmax of greedy rows, of the noisy logits of rows without cuts
//   gather   rows with a top-k up to kChunks: the k-th largest chunk maximum is a lower bound of the k-th largest
//            logit; what reaches it is collected, a few hundred candidates of 248 320
//   choose   one block a row: ranks the candidates, and one warp cuts and draws. Rows whose cuts need the whole
//            vocabulary (top-p or min-p without top-k, a larger top-k, very many ties) find their borders by bisection
//            over the bits of the logits: exact, and about half a millisecond slower
//
// Atomics are on integers, and what they collect is sorted before use. The parameters of the rows are read before the wait:
// copies write them, and the end of a step.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/sampling.h"
#include "ops/scalar.h"

namespace quern::cuda {
namespace {

constexpr int kChunks = 128;
constexpr int kAdjustThreads = 512;
constexpr int kChooseThreads = 1024, kChooseWarps = kChooseThreads / 32;
constexpr int kMaxCandidates = 1024;

struct Candidate {
  float l;
  int32_t id;
};
// Most likely first, ties to the lower id.
__device__ __forceinline__ bool before(const Candidate& a, const Candidate& b) {
  return a.l != b.l ? a.l > b.l : a.id < b.id;
}

struct SampleArgs {
  int32_t* ids;
  const float* logits;
  int64_t logits_stride;
  const SamplingRow* rows;
  int32_t vocab, chunk;
  float* l;               // [R, vocab]
  Candidate* winner;      // [R, kChunks]
  float* top;             // [R, kChunks]
  int32_t* bad;           // [R, kChunks]
  int32_t* n_candidates;  // [R]
  Candidate* candidates;  // [R, kMaxCandidates]
};

__device__ __forceinline__ bool has_cuts(const SamplingRow& row, int vocab) {
  return row.temperature != 0 && ((row.top_k > 0 && row.top_k < vocab) || row.top_p < 1 || row.min_p > 0);
}
__device__ __forceinline__ bool gathers(const SamplingRow& row, int vocab) {
  return row.temperature != 0 && row.top_k > 0 && row.top_k <= kChunks && row.top_k < vocab;
}

// Index of `id` in a sorted list, -1 if absent.
__device__ __forceinline__ int find_id(const int32_t* list, int n, int id) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle] < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < n && list[low] == id ? low : -1;
}

// Logit v of id i after what the row lists for ids of its own.
__device__ __forceinline__ float listed(const SamplingRow& row, float v, int i) {
  if (row.n_bias > 0) {
    const int at = find_id(row.bias_ids, row.n_bias, i);
    if (at >= 0) v += row.bias[at];
  }
  if (row.n_seen > 0) {
    const int at = find_id(row.seen_ids, row.n_seen, i);
    if (at >= 0) v = scalar::penalised(v, row.seen_counts[at], row.repetition, row.presence, row.frequency);
  }
  return v;
}

__device__ __forceinline__ Candidate none() { return {-INFINITY, INT32_MAX}; }

__device__ __forceinline__ Candidate best_of_warp(Candidate c) {
  const uint32_t order = order_of(c.l), most = __reduce_max_sync(0xffffffffu, order);
  const auto id = static_cast<uint32_t>(order == most ? c.id : INT32_MAX);
  return {of_order(most), static_cast<int32_t>(__reduce_min_sync(0xffffffffu, id))};
}
__device__ __forceinline__ float top_of_warp(float f) {
  return of_order(__reduce_max_sync(0xffffffffu, order_of(f)));
}
// In every thread; `shared` holds one a warp and is free again on return.
template <int kThreads>
__device__ __forceinline__ Candidate best_of_block(Candidate c, Candidate* shared) {
  const unsigned lane = threadIdx.x % 32;
  c = best_of_warp(c);
  if (lane == 0) shared[threadIdx.x / 32] = c;
  __syncthreads();
  c = best_of_warp(lane < kThreads / 32 ? shared[lane] : none());
  __syncthreads();
  return c;
}

constexpr int kHeld = 4;  // logits that a thread of adjust and gather has on their way together

__global__ void __launch_bounds__(kAdjustThreads) sample_adjust_kernel(const __grid_constant__ SampleArgs a) {
  struct Found {
    Candidate best;
    float top;
    int32_t bad;
  };
  __shared__ Found found[kAdjustThreads / 32];
  pdl_launch();
  const int64_t r = blockIdx.y;
  const SamplingRow row = a.rows[r];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  const float* logits = a.logits + r * a.logits_stride;
  float* l = a.l + r * a.vocab;
  const bool noisy = row.temperature != 0 && !has_cuts(row, a.vocab);
  const uint64_t key = scalar::noise_key(row.seed, row.position);
  Candidate best = none();
  float top = -INFINITY;
  bool bad = false;
  pdl_wait();
  for (int first = begin + tid; first < end; first += kHeld * kAdjustThreads) {
    float v[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) v[j] = logits[min(first + j * kAdjustThreads, end - 1)];
    if (row.n_bias > 0 || row.n_seen > 0) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) v[j] = listed(row, v[j], first + j * kAdjustThreads);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kAdjustThreads;
      if (i >= end) break;
      bad |= !(v[j] < INFINITY);
      if (row.mask && !((row.mask[i / 32] >> (i % 32)) & 1u)) v[j] = -INFINITY;
      if (row.temperature != 0) v[j] /= row.temperature;
      l[i] = v[j];
      top = fmaxf(top, v[j]);
      if (v[j] > -INFINITY) {
        const Candidate c{noisy ? v[j] + scalar::gumbel(scalar::noise_bits(key, i)) : v[j], i};
        if (before(c, best)) best = c;
      }
    }
  }
  best = best_of_warp(best);
  top = top_of_warp(top);
  bad = __any_sync(0xffffffffu, bad);
  if (lane == 0) found[tid / 32] = {best, top, bad};
  __syncthreads();
  if (tid >= 32) return;
  const Found of = lane < kAdjustThreads / 32 ? found[lane] : Found{none(), -INFINITY, 0};
  best = best_of_warp(of.best);
  top = top_of_warp(of.top);
  bad = __any_sync(0xffffffffu, of.bad);
  if (lane == 0) {
    const int64_t at = r * kChunks + blockIdx.x;
    a.winner[at] = best;
    a.top[at] = top;
    a.bad[at] = bad;
    if (blockIdx.x == 0) a.n_candidates[r] = 0;
  }
}

__global__ void __launch_bounds__(kAdjustThreads) sample_gather_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ __align__(16) float tops[kChunks];
  __shared__ uint32_t least[kChunks / 32];
  pdl_launch();
  const int64_t r = blockIdx.y;
  const SamplingRow row = a.rows[r];
  pdl_wait();
  if (!gathers(row, a.vocab)) return;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  const float* l = a.l + r * a.vocab;
  const auto load = [&](float(&v)[kHeld], int first) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = first + j * kAdjustThreads;
      v[j] = i < end ? l[i] : -INFINITY;
    }
  };
  float v[kHeld];
  load(v, begin + tid);
  if (tid < kChunks) tops[tid] = a.top[r * kChunks + tid];
  __syncthreads();
  // The k-th largest is the least of those with fewer than k above them.
  if (tid < kChunks) {
    const float top = tops[tid];
    int above = 0;
#pragma unroll 8
    for (int j = 0; j < kChunks / 4; ++j) {
      const float4 other = reinterpret_cast<const float4*>(tops)[j];
      above += (other.x > top) + (other.y > top) + (other.z > top) + (other.w > top);
    }
    const uint32_t order = __reduce_min_sync(0xffffffffu, above < row.top_k ? order_of(top) : UINT32_MAX);
    if (lane == 0) least[tid / 32] = order;
  }
  __syncthreads();
  uint32_t order = least[0];
#pragma unroll
  for (int w = 1; w < kChunks / 32; ++w) order = min(order, least[w]);
  const float bound = of_order(order);
  // One atomic a warp, for all that its lanes hold.
  for (int first = begin + tid; first - lane < end; first += kHeld * kAdjustThreads) {
    if (first != begin + tid) load(v, first);
    unsigned reach[kHeld];
    int n = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      reach[j] = __ballot_sync(0xffffffffu, v[j] >= bound && v[j] > -INFINITY);
      n += __popc(reach[j]);
    }
    if (n == 0) continue;
    int at = 0;
    if (lane == 0) at = atomicAdd(&a.n_candidates[r], n);
    at = __shfl_sync(0xffffffffu, at, 0);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int mine = at + __popc(reach[j] & ((1u << lane) - 1u));
      if ((reach[j] >> lane & 1u) && mine < kMaxCandidates)
        a.candidates[r * kMaxCandidates + mine] = {v[j], first + j * kAdjustThreads};
      at += __popc(reach[j]);
    }
  }
}

struct ChooseShared {
  uint64_t keys[kMaxCandidates];  // each warp's own, the most likely first
  Candidate first[kChunks];       // the most likely of all, in order
  Candidate best[kChooseWarps];
  double warp_mass[kChooseWarps];
  int warp_count[kChooseWarps];
};

__device__ __forceinline__ int count_of_block(int v, ChooseShared& s) {
  v = __reduce_add_sync(0xffffffffu, v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_count[threadIdx.x / 32] = v;
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < kChooseWarps; ++w) sum += s.warp_count[w];
  return sum;
}
__device__ __forceinline__ double mass_of_block(double v, ChooseShared& s) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = v;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kChooseWarps; ++w) sum += s.warp_mass[w];
  return sum;
}

// The keys of a warp, the largest in lane 0 (bitonic).
__device__ __forceinline__ uint64_t sorted_of_warp(uint64_t key) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned size = 2; size <= 32; size *= 2)
#pragma unroll
    for (unsigned step = size / 2; step > 0; step /= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, key, step);
      const bool larger = ((lane & step) == 0) == ((lane & size) == 0);
      key = (key > other) == larger ? key : other;
    }
  return key;
}

// The k most likely of n candidates into s.first, in order; `mine` is the thread's own, thread i has candidate i. How many
// there are. All threads. Each warp sorts its own; how many of another warp's are before one of them is then a search.
__device__ __forceinline__ int rank_candidates(ChooseShared& s, Candidate mine, int n, int k) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int warps = (n + 31) / 32;
  uint64_t key = 0;
  if (warp < warps) {
    key = sorted_of_warp(tid < n ? key_of(order_of(mine.l), mine.id) : 0);
    s.keys[tid] = key;
  }
  __syncthreads();
  if (key != 0 && lane < k) {
    int rank = lane;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const uint64_t* list = s.keys + 32 * w;
      int above = 0;
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        if (list[above + step - 1] > key) above += step;
      above += list[above] > key;
      if (w != warp) rank += above;
    }
    if (rank < k) s.first[rank] = {of_order(order_of_key(key)), id_of_key(key)};
  }
  __syncthreads();
  return min(n, k);
}

// Cuts and draws among the n candidates of s.first: one warp, candidate 32·j + lane in its lanes' j-th place.
__device__ __forceinline__ Candidate choose_from_first(const ChooseShared& s, int n, const SamplingRow& row,
                                                       uint64_t noise) {
  constexpr int kEach = kChunks / 32;
  if (n == 0) return none();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float top = s.first[0].l;
  int keep = n;
  if (row.top_p < 1) {
    // Sums up to each candidate, added one after the other: the last is the total.
    double sum = 0, sum_to[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (32 * j >= n) break;
      const int i = 32 * j + lane;
      const double mass = i < n ? exp(static_cast<double>(s.first[i].l - top)) : 0.0;
#pragma unroll 8
      for (int from = 0; from < 32; ++from) {
        sum += __shfl_sync(0xffffffffu, mass, from);
        if (lane == from) sum_to[j] = sum;
      }
    }
    const double wanted = static_cast<double>(row.top_p) * sum;
#pragma unroll
    for (int j = kEach - 1; j >= 0; --j) {
      if (32 * j >= n) continue;
      const unsigned reached = __ballot_sync(0xffffffffu, 32 * j + lane < n && sum_to[j] >= wanted);
      if (reached != 0) keep = 32 * j + __ffs(static_cast<int>(reached));
    }
  }
  const float least = row.min_p > 0 ? top + logf(row.min_p) : -INFINITY;
  Candidate best = none();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = 32 * j + lane;
    if (32 * j >= keep) break;
    if (i >= keep) continue;
    Candidate c = s.first[i];
    if (c.l < least) continue;
    c.l += scalar::gumbel(scalar::noise_bits(noise, c.id));
    if (before(c, best)) best = c;
  }
  return best_of_warp(best);
}

// Cuts over the whole vocabulary, then the draw. What is left is: order above `border`, or equal to it with fewer than `ties`
// lower ids that are equal too.
__device__ Candidate choose_from_all(const float* l, int n, const SamplingRow& row, float top,
                                     ChooseShared& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const auto order_at = [&](int i) { return l[i] > -INFINITY ? order_of(l[i]) : 0u; };
  const auto count = [&](uint32_t least) {
    int c = 0;
    for (int i = tid; i < n; i += kChooseThreads) c += order_at(i) >= least;
    return count_of_block(c, s);
  };
  const auto mass = [&](uint32_t least) {
    double m = 0;
    for (int i = tid; i < n; i += kChooseThreads)
      if (order_at(i) >= least) m += exp(static_cast<double>(l[i] - top));
    return mass_of_block(m, s);
  };
  uint32_t border = 1;
  int ties = INT32_MAX;
  const uint32_t highest = order_of(top);
  if (row.top_k > 0 && count(1) > row.top_k) {
    uint32_t low = 1, high = highest;  // count(low) ≥ k
    while (low < high) {
      const uint32_t middle = low + (high - low + 1) / 2;
      if (count(middle) >= row.top_k) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    border = low;
    ties = row.top_k - (low < highest ? count(low + 1) : 0);
  }
  if (row.top_p < 1) {
    const auto one = [&](uint32_t order) { return exp(static_cast<double>(of_order(order) - top)); };
    const double above = border < highest ? mass(border + 1) : 0.0;
    const double total = ties == INT32_MAX ? mass(border) : above + ties * one(border);
    const double wanted = static_cast<double>(row.top_p) * total;
    if (border == highest || above < wanted) {
      // Only ties of the border, or everything, can go.
      if (ties != INT32_MAX) {
        int keep = 1;
        while (keep < ties && above + keep * one(border) < wanted) ++keep;
        ties = keep;
      }
    } else {
      uint32_t low = border + 1, high = highest;  // mass(low) ≥ wanted
      while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (mass(middle) >= wanted) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      border = low;
      const double rest = low < highest ? mass(low + 1) : 0.0;
      const int equal = count(low) - (low < highest ? count(low + 1) : 0);
      int keep = 1;
      while (keep < equal && rest + keep * one(low) < wanted) ++keep;
      ties = keep;
    }
  }
  if (row.min_p > 0) {
    const uint32_t least = order_of(top + logf(row.min_p));
    if (least > border) {
      border = least;
      ties = INT32_MAX;
    }
  }
  // Warp w owns a contiguous range, so ties are counted in the order of ids.
  const int warp = tid / 32, lane = tid % 32;
  const int range = (n + kChooseThreads - 1) / kChooseThreads * 32;
  const int begin = min(warp * range, n), end = min(begin + range, n);
  int equal = 0;
  for (int i = begin + lane; i < end; i += 32) equal += order_at(i) == border;
  equal = __reduce_add_sync(0xffffffffu, equal);
  __syncthreads();
  if (lane == 0) s.warp_count[warp] = equal;
  __syncthreads();
  int64_t ties_before = 0;
  for (int w = 0; w < warp; ++w) ties_before += s.warp_count[w];
  const uint64_t key = scalar::noise_key(row.seed, row.position);
  Candidate best = none();
  for (int first = begin; first < end; first += 32) {
    const int i = first + lane;
    const uint32_t order = i < end ? order_at(i) : 0u;
    const unsigned tied = __ballot_sync(0xffffffffu, order == border);
    const bool kept =
        order > border || (order == border && ties_before + __popc(tied & ((1u << lane) - 1u)) < ties);
    ties_before += __popc(tied);
    if (order > 0 && kept) {
      const Candidate c{l[i] + scalar::gumbel(scalar::noise_bits(key, i)), i};
      if (before(c, best)) best = c;
    }
  }
  return best_of_block<kChooseThreads>(best, s.best);
}

__global__ void __launch_bounds__(kChooseThreads) sample_choose_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ ChooseShared s;
  pdl_launch();
  const int64_t r = blockIdx.x;
  const SamplingRow row = a.rows[r];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const bool cuts = has_cuts(row, a.vocab), gathered = gathers(row, a.vocab);
  const uint64_t noise = scalar::noise_key(row.seed, row.position);
  pdl_wait();
  if (!cuts && tid >= 32) return;
  // Every warp looks through the chunks for itself. All of this is on its way together; beyond the candidates that there are
  // lies what nobody uses.
  constexpr int kEach = kChunks / 32;
  Candidate winner = none(), candidate = none();
  float top = -INFINITY;
  bool bad = false;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t at = r * kChunks + 32 * j + lane;
    bad |= a.bad[at] != 0;
    top = fmaxf(top, a.top[at]);
    if (const Candidate c = a.winner[at]; before(c, winner)) winner = c;
  }
  const int n = a.n_candidates[r];
  if (gathered) candidate = a.candidates[r * kMaxCandidates + tid];
  bad = __any_sync(0xffffffffu, bad);
  top = top_of_warp(top);
  Candidate best = none();
  if (!bad && top > -INFINITY) {
    if (!cuts) {
      best = best_of_warp(winner);
    } else if (gathered && n <= kMaxCandidates) {
      const int first = rank_candidates(s, candidate, n, row.top_k);
      if (tid >= 32) return;
      best = choose_from_first(s, first, row, noise);
    } else {
      best = choose_from_all(a.l + r * a.vocab, a.vocab, row, top, s);
    }
  }
  if (tid == 0) a.ids[r] = best.id == INT32_MAX ? -1 : best.id;
}

}  // namespace

void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows) {
  static_assert(kMaxCandidates == kChooseThreads);
  if (n_rows == 0) return;
  ScratchScope scope(s);
  SampleArgs a{};
  a.ids = ids.as<int32_t>();
  a.logits = logits.as<float>();
  a.logits_stride = logits.row_stride;
  a.rows = rows;
  a.vocab = static_cast<int32_t>(logits.cols());
  a.chunk = ceil_div(a.vocab, kChunks);
  a.l = s.scratch(DType::F32, {n_rows, logits.cols()}).as<float>();
  a.winner = s.scratch(DType::I64, {n_rows, kChunks}).as<Candidate>();
  a.top = s.scratch(DType::F32, {n_rows, kChunks}).as<float>();
  a.bad = s.scratch(DType::I32, {n_rows, kChunks}).as<int32_t>();
  a.n_candidates = s.scratch(DType::I32, {n_rows}).as<int32_t>();
  a.candidates = s.scratch(DType::I64, {n_rows, kMaxCandidates}).as<Candidate>();
  const dim3 chunks(kChunks, static_cast<unsigned>(n_rows));
  launch(s, sample_adjust_kernel, chunks, kAdjustThreads, 0, 1, a);
  launch(s, sample_gather_kernel, chunks, kAdjustThreads, 0, 1, a);
  launch(s, sample_choose_kernel, dim3(static_cast<unsigned>(n_rows)), kChooseThreads, 0, 1, a);
}

}  // namespace quern::cuda

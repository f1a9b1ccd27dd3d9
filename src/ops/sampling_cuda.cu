// Three kernels, whatever the rows ask for, so that a captured step can serve any request.
//
//   adjust   all blocks: bias, penalties, mask and temperature into a copy of the logits; each chunk of the vocabulary leaves
//            its maximum and its winner: the argmax of greedy rows, of the noisy logits of rows without cuts
//   gather   rows with a top-k up to kChunks: the k-th largest chunk maximum is a lower bound of the k-th largest
//            logit; what reaches it is collected, a few hundred candidates of 248 320
//   choose   one block a row: sorts the candidates, cuts and draws. Rows whose cuts need the whole vocabulary (top-p or
//            min-p without top-k, a larger top-k, very many ties) find their borders by bisection over the bits of
//            the logits: exact, and about half a millisecond slower
//
// Atomics are on integers, and what they collect is sorted before use.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/sampling.h"
#include "ops/scalar.h"

namespace quern::cuda {
namespace {

constexpr int kChunks = 128;
constexpr int kAdjustThreads = 256;
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

__device__ __forceinline__ Candidate best_of_warp(Candidate c) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) {
    const Candidate other{__shfl_xor_sync(0xffffffffu, c.l, d), __shfl_xor_sync(0xffffffffu, c.id, d)};
    if (before(other, c)) c = other;
  }
  return c;
}
// In every thread; `shared` holds one a warp and is free again on return.
template <int kThreads>
__device__ __forceinline__ Candidate best_of_block(Candidate c, Candidate* shared) {
  c = best_of_warp(c);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = c;
  __syncthreads();
  c = shared[0];
  for (int w = 1; w < kThreads / 32; ++w)
    if (before(shared[w], c)) c = shared[w];
  __syncthreads();
  return c;
}

__device__ __forceinline__ Candidate none() { return {-INFINITY, INT32_MAX}; }

__global__ void __launch_bounds__(kAdjustThreads) sample_adjust_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ Candidate shared[kAdjustThreads / 32];
  __shared__ float shared_max[kAdjustThreads / 32];
  pdl_launch();
  pdl_wait();
  const int64_t r = blockIdx.y;
  const SamplingRow row = a.rows[r];
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  const float* logits = a.logits + r * a.logits_stride;
  float* l = a.l + r * a.vocab;
  const bool noisy = row.temperature != 0 && !has_cuts(row, a.vocab);
  const uint64_t key = scalar::noise_key(row.seed, row.position);
  Candidate best = none();
  float top = -INFINITY;
  bool bad = false;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kAdjustThreads) {
    float v = logits[i];
    if (row.n_bias > 0) {
      const int at = find_id(row.bias_ids, row.n_bias, i);
      if (at >= 0) v += row.bias[at];
    }
    if (row.n_seen > 0) {
      const int at = find_id(row.seen_ids, row.n_seen, i);
      if (at >= 0) v = scalar::penalised(v, row.seen_counts[at], row.repetition, row.presence, row.frequency);
    }
    bad |= !(v < INFINITY);
    if (row.mask && !((row.mask[i / 32] >> (i % 32)) & 1u)) v = -INFINITY;
    if (row.temperature != 0) v /= row.temperature;
    l[i] = v;
    top = fmaxf(top, v);
    if (v > -INFINITY) {
      const Candidate c{noisy ? v + scalar::gumbel(scalar::noise_bits(key, i)) : v, i};
      if (before(c, best)) best = c;
    }
  }
  best = best_of_block<kAdjustThreads>(best, shared);
  top = block_max<kAdjustThreads>(top, shared_max);
  bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) {
    const int64_t at = r * kChunks + blockIdx.x;
    a.winner[at] = best;
    a.top[at] = top;
    a.bad[at] = bad;
    if (blockIdx.x == 0) a.n_candidates[r] = 0;
  }
}

__global__ void __launch_bounds__(kAdjustThreads) sample_gather_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ float tops[kChunks];
  __shared__ float bound;
  pdl_launch();
  pdl_wait();
  const int64_t r = blockIdx.y;
  const SamplingRow row = a.rows[r];
  if (!gathers(row, a.vocab)) return;
  const int tid = static_cast<int>(threadIdx.x);
  if (tid < kChunks) tops[tid] = a.top[r * kChunks + tid];
  __syncthreads();
  if (tid < kChunks) {
    int above = 0, equal = 0;
    for (int j = 0; j < kChunks; ++j) {
      above += tops[j] > tops[tid];
      equal += tops[j] == tops[tid];
    }
    if (above < row.top_k && above + equal >= row.top_k) bound = tops[tid];
  }
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * a.chunk, end = min(begin + a.chunk, a.vocab);
  const float* l = a.l + r * a.vocab;
  for (int i = begin + tid; i < end; i += kAdjustThreads) {
    const float v = l[i];
    if (v >= bound && v > -INFINITY) {
      const int at = atomicAdd(&a.n_candidates[r], 1);
      if (at < kMaxCandidates) a.candidates[r * kMaxCandidates + at] = {v, i};
    }
  }
}

// Order of finite floats as unsigned integers; 0 is below all of them.
__device__ __forceinline__ uint32_t order_of(float f) {
  const uint32_t u = __float_as_uint(f == 0 ? 0.0f : f);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float of_order(uint32_t u) {
  return __uint_as_float(u & 0x80000000u ? u ^ 0x80000000u : ~u);
}

struct ChooseShared {
  Candidate candidates[kMaxCandidates];
  double mass[kMaxCandidates];
  Candidate best[kChooseWarps];
  double warp_mass[kChooseWarps];
  int warp_count[kChooseWarps];
  int n;
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

// The cuts over the sorted candidates; how many survive. All threads.
__device__ int cut_candidates(ChooseShared& s, int n, const SamplingRow& row) {
  const int tid = static_cast<int>(threadIdx.x);
  n = min(n, row.top_k);
  if (n == 0) return 0;
  const float top = s.candidates[0].l;
  if (tid < n) s.mass[tid] = exp(static_cast<double>(s.candidates[tid].l - top));
  __syncthreads();
  if (tid == 0) {
    int keep = n;
    if (row.top_p < 1) {
      double total = 0, sum = 0;
      for (int i = 0; i < n; ++i) total += s.mass[i];
      keep = 0;
      while (keep < n) {
        sum += s.mass[keep++];
        if (sum >= static_cast<double>(row.top_p) * total) break;
      }
    }
    if (row.min_p > 0) {
      const float least = top + logf(row.min_p);
      while (keep > 0 && s.candidates[keep - 1].l < least) --keep;
    }
    s.n = keep;
  }
  __syncthreads();
  return s.n;
}

// Bitonic sort of kMaxCandidates, one pair a thread of the first half.
__device__ void sort_candidates(ChooseShared& s) {
  for (int size = 2; size <= kMaxCandidates; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      const int tid = static_cast<int>(threadIdx.x), other = tid ^ step;
      if (other > tid) {
        Candidate &a = s.candidates[tid], &b = s.candidates[other];
        const bool ascending = (tid & size) == 0;
        if (ascending ? before(b, a) : before(a, b)) {
          const Candidate c = a;
          a = b;
          b = c;
        }
      }
    }
  __syncthreads();
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
  pdl_wait();
  const int64_t r = blockIdx.x;
  const SamplingRow row = a.rows[r];
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t at = r * kChunks + tid;
  const bool bad = __syncthreads_or(tid < kChunks && a.bad[at]);
  const Candidate top =
      best_of_block<kChooseThreads>(tid < kChunks ? Candidate{a.top[at], tid} : none(), s.best);
  Candidate best = none();
  if (!bad && top.l > -INFINITY) {
    const int n = a.n_candidates[r];
    if (!has_cuts(row, a.vocab)) {
      best = best_of_block<kChooseThreads>(tid < kChunks ? a.winner[at] : none(), s.best);
    } else if (gathers(row, a.vocab) && n <= kMaxCandidates) {
      s.candidates[tid] = tid < n ? a.candidates[r * kMaxCandidates + tid] : none();
      sort_candidates(s);
      const int left = cut_candidates(s, n, row);
      const uint64_t key = scalar::noise_key(row.seed, row.position);
      Candidate c = none();
      if (tid < left) {
        c = s.candidates[tid];
        c.l += scalar::gumbel(scalar::noise_bits(key, c.id));
      }
      best = best_of_block<kChooseThreads>(c, s.best);
    } else {
      best = choose_from_all(a.l + r * a.vocab, a.vocab, row, top.l, s);
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

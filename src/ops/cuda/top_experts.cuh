// softmax and the K largest probabilities of one row of logits: by one warp, or by a block in the same arithmetic.
#pragma once

#include <cstdint>

#include "ops/cuda/reduce.cuh"

namespace quern::cuda {

inline constexpr int kMaxExperts = 1024;

// Largest first, ties to the lower id. A row of NaN gives ids 0 … K-1 and NaN weights: ids stay in range.
template <int kPerLane>
__device__ __forceinline__ void top_experts_of(const float* logits, int n, int top_k, bool renormalise,
                                               int32_t* ids, float* p) {
  const int lane = threadIdx.x % 32;
  float v[kPerLane];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    v[i] = e < n ? __ldcg(logits + e) : -INFINITY;
    max = fmaxf(max, v[i]);
  }
  max = warp_max(max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    v[i] = lane + 32 * i < n ? expf(v[i] - max) : -1.0f;
    if (lane + 32 * i < n) sum += v[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < n) {
      v[i] = v[i] / sum;
      if (!(v[i] >= 0)) v[i] = 0;
    }
  }
  // Probabilities are not negative, so their bits order as they do; what is taken or not there is -1. A lane keeps its
  // own best, so a round is two reductions of the warp, and one lane looks through its values again.
  float best = -1;
  int id = n;
  const auto look = [&] {
    best = -1;
    id = n;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (v[i] > best) {
        best = v[i];
        id = lane + 32 * i;
      }
    }
  };
  look();
  float total = 0, mine = 0;
  for (int j = 0; j < top_k; ++j) {
    const int bits = __reduce_max_sync(0xffffffffu, __float_as_int(best));
    const int chosen = __reduce_min_sync(0xffffffffu, __float_as_int(best) == bits ? id : n);
    if (chosen == id) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (lane + 32 * i == chosen) v[i] = -1;
      }
      look();
    }
    if (lane == 0) ids[j] = chosen;
    if (lane == j % 32) mine = __int_as_float(bits);
    total += __int_as_float(bits);
  }
  if (lane < top_k) p[lane] = renormalise ? mine / total : mine;
  if (!(sum >= 0) && lane < top_k) p[lane] = NAN;
}

__device__ __forceinline__ void top_experts(const float* logits, int n, int top_k, bool renormalise,
                                            int32_t* ids, float* p) {
  if (n <= 512) {
    top_experts_of<16>(logits, n, top_k, renormalise, ids, p);
  } else {
    top_experts_of<kMaxExperts / 32>(logits, n, top_k, renormalise, ids, p);
  }
}

// By a block of kWarps warps, a thread an expert: n <= 32·kWarps. Every warp ranks its own 32, then the K best of each
// warp are ranked among themselves. Sums are those of top_experts_of<kWarps>: by lanes over warps, then over lanes.
template <int kWarps>
struct BlockTopExperts {
  float max[kWarps], e[kWarps][32], chosen[32];
  int rank[kWarps * 32];
  alignas(16) uint64_t key[kWarps * 32], best[kWarps * 32];  // of all, and of those that lead their warp
};
template <int kWarps>
__device__ __forceinline__ void top_experts_of_block(BlockTopExperts<kWarps>& s, const float* logits, int n,
                                                     int top_k, bool renormalise, int32_t* ids, float* p) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const bool mine = tid < n;
  const float logit = mine ? __ldcg(logits + tid) : -INFINITY;
  const float of_warp = warp_max(logit);
  if (lane == 0) s.max[warp] = of_warp;
  __syncthreads();
  float max = s.max[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) max = fmaxf(max, s.max[w]);
  const float e = mine ? expf(logit - max) : 0.0f;
  s.e[warp][lane] = e;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s.e[w][lane];
  sum = warp_sum(sum);
  float v = e / sum;
  if (!(v >= 0)) v = 0;
  // Larger is better: the bits of a probability order as it does, then the lower id wins. What is not there is 0.
  const auto key_of = [](float value, int id) {
    return uint64_t{__float_as_uint(value)} << 32 | static_cast<uint32_t>(~id);
  };
  const uint64_t key = mine ? key_of(v, tid) : 0;
  const auto rank_among = [](uint64_t own, const uint64_t* others, int count) {  // an even number of them
    int rank = 0;
#pragma unroll 4
    for (int i = 0; i < count; i += 2) {
      const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(others + i);
      rank += static_cast<int>(two.x > own) + static_cast<int>(two.y > own);
    }
    return rank;
  };
  s.key[tid] = key;
  s.rank[tid] = 0;
  __syncwarp();
  const int in_warp = rank_among(key, s.key + warp * 32, 32);
  if (mine && in_warp < top_k) s.best[in_warp * kWarps + warp] = key;
  if (!mine && lane < top_k) s.best[lane * kWarps + warp] = 0;  // experts of a warp are its first lanes
  __syncthreads();
  // Those that lead their warp among each other: as many threads as there are for each, a part of the others' keys a thread.
  const int leading = kWarps * top_k, parts = 32 * kWarps / leading, part = tid / leading,
            at = tid - part * leading;
  const uint64_t own = s.best[at];
  if (part < parts) {
    const int begin = leading / 2 * part / parts * 2, end = leading / 2 * (part + 1) / parts * 2;
    atomicAdd(&s.rank[at], rank_among(own, s.best + begin, end - begin));
  }
  __syncthreads();
  if (part == 0 && own != 0 && s.rank[at] < top_k) {
    const int rank = s.rank[at];
    ids[rank] = static_cast<int32_t>(~static_cast<uint32_t>(own));
    s.chosen[rank] = __uint_as_float(static_cast<uint32_t>(own >> 32));
  }
  __syncthreads();
  if (tid < top_k) {
    float total = 0;
    for (int j = 0; j < top_k; ++j) total += s.chosen[j];
    v = s.chosen[tid];
    p[tid] = !(sum >= 0) ? NAN : renormalise ? v / total : v;
  }
}

}  // namespace quern::cuda

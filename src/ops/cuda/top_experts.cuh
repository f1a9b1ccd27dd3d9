// softmax and the K largest probabilities of one row of logits, by one warp.
#pragma once

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

}  // namespace quern::cuda

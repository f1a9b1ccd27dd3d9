// A row's K best experts of its logits, by one warp, and their weights.
#pragma once

#include <cstdint>

#include "ops/cuda/reduce.cuh"

namespace quern::cuda {

inline constexpr int kMaxExperts = 1024, kMaxTopK = 31;

// What a warp needs of shared memory: the logits that may be among the best, each with the complement of its expert's id
// below it.
struct TopExperts {
  static constexpr int kMax = 64;
  alignas(16) uint64_t key[kMax];
};

// A lane holds the logits of four experts in every 128; -inf beyond n.
template <int kPerLane>
struct RowLogits {
  float v[kPerLane];

  __device__ __forceinline__ static int expert(int i) {
    return i / 4 * 128 + static_cast<int>(threadIdx.x) % 32 * 4 + i % 4;
  }
  __device__ __forceinline__ RowLogits(const float* logits, int n) {
    const bool wide = n % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      float4 f = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      const int e = expert(i);
      if (wide) {
        if (e < n) f = __ldcg(reinterpret_cast<const float4*>(logits + e));
      } else {
        if (e < n) f.x = __ldcg(logits + e);
        if (e + 1 < n) f.y = __ldcg(logits + e + 1);
        if (e + 2 < n) f.z = __ldcg(logits + e + 2);
        if (e + 3 < n) f.w = __ldcg(logits + e + 3);
      }
      v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
  }

  // ids[0 … K-1], largest logit first, ties to the lower id: softmax is monotone, so these are the K largest probabilities.
  // NaN counts as the least; ids stay in range. ids: shared or global memory, complete behind the next __syncwarp().
  //
  // K lanes' largest logits are at least the K-th largest of all lanes' largest, so the K best are, too. What is at least that
  // (some more than K, as the lanes are many) is counted out against each other.
  __device__ __forceinline__ void top_ids(int n, int top_k, TopExperts& s, int32_t* ids) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t key[kPerLane], best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t order = order_of(v[i]);
      key[i] = expert(i) >= n ? 0 : v[i] != v[i] ? 1 : order;
      best = max(best, key[i]);
    }
    best = (best & ~31u) | static_cast<uint32_t>(lane);  // no two alike; a bound may be lower than it need be
    int rank = 0;
#pragma unroll
    for (int j = 1; j < 32; ++j) rank += __shfl_sync(0xffffffffu, best, lane ^ j) > best;
    const int at_bound = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, rank == top_k - 1))) - 1;
    const uint32_t bound = max(__shfl_sync(0xffffffffu, best, at_bound) & ~31u, 1u);
    const unsigned below = (1u << lane) - 1u;
    int count = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const unsigned taken = __ballot_sync(0xffffffffu, key[i] >= bound);
      const int at = count + __popc(taken & below);
      if (key[i] >= bound && at < TopExperts::kMax) s.key[at] = key_of(key[i], expert(i));
      count += __popc(taken);
    }
    if (lane == 0 && count < TopExperts::kMax) s.key[count] = 0;  // they are looked through in pairs
    __syncwarp();
    if (count <= TopExperts::kMax) {
#pragma unroll 1
      for (int c = lane; c < count; c += 32) {
        const uint64_t own = s.key[c];
        int above = 0;
#pragma unroll 2
        for (int j = 0; j < count; j += 2) {
          const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(s.key + j);
          above += static_cast<int>(two.x > own) + static_cast<int>(two.y > own);
        }
        if (above < top_k) ids[above] = id_of_key(own);
      }
    } else {  // many equal logits: round by round
      uint64_t last = ~uint64_t{0};
#pragma unroll 1
      for (int j = 0; j < top_k; ++j) {
        uint64_t own = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          const uint64_t k = key[i] != 0 ? key_of(key[i], expert(i)) : 0;
          if (k < last) own = max(own, k);
        }
        const auto high = __reduce_max_sync(0xffffffffu, static_cast<uint32_t>(own >> 32));
        const auto low = __reduce_max_sync(
            0xffffffffu, static_cast<uint32_t>(own >> 32) == high ? static_cast<uint32_t>(own) : 0u);
        last = uint64_t{high} << 32 | low;
        if (lane == 0) ids[j] = static_cast<int32_t>(~low);
      }
    }
    __syncwarp();
  }

  // p[j] = softmax(logits)[ids[j]], over their sum where `renormalise`. NaN where a logit is.
  __device__ __forceinline__ void weights(const float* logits, int n, const int32_t* ids, int top_k,
                                          bool renormalise, float* p) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float chosen = lane < top_k ? __ldcg(logits + ids[lane]) : 0.0f;
    float max = v[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) max = fmaxf(max, v[i]);
    max = warp_max(max);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (expert(i) < n) sum += expf(v[i] - max);
    }
    sum = warp_sum(sum);
    const float mine = expf(chosen - max) / sum;
    float total = 0;
    for (int j = 0; j < top_k; ++j) total += __shfl_sync(0xffffffffu, mine, j);
    if (lane < top_k) p[lane] = !(sum >= 0) ? NAN : renormalise ? mine / total : mine;
  }
};

// f(RowLogits of n logits)
template <typename F>
__device__ __forceinline__ void with_logits(const float* logits, int n, F&& f) {
  if (n <= 512) {
    f(RowLogits<16>(logits, n));
  } else {
    f(RowLogits<kMaxExperts / 32>(logits, n));
  }
}
__device__ __forceinline__ void top_experts(const float* logits, int n, int top_k, bool renormalise,
                                            TopExperts& s, int32_t* ids, float* p) {
  with_logits(logits, n, [&](const auto& row) {
    row.top_ids(n, top_k, s, ids);
    row.weights(logits, n, ids, top_k, renormalise, p);
  });
}

}  // namespace quern::cuda

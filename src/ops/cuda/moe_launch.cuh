// What the MoE's kernels share.
#pragma once

#include "ops/cuda/linear_launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/moe.h"

namespace quern::cuda {

inline constexpr int kMaxDecodeEntries = 1024;  // rows times experts a token of one decode launch

struct MoeView {
  RowsF32 h;                     // [T, H]
  const int32_t* ids = nullptr;  // [T, K]
  const float* p = nullptr;      // [T, K]
  int32_t top_k = 0, n_experts = 0;
  WeightView gate, up, down, shared_gate, shared_up, shared_down, shared_expert_gate;
  float* x = nullptr;  // [T, streams·H]
  int64_t x_stride = 0;
  Injection injection;
  float* y = nullptr;  // [T, H] or null
  int64_t y_stride = 0;
};
// One row's experts, yet to be ranked: logits [E], and where what is found goes.
struct RowChoice {
  const float* logits = nullptr;
  int32_t* ids = nullptr;  // [K]
  float* p = nullptr;      // [K]
  bool renormalise = true;
};

void moe_decode(Stream& s, const MoeView& m);
void moe_prefill(Stream& s, const MoeView& m);
// Several decode rows' experts: y [T·K, H]; true where the shared one's y_s [T, H] and its weights [T] are done as well.
// Sums are moe_decode's.
bool takes_batch(Stream& s, const MoeView& m);
bool moe_batch(Stream& s, const MoeView& m, float* y, float* y_s, float* shared_weight);
// One decode row with 4-bit experts and a shared one in FP8: all of moe_decode.
bool takes_row(Stream& s, const MoeView& m);
inline constexpr int kMaxRowExperts = 512;
// With logits in `choice` its blocks rank the row's experts, of which there are at most kMaxRowExperts, for themselves.
void moe_row(Stream& s, const MoeView& m, const RowChoice& choice = {});
inline constexpr int kSharedDotThreads = 128;  // that share the dot product of the shared expert's gate
// y and the residual from the entries' results y_e [T·K, H], the shared expert's y_s [T, H].
void moe_combine(Stream& s, const MoeView& m, const float* y_e, const float* y_s, const float* shared_weight);
void moe_route_decode(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                      int top_k, bool renormalise);
void moe_logits_decode(Stream& s, float* logits, const WeightView& router, const RowsF32& h);
WeightView router_view(const MoeWeights& w);  // refuses what moe_route does not take
void moe_route_prefill(Stream& s, int32_t* ids, float* p, const WeightView& router, const RowsF32& h,
                       int top_k, bool renormalise);

// A thread's part of W[0] · x over kThreads threads, f32: weights rounded to BF16, x not.
template <int kThreads>
__device__ __forceinline__ float row_dot_part(const WeightView& w, const float* x, bool wide) {
  float sum = 0;
  with_format(w.kind, [&](auto format) {
    using F = decltype(format);
    for (int k = 16 * static_cast<int>(threadIdx.x); k < w.k; k += 16 * kThreads) {
      typename F::Raw raw;
      uint32_t words[8];
      float v[16];
      F::load(raw, w, 0, k);
      F::decode_ordered(raw, w, 0, k, words);
      load_run(v, x, k, w.k, wide);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum = fmaf(bf16_low(words[i]), v[2 * i], sum);
        sum = fmaf(bf16_high(words[i]), v[2 * i + 1], sum);
      }
    }
    sum *= w.row_factor(0) * F::kRest;
  });
  return sum;
}
template <int kThreads>
__device__ __noinline__ float row_dot(const WeightView& w, const float* x, bool wide, float* shared) {
  return block_sum<kThreads>(row_dot_part<kThreads>(w, x, wide), shared);
}

// The sum over experts in list order, then the shared one: ((p0·y0 + p1·y1) + …) + shared. `value(j)` is y_j.
template <typename Value>
__device__ __forceinline__ float combine(const float* p, int top_k, float shared_weight, float shared,
                                         Value&& value) {
  float v = p[0] * value(0);
  for (int j = 1; j < top_k; ++j) v += p[j] * value(j);
  return v + shared_weight * shared;
}

}  // namespace quern::cuda

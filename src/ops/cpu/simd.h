// The loops of the CPU ops that run over many elements, each compiled for every SIMD target (Google Highway)
// and chosen at run time. All are f32; a result depends on the arguments only, never on alignment.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quern::simd {

// The target in use ("AVX2"): part of the fingerprint of anything whose bits depend on it.
const char* target();

float sum_squares(const float* x, int64_t n);
float dot(const float* a, const float* b, int64_t n);
void axpy(float* y, float a, const float* x, int64_t n);                        // y += a · x, fused
void norm_scale(float* y, const float* x, float r, const float* w, int64_t n);  // y = (x · r) · (1 + w)
void norm_scale_plain(float* y, const float* x, float r, const float* w, int64_t n);  // y = (x · r) · w
void scale(float* y, const float* x, float a, int64_t n);                             // y = a · x
void silu_scaled(float* y, const float* x, float a, int64_t n);                       // y = silu(a · x)
void silu_mul(float* y, const float* g, const float* u, int64_t n);                   // y = silu(g) · u
void gate_sigmoid(float* y, const float* g, int64_t n);                               // y = y · sigmoid(g)
void gate_silu(float* y, const float* g, int64_t n);                                  // y = y · silu(g)
// y[c] = silu(Σ_j w[c, j] · x[j][c]), j = 0 … 3 in order; w is [n, 4]. A null x[j] counts as zeros.
void conv4_silu(float* y, const float* const x[4], const float* w, int64_t n);
// h[i] = 1/S Σ_s sigmoid(u[s, i]) · v[s, i]
void mix_streams(float* h, const float* u, const float* v, int64_t streams, int64_t n);

// One step of the gated delta rule on M [d_k, d_v] (ops/delta_net.h): M = e·M; d = beta·(v - Mᵀk);
// M = M + k dᵀ; o = Mᵀq. `o` may be null.
void delta_step(float* M, const float* k, const float* q, const float* v, float e, float beta, float* o,
                int64_t d_k, int64_t d_v);

// scores[b] = Σ_h max(q[h] · keys[b], 0) · scale over `heads` queries [heads, d] and `n` keys [n, d]; a NaN
// counts as 0.
void index_scores(float* scores, const float* q, const float* const* keys, int64_t heads, int64_t d,
                  int64_t n, float scale);

// Online softmax state of a group of query heads that share keys.
struct AttentionState {
  float* m;  // [heads] running maximum, -inf at the start
  float* l;  // [heads] running sum
  float* o;  // [heads, d]
};
// Merges a run of n ≤ 64 keys into the state. q[h] points at d values; keys and values are rows of type `kv`
// (F32, BF16, F16).
void attend_run(const AttentionState& state, const float* const* q, int64_t heads, int64_t d,
                const void* const* keys, const void* const* values, DType kv, int64_t n, float scale);

// The largest of x[0, n), and Σ exp(x - m): NaN in x gives a NaN sum.
float max(const float* x, int64_t n);
float sum_exp(const float* x, float m, int64_t n);

}  // namespace quern::simd

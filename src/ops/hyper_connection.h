// The gated residual of four streams (hyper-connection; MODEL.md §0). Before a block:
//
//   n[t, s, :] = x[t, s, :] · rsqrt(mean x[t, s, :]² + eps) · (1 + norm[s, :])
//   mix[t, :]  = sigmoid( up · silu( (down · n[t, :]) / S ) )
//   h[t, i]    = 1/S Σ_s mix[t, s, i] · n[t, s, i]
//   inj[t, s]  = 2 · sigmoid( (inject[s, :] · n[t, :]) / S )
//
// and after it x[t, s, :] += inj[t, s] · y[t, :], which linear_inject and moe do. The final mixer has no
// inject.
//
//   x: [T, S·H] f32, read only    h: [T, H] f32    inj: [T, S] f32, or null without inject
//   norm: [S·H] f32    down: [R, S·H]    up: [S·H, R]    inject: [S, S·H]
//
// All sums are f32; n need not exist in memory.
#pragma once

#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern {

struct MixerWeights {
  Tensor norm;
  Weight down, up, inject;
};

void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps,
            int64_t n_decode_rows);

namespace cpu {
void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps);
}
namespace cuda {
void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps,
            int64_t n_decode_rows);
}

}  // namespace quern

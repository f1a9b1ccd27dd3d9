// Zero-centred root-mean-square normalisation over groups of a row (MODEL.md §0: every norm but the delta
// net's).
//
//   y[t, g, i] = x[t, g, i] · rsqrt(mean_i x[t, g, i]² + eps) · (1 + w[g, i])
//
//   y, x: [T, G·d] f32; y may be x      w: [G·d] f32, the stored zero-centred weight
//   G = 1: the whole row is one group (MTP's norm of the wide hidden); G = streams: each stream on its own.
//
// The sum of squares is accumulated in f32 in an order that depends on d only.
#pragma once

#include "tensor/stream.h"

namespace quern {

void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps);

namespace cpu {
void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps);
}
namespace cuda {
void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps);
}

}  // namespace quern

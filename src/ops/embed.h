// Rows of the embedding table, once for each residual stream.
//
//   x[t, s, :] = table[ids[t], :]        x: [T, S·H] f32      table: [V, H], any format of ops/weight.h
//
// An id outside [0, V) is a bug of the caller (the engine checks what users send).
#pragma once

#include "ops/batch_view.h"
#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern {

void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams);

namespace cpu {
void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams);
}
namespace cuda {
void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams);
}

}  // namespace quern

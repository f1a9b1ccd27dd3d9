// Matrix product with a weight: y = x Wᵀ, every weight format.
//
//   y[t, n] = Σ_k x[t, k] · W[n, k]
//
//   y: [T, n] f32      x: [T, k] f32      W: [n, k], any format of ops/weight.h
//   y and x may be column slices; y may not overlap x.
//
// Accumulates in f32 in an order that depends on (n, k, format, role) only, never on T or on the other rows.
// Rows [0, n_decode_rows) take the decode kernel, the others the prefill kernel; the CPU has one form for
// both. On CUDA x is rounded to BF16 as it is loaded (decode rows beside FP8, NVFP4 and F16 weights to F16,
// what is beyond its range to the largest), and so are weights of formats whose values a BF16 does not hold.
// On the CPU x stays f32 beside F32, F16, BF16, F8E4M3 and grid formats; beside the other quantised ones each
// group of 32 of a row is rounded to 8 bits, as ops/cpu/product.h says.
#pragma once

#include <span>

#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern {

void linear(Stream& s, Tensor y, Tensor x, const Weight& w, int64_t n_decode_rows);

// Several products of one x, of any formats each; the same bits as one call for each. On CUDA one launch for
// the decode rows: a block's input projections are one stage.
struct Product {
  Tensor y;
  const Weight* w = nullptr;
  bool fine = false;  // prompt rows on CUDA: x to 16 bits of mantissa, where what follows is a choice
};
inline constexpr int kMaxProducts = 6;
void linear(Stream& s, std::span<const Product> products, Tensor x, int64_t n_decode_rows);

// Output projection of a block into the wide residual (MODEL.md, Gated residual):
//   x[t, s, i] += inj[t, s] · (W a)[t, i]
//   x: [T, S·n] f32, in place      inj: [T, S] f32      a: [T, k] f32
void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w, int64_t n_decode_rows);

namespace cpu {
void linear(Stream& s, std::span<const Product> products, Tensor x);
void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w);
}  // namespace cpu
namespace cuda {
void linear(Stream& s, std::span<const Product> products, Tensor x, int64_t n_decode_rows);
void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w, int64_t n_decode_rows);
}  // namespace cuda

}  // namespace quern

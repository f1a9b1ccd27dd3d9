// What linear's two paths share with each other and with the ops that contain products.
#pragma once

#include "ops/cuda/product.cuh"
#include "ops/linear.h"

namespace quern::cuda {

// What becomes of a product's f32 result.
enum class Epilogue : int32_t {
  Store,   // y[t, n] = v
  Inject,  // y[t, s·N + n] += inj[t, s] · v
};

struct ProductView {
  WeightView w;
  float* y = nullptr;
  int64_t y_stride = 0;
  int32_t first_tile = 0;  // its first tile of rows within the launch
};

struct Injection {
  const float* inj = nullptr;  // [T, streams]
  int64_t stride = 0;
  int32_t streams = 0;
};

inline RowsF32 rows_f32(Tensor x) {
  RowsF32 r;
  r.x = x.as<float>();
  r.stride = x.row_stride;
  r.n_rows = static_cast<int32_t>(x.shape[0]);
  r.k = static_cast<int32_t>(x.cols());
  r.wide = r.k % 16 == 0 && r.stride % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  return r;
}

void linear_decode(Stream& s, std::span<const ProductView> products, const RowsF32& x, Epilogue epilogue,
                   const Injection& injection);

// Prompt rows as the prefill kernels take them: BF16, K padded with zeros to whole steps of 64.
struct PrefillRows {
  const uint16_t* a = nullptr;
  int64_t stride = 0;
  int32_t n_rows = 0, k = 0;
};
// Scratch of the stream. `split`: each row is its BF16 rounding followed by the rounding of what is left, K
// twice as long; against a weight read twice the product then has 16 bits of x.
PrefillRows prefill_rows(Stream& s, const RowsF32& x, bool split = false);
void linear_prefill(Stream& s, const ProductView& product, const PrefillRows& x, Epilogue epilogue,
                    const Injection& injection);

}  // namespace quern::cuda

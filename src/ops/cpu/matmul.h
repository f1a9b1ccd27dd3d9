// Matrix products on the CPU: several of them in one pass over the pool, any weight format.
//
// Every output is computed whole by one thread, in the order of product.h.
#pragma once

#include <cstdint>
#include <span>

#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern::cpu {

// Activations [n_rows, k] that products read. matmul rounds them where weights want it (product.h), once for
// all of them.
struct Input {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t n_rows = 0;
  int64_t k = 0;
};

// y[y_row(i), :] = W · x[x_row(i), :] for i in [0, n_rows)
struct RowProduct {
  const Weight* w = nullptr;
  int input = 0;        // index into the inputs
  int64_t x_begin = 0;  // x_row(i) = x_rows ? x_rows[i] : x_begin + i
  const int32_t* x_rows = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;  // null: i
  int64_t n_rows = 0;
};

inline constexpr int kMaxInputs = 2;

void matmul(Stream& s, std::span<const Input> inputs, std::span<const RowProduct> products);

// Row r of W in f32.
void weight_row(const Weight& w, int64_t r, float* out);

// The scale of columns [128j, 128j + 128) of row r of an F8E4M3 weight: of the block, of the row, or of the
// whole matrix.
float fp8_scale(const Weight& w, int64_t r, int64_t column);
// The same of rows [r, r + n).
void fp8_scales(const Weight& w, int64_t r, int64_t n, int64_t column, float* scales);

// At least `n` floats that belong to the calling thread until its next call with the same slot (0 … 3).
float* thread_scratch(int slot, int64_t n);

}  // namespace quern::cpu

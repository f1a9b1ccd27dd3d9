// Matrix products on the CPU: several of them in one pass over the pool, any weight format.
//
// Every output is computed whole by one thread, in an order that depends on k and the format only.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/weight.h"

namespace quern::cpu {

// y[y_row(i), :] = W · x[x_row(i), :] for i in [0, n_rows)
struct RowProduct {
  const Weight* w = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* x_rows = nullptr;  // null: i
  float* y = nullptr;
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;  // null: i
  int64_t n_rows = 0;
};

inline constexpr int64_t kPanel = 32;  // outputs a thread takes at a time

void matmul(ThreadPool& pool, std::span<const RowProduct> products);

// Row r of W in f32.
void weight_row(const Weight& w, int64_t r, float* out);

// At least `n` floats that belong to the calling thread until its next call with the same slot (0 … 3).
float* thread_scratch(int slot, int64_t n);

}  // namespace quern::cpu

// The CPU's matrix products, one weight at a time, at every level of instructions. A result depends on the
// row, the weight row and k alone: not on the other rows, the threads, nor the level in use; every level
// gives the bits of the scalar one.
//
// Int8: products of quantised weights with activations rounded to 8 bits; integers inside a group, f32
// between groups.
//
// A row x [k] is rounded in groups of 32 (k is a multiple of 32):
//
//   d = max|x| / 127      q_i = x_i · (127 / max|x|), to the nearest integer, ties to the even one: -127 … 127
//
// A group whose max|x| is below 2^-100 counts as zeros; one that holds an infinity or a NaN has d = NaN. A
// group of G weights (32 or 16) has codes u ≥ 0 with one scale, one zero point, and in some formats a minimum
// m:
//
//   w_i = scale · (u_i - zero) + m        scale and m as ops/quant_formats.h computes them
//
// An output is one f32 sum over the groups in ascending order:
//
//   y = fma(scale · d, Σ (u_i - zero) · q_i, y)       the inner sum is exact in int32
//   y = fma(m, d · Σ q_i, y)                          where the format has minima
//
// F32: products of weights of any format, decoded to f32, with activations as they are. Columns are cut into
// stretches of 64, each a sum of its own in ascending order, and these are added in ascending order:
//
//   y = y + s      s = fma(w_i, x_i, s) over the stretch, from 0
#pragma once

#include <cstdint>
#include <span>

#include "ops/weight.h"

namespace quern::cpu {

inline constexpr int64_t kF32Stretch = 64;

// Rounded rows, each one record of int8_row_bytes(k) bytes (a multiple of 64): q [k] i8; then of each group
// of 32 d and d · Σq (f32) and -Σq (i32); then of each 16 values d · Σq (f32) and -Σq (i32).
inline int64_t int8_row_bytes(int64_t k) { return (k + 3 * (k / 32) * 4 + 2 * (k / 16) * 4 + 63) / 64 * 64; }

// Whether products with W round their activations: formats with groups of integer codes, k a multiple of 32.
bool takes_int8(const Weight& w);

struct ProductJob {
  const Weight* w = nullptr;
  const float* x = nullptr;  // rows of f32, for f32_product
  int64_t x_stride = 0;
  const std::byte* rounded = nullptr;  // records of int8_row_bytes(k), for int8_product
  int64_t x_begin = 0;                 // input of row i: x_rows ? x_rows[i] : x_begin + i
  const int32_t* x_rows = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;  // null: i
  int64_t n_rows = 0;

  int64_t input(int64_t i) const { return x_rows ? x_rows[i] : x_begin + i; }
  const float* x_row(int64_t i) const { return x + input(i) * x_stride; }
  const std::byte* rounded_row(int64_t i) const { return rounded + input(i) * int8_row_bytes(w->k()); }
  float* y_row(int64_t i) const { return y + (y_rows ? y_rows[i] : i) * y_stride; }
};

// One level of instructions. Products compute outputs [n0, n1).
struct ProductLevel {
  const char* name;
  void (*round_row)(const float* x, int64_t k, std::byte* record);
  void (*int8_product)(const ProductJob& job, int64_t n0, int64_t n1);
  void (*f32_product)(const ProductJob& job, int64_t n0, int64_t n1);
};

// What this processor has, slowest ("scalar") first: "avx2" (with FMA and F16C), "avxvnni", "avx512vnni". Ops
// use the last.
std::span<const ProductLevel> product_levels();

}  // namespace quern::cpu

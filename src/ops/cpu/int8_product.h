// Products of quantised weights with activations rounded to 8 bits: integers inside a group, f32 between groups.
//
// A row x [k] is rounded in groups of 32 (k is a multiple of 32):
//
//   d = max|x| / 127      q_i = x_i · (127 / max|x|), to the nearest integer, ties to the even one: -127 … 127
//
// A group whose max|x| is below 2^-100 counts as zeros; one that holds an infinity or a NaN has d = NaN.
// A group of G weights (32 or 16) has codes u ≥ 0 with one scale, one zero point, and in some formats a minimum m:
//
//   w_i = scale · (u_i - zero) + m        scale and m as ops/quant_formats.h computes them
//
// An output is one f32 sum over the groups in ascending order:
//
//   y = fma(scale · d, Σ (u_i - zero) · q_i, y)       the inner sum is exact in int32
//   y = fma(m, d · Σ q_i, y)                          where the format has minima
//
// So a result depends on the row, the weight row and k alone: not on the other rows, the threads, nor the level of
// instructions in use; every level gives the bits of the scalar one.
#pragma once

#include <cstdint>
#include <span>

#include "ops/weight.h"

namespace quern::cpu {

// Rounded rows, each one record of int8_row_bytes(k) bytes (a multiple of 64): q [k] i8; then of each group of 32 d
// and d · Σq (f32) and -Σq (i32); then of each 16 values d · Σq (f32) and -Σq (i32).
inline int64_t int8_row_bytes(int64_t k) { return (k + 3 * (k / 32) * 4 + 2 * (k / 16) * 4 + 63) / 64 * 64; }

// Whether products with W round their activations: formats with groups of integer codes, k a multiple of 32.
bool takes_int8(const Weight& w);

struct Int8Job {
  const Weight* w = nullptr;
  const std::byte* x = nullptr;  // records of int8_row_bytes(k)
  int64_t x_begin = 0;           // record of row i: x_rows ? x_rows[i] : x_begin + i
  const int32_t* x_rows = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;  // null: i
  int64_t n_rows = 0;
};

// One level of instructions.
struct Int8Level {
  const char* name;
  void (*round_row)(const float* x, int64_t k, std::byte* record);
  void (*multiply)(const Int8Job& job, int64_t n0, int64_t n1);  // outputs [n0, n1)
};

// What this processor has, slowest ("scalar") first. Products use the last one.
std::span<const Int8Level> int8_levels();

}  // namespace quern::cpu

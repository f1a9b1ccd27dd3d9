// What a step is expected to last, from what steps lasted: a line in the number of decode and prefill rows,
//
//   seconds = base + decode_row · D + prefill_row · P
//
// fitted by least squares over the observations with exponential forgetting, and how far above the line a step may lie:
//
//   at_most(x) = (1 + mean + 3 · deviation · sqrt(1 + xᵀ (Σ w x xᵀ)⁻¹ x)) · seconds(x),   x = (1, D, P)
//
// mean and deviation are those of measured / expected - 1, with forgetting too, each at most kLargestExcess, so that one
// hiccup does not halve every chunk that follows: where the line lags behind a machine that slows down, the mean makes up
// for it. The root is what least squares know of their own line: it is far from 1 where a step unlike the measured ones
// is asked for. And of more than twice the prefill rows that were tried lately nothing is known. The scheduler, which has
// no clock, sizes prefill chunks by at_most.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "ops/batch_view.h"

namespace quern {

struct CostModel {
  double base = 0, decode_row = 0, prefill_row = 0;  // seconds, none negative
  double mean = 0, deviation = 0;                    // of measured / expected - 1
  std::array<std::array<double, 3>, 3> inverse{};    // of Σ w x xᵀ
  double tried = HUGE_VAL;                           // prefill rows, the most of late

  double seconds(int64_t decode_rows, int64_t prefill_rows) const {
    return base + decode_row * static_cast<double>(decode_rows) +
           prefill_row * static_cast<double>(prefill_rows);
  }
  // What all but a few steps stay below.
  double at_most(int64_t decode_rows, int64_t prefill_rows) const;
};

class CostMeter {
 public:
  void observe(int64_t decode_rows, int64_t prefill_rows, double seconds);
  // Before the first observation every step is expected to take no time, and two chunks of prefill are tried.
  const CostModel& model() const { return model_; }

 private:
  void fit();

  std::array<std::array<double, 3>, 3> xx_{};  // Σ w x xᵀ with x = (1, D, P)
  std::array<double, 3> xy_{};                 // Σ w x seconds
  double n_ = 0, excess_ = 0, excess2_ = 0;    // Σ w, Σ w e, Σ w e² with e = measured / expected - 1
  CostModel model_{.tried = kPageTokens};
};

}  // namespace quern

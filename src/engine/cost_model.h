// What a step is expected to last, from what steps lasted: a line in the number of decode and prefill rows,
//
//   seconds = base + decode_row · D + prefill_row · P
//
// fitted by least squares over the observations with exponential forgetting, and how far above the line steps lie:
//
//   spread = mean + kSpreads · standard deviation of (measured / expected - 1)
//
// also with forgetting, each at most kLargestExcess, so that one hiccup does not halve every chunk that follows. The
// scheduler, which has no clock, sizes prefill chunks by at_most: where the line lags behind a machine that slows down, the
// mean makes up for it.
#pragma once

#include <array>
#include <cstdint>

namespace quern {

struct CostModel {
  double base = 0, decode_row = 0, prefill_row = 0;  // seconds, none negative
  double spread = 0;                                 // ≥ 0

  double seconds(int64_t decode_rows, int64_t prefill_rows) const {
    return base + decode_row * static_cast<double>(decode_rows) +
           prefill_row * static_cast<double>(prefill_rows);
  }
  // What all but a few steps stay below.
  double at_most(int64_t decode_rows, int64_t prefill_rows) const {
    return (1 + spread) * seconds(decode_rows, prefill_rows);
  }
};

class CostMeter {
 public:
  void observe(int64_t decode_rows, int64_t prefill_rows, double seconds);
  // Before the first observation every step is expected to take no time.
  const CostModel& model() const { return model_; }

 private:
  void fit();

  std::array<std::array<double, 3>, 3> xx_{};  // Σ w x xᵀ with x = (1, D, P)
  std::array<double, 3> xy_{};                 // Σ w x seconds
  double n_ = 0, excess_ = 0, excess2_ = 0;    // Σ w, Σ w e, Σ w e² with e = measured / expected - 1
  CostModel model_;
};

}  // namespace quern

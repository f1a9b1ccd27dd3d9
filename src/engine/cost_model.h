// What a step is expected to last, from what steps lasted: a line in the number of decode and prefill rows,
//
//   seconds = base + decode_row · D + prefill_row · P
//
// fitted by least squares over the observations with exponential forgetting. The scheduler, which has no
// clock, sizes prefill chunks by it.
#pragma once

#include <array>
#include <cstdint>

namespace quern {

struct CostModel {
  double base = 0, decode_row = 0, prefill_row = 0;  // seconds, none negative

  double seconds(int64_t decode_rows, int64_t prefill_rows) const {
    return base + decode_row * static_cast<double>(decode_rows) +
           prefill_row * static_cast<double>(prefill_rows);
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
  CostModel model_;
};

}  // namespace quern

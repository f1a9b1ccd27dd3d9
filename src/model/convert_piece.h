// What both directions of `quern convert` are made of: rows of a source in the target's form, order and type.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/tensor_export.h"
#include "model/config.h"
#include "model/tensor_source.h"

namespace quern {

bool is_plain(DType type);                   // F32, F16, BF16
bool is_vector(const SourceTensor& source);  // norms, decays, biases, convolutions: no matrix

using IndexMap = std::function<int64_t(int64_t)>;  // of the target to that of the source; empty: the same

struct HeadMaps {
  IndexMap rows, cols;
};

// The re-ordering of value heads that a tensor of the delta net needs where the target's order is the other one.
HeadMaps head_maps(const DeltaNetConfig& source, std::string_view name);

// Rows [first, first + n) of the source, which outlives the export, in the target's form, order and type.
ExportTensor piece(const SourceTensor& source, std::string name, std::vector<int64_t> shape, DType dtype,
                   WeightForm form, const HeadMaps& maps, int64_t first);

// Rows [first, …) of the source as Fp4Form has them, in the target's order; empty where the source is stored otherwise
// or the columns' order cuts groups.
using Fp4Rows = std::function<void(int64_t r, std::byte* codes, std::byte* scales)>;
Fp4Rows fp4_rows(const SourceTensor& source, const HeadMaps& maps, int64_t first);

// A recipe's overrides in one export, and which of them a tensor took.
class Overrides {
 public:
  // `list`, pairs of pattern and type, outlives this.
  explicit Overrides(const std::vector<std::pair<std::string, DType>>& list)
      : list_(list), taken_(list.size()) {}
  // The type of the last pattern that matches `name`, else `type`. Vectors take plain types only.
  DType apply(DType type, const SourceTensor& source, std::string_view name);
  // Throws Error naming the first that no tensor took.
  void check_all_taken() const;

 private:
  const std::vector<std::pair<std::string, DType>>& list_;
  std::vector<bool> taken_;
};

inline constexpr float kLargestE4m3 = 448, kLargestE2m1 = 6;
float largest_magnitude(const float* x, int64_t n);

// Numbers found by whichever thread asks first.
class Lazy {
 public:
  explicit Lazy(std::function<std::vector<float>()> compute) : compute_(std::move(compute)) {}
  const std::vector<float>& get() {
    std::call_once(once_, [this] { values_ = compute_(); });
    return values_;
  }

 private:
  std::function<std::vector<float>()> compute_;
  std::once_flag once_;
  std::vector<float> values_;
};
// Scales, of this type and shape.
ExportTensor scale_tensor(std::string name, DType dtype, std::vector<int64_t> shape,
                          std::shared_ptr<Lazy> scales);
ExportTensor scale_tensor(std::string name, DType dtype, std::vector<int64_t> shape,
                          std::vector<float> scales);

}  // namespace quern

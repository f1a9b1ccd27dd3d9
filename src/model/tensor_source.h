// The tensors of a checkpoint as one list of rows, whatever the container, the layout and the formats: what
// `quern convert` reads.
//
// Names are those of list_tensors (model/tensor_list.h), except that routed experts come as three tensors
// [E, n, k]: mlp.experts.{gate_proj,up_proj,down_proj}. Rows lie in the mapped files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace quern {

// E2M1 codes with an E4M3 scale per 16 columns, in one form for both containers: a value is code · scale · factor.
struct Fp4Form {
  // Row r: cols/2 bytes of codes, low nibble first, and cols/16 scales.
  std::function<void(int64_t r, std::byte* codes, std::byte* scales)> row;
  // One for the tensor, or one an expert. `inputs`: what the file says of activations; empty where it says nothing.
  std::vector<float> factors, inputs;
};

// E4M3 codes (SourceTensor::row) with scales beside them.
struct Fp8Form {
  DType type = DType::BF16;  // of the scales in the file
  // Of block (i, j) of 128 × 128 of a part: an expert, or the tensor. The same for all where there is but one.
  std::function<float(int64_t part, int64_t i, int64_t j)> scale;
};

struct SourceTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorGroup group = TensorGroup::Dense;
  DType dtype = DType::F32;  // of the rows in the file
  WeightForm form = WeightForm::Plain;
  // Row r as the file has it, and its values. Both are safe on several threads.
  std::function<const std::byte*(int64_t r)> row;
  std::function<void(int64_t r, float* out)> decode;
  // Whether the row's bytes are all there is to it: no scales beside them.
  bool self_contained = true;
  // How the numbers are stored, for targets that store them alike: what is copied is exact.
  std::optional<Fp4Form> fp4;
  std::optional<Fp8Form> fp8;
  std::function<void()>
      drop_pages;  // MappedFile's advice, of the files behind the rows; empty: there are none

  int64_t cols() const { return shape.back(); }
  int64_t n_rows() const;
};

// Takes every tensor of the model; the draft block only where the files have one. The int64 constants are left
// out: read_ngram_table has them. Throws Error as binding does.
std::vector<SourceTensor> source_tensors(Checkpoint& checkpoint, const Config& config);

}  // namespace quern

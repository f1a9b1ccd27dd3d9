// The tensors of a checkpoint as one list of rows, whatever the container, the layout and the formats: what
// `quern convert` reads.
//
// Names are those of list_tensors (model/tensor_list.h), except that routed experts come as three tensors
// [E, n, k]: mlp.experts.{gate_proj,up_proj,down_proj}. Rows lie in the mapped files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace quern {

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
  std::function<void()>
      drop_pages;         // MappedFile's advice, of the files behind the rows; empty: there are none
  float whole_scale = 0;  // the one scale that the rows of an FP8 table share; 0: none

  int64_t cols() const { return shape.back(); }
  int64_t n_rows() const;
};

// Takes every tensor of the model; the draft block only where the files have one. The int64 constants are left
// out: read_ngram_table has them. Throws Error as binding does.
std::vector<SourceTensor> source_tensors(Checkpoint& checkpoint, const Config& config);

}  // namespace quern

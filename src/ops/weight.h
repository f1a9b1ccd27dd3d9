// Not an op: a weight matrix as ops take it: a view, its storage format, and the scales that belong to it.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace quern {

// W [n, k], row-major: y = x Wᵀ. `data` keeps the file's bytes.
//
//   data.dtype         scale                                     value of element (r, c)
//   F32, F16, BF16     none                                      data
//   F8E4M3             F32 or BF16 [⌈n/128⌉, ⌈k/128⌉], [n, 1]    data · scale of its 128×128 block, of its row,
//                      or [1, 1]                                 or of the matrix · global_scale
//   F4E2M1 (ModelOpt)  F8E4M3 [n, k/16]                          data · scale of its 16 columns · global_scale
//   block types        none                                      as ops/quant_formats.h decodes a block; NVFP4:
//                                                                · global_scale
struct Weight {
  Tensor data;  // [n, k]
  Tensor scale;
  float global_scale = 1;

  explicit operator bool() const { return static_cast<bool>(data); }
  int64_t n() const { return data.shape[0]; }
  int64_t k() const { return data.shape[1]; }
  Weight slice_rows(int64_t begin,
                    int64_t end) const;  // begin and end on multiples of 128 where scales are per 128 rows
};

// E matrices of one shape and format. On the CPU each expert is a view of its own (files keep them fused or
// one by one). On CUDA `packed` is one rank-3 piece [E, n, k] (scales likewise) that a loader has laid out,
// and `items` is empty.
struct ExpertWeights {
  std::vector<Weight> items;
  Weight packed;
  Tensor global_scales;  // [E] f32 on the device, beside `packed`, where the format has global scales
  int64_t n_experts = 0;
  int64_t n = 0, k = 0;
};

}  // namespace quern

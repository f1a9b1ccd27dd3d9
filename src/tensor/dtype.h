// Element and block types of tensors, with the names the containers use.
#pragma once

#include <cstdint>
#include <string_view>

namespace quern {

enum class DType : uint8_t {
  F32,
  F16,
  BF16,
  I64,
  I32,
  U8,
  F8E4M3,  // OCP FP8: bias 7, max 448, no infinity
  F4E2M1,  // OCP FP4, two a byte, low nibble first: ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}
  // GGUF block types (ops/quant_formats.h describes their bytes).
  Q8_0,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q2_K,
  Q3_K,
  Q4_K,
  Q5_K,
  Q6_K,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  NVFP4,
  IQ2_XXS,
  IQ2_XS,
  IQ2_S,
  IQ3_XXS,
  IQ3_S,
  kCount,
};

struct DTypeInfo {
  std::string_view name;
  int block;  // elements in one block along the last dimension; 1 for plain types
  int bytes;  // bytes of one block
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view name(DType dtype) { return dtype_info(dtype).name; }

// Bytes of `n` elements of one row; n is a multiple of the block.
int64_t row_bytes(DType dtype, int64_t n);

}  // namespace quern

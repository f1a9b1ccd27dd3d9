// Not an op: numbers into stored formats, on the host, for `quern convert` and `quern synth`.
//
// F32, F16, BF16 and F8E4M3 round to nearest, ties to even; what is out of F16's or E4M3's range becomes its
// largest value. Block types choose scales that lessen the weighted square error of each group; the
// bytes are ops/quant_formats.h's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace quern {

// Whether rows can be encoded to `dtype` (every plain float and block type).
bool can_encode(DType dtype);
// k values into one row of row_bytes(dtype, k) bytes; k is a whole number of blocks. A value that is not
// finite is encoded as 0 in block types.
void encode_row(DType dtype, const float* values, int64_t k, std::byte* out);

// k values, a multiple of 16, as ModelOpt's NVFP4 stores a row: k/2 bytes of E2M1 codes, low nibble first, and k/16 E4M3
// scales; a value is code · scale · global_scale.
void encode_fp4_row(const float* values, int64_t k, float global_scale, std::byte* codes, std::byte* scales);

// The same row between that form and GGUF's NVFP4 blocks, k a multiple of 64; exact. A scale's sign, which blocks lack,
// goes to its codes.
void fp4_row_to_blocks(const std::byte* codes, const std::byte* scales, int64_t k, std::byte* blocks);
void blocks_to_fp4_row(const std::byte* blocks, int64_t k, std::byte* codes, std::byte* scales);

uint16_t float_to_half(float x);
uint16_t float_to_bf16(float x);
uint8_t float_to_e4m3(float x);
// The nearest E2M1 nibble, ties to even.
uint8_t float_to_e2m1(float x);

}  // namespace quern

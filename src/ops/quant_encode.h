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

uint16_t float_to_half(float x);
uint16_t float_to_bf16(float x);
uint8_t float_to_e4m3(float x);
// The nearest E2M1 nibble, ties to even.
uint8_t float_to_e2m1(float x);

}  // namespace quern

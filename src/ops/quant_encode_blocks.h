// Not an op: encoders of the GGUF block types; quant_encode.h is what others call.
//
// Each group's scale (and minimum) is the weighted least-squares one for the codes it gives, the best of a few
// starting points; weights are x² plus the block's mean x², so that large values count more. Super-block scales
// are rounded first and the codes chosen for the rounded ones.
#pragma once

#include "ops/quant_formats.h"

namespace quern::quant {

void encode_block(const float* x, BlockQ8_0& b);
void encode_block(const float* x, BlockQ4_0& b);
void encode_block(const float* x, BlockQ4_1& b);
void encode_block(const float* x, BlockQ5_0& b);
void encode_block(const float* x, BlockQ5_1& b);
void encode_block(const float* x, BlockQ2_K& b);
void encode_block(const float* x, BlockQ3_K& b);
void encode_block(const float* x, BlockQ4_K& b);
void encode_block(const float* x, BlockQ5_K& b);
void encode_block(const float* x, BlockQ6_K& b);
void encode_block(const float* x, BlockIQ4_NL& b);
void encode_block(const float* x, BlockIQ4_XS& b);
void encode_block(const float* x, BlockMXFP4& b);
void encode_block(const float* x, BlockNVFP4& b);
// The E4M3 code s for which E2M1 values times s · global_scale are closest to the 16 of x.
uint8_t closest_e4m3_scale(const float* x, float global_scale);
void encode_block(const float* x, BlockIQ2_XXS& b);
void encode_block(const float* x, BlockIQ2_XS& b);
void encode_block(const float* x, BlockIQ2_S& b);
void encode_block(const float* x, BlockIQ3_XXS& b);
void encode_block(const float* x, BlockIQ3_S& b);

}  // namespace quern::quant

#include "ops/quant_encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "ops/quant_encode_blocks.h"
#include "ops/quant_formats.h"

namespace quern {

namespace {

uint32_t float_bits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}

void store16(std::byte* out, int64_t i, uint16_t v) { std::memcpy(out + 2 * i, &v, 2); }

}  // namespace

uint16_t float_to_half(float x) {
  const uint32_t sign = (float_bits(x) >> 16) & 0x8000u;
  const float a = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 65504.0f) return static_cast<uint16_t>(sign | 0x7bffu);
  if (a < 0x1p-14f)  // subnormal: units of 2^-24; 1024 of them are the smallest normal number
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(a * 0x1p24f)));
  const uint32_t b = float_bits(a);
  return static_cast<uint16_t>(sign | (((b + 0xfffu + ((b >> 13) & 1u)) >> 13) - (112u << 10)));
}

uint16_t float_to_bf16(float x) {
  const uint32_t b = float_bits(x);
  if (std::isnan(x)) return static_cast<uint16_t>((b >> 16) | 0x40u);
  return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

uint8_t float_to_e4m3(float x) {
  const uint32_t sign = (float_bits(x) >> 24) & 0x80u;
  const float a = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 448.0f) return static_cast<uint8_t>(sign | 0x7eu);
  if (a < 0x1p-6f) return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(a * 0x1p9f)));
  const uint32_t b = float_bits(a);
  return static_cast<uint8_t>(sign | (((b + 0x7ffffu + ((b >> 20) & 1u)) >> 20) - (120u << 3)));
}

uint8_t float_to_e2m1(float x) {
  const float a = std::fabs(x);
  // Borders half-way between neighbours; a tie goes to the even code.
  const int code = a <= 0.25f   ? 0
                   : a < 0.75f  ? 1
                   : a <= 1.25f ? 2
                   : a < 1.75f  ? 3
                   : a <= 2.5f  ? 4
                   : a < 3.5f   ? 5
                   : a <= 5.0f  ? 6
                                : 7;
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

bool can_encode(DType dtype) {
  if (dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F8E4M3)
    return true;
  return quant::with_block_type(dtype, []<typename Block>() {});
}

void encode_row(DType dtype, const float* values, int64_t k, std::byte* out) {
  switch (dtype) {
    case DType::F32:
      std::memcpy(out, values, static_cast<size_t>(k) * sizeof(float));
      return;
    case DType::F16:
      for (int64_t i = 0; i < k; ++i) store16(out, i, float_to_half(values[i]));
      return;
    case DType::BF16:
      for (int64_t i = 0; i < k; ++i) store16(out, i, float_to_bf16(values[i]));
      return;
    case DType::F8E4M3:
      for (int64_t i = 0; i < k; ++i) out[i] = static_cast<std::byte>(float_to_e4m3(values[i]));
      return;
    default:
      break;
  }
  const bool known = quant::with_block_type(dtype, [&]<typename Block>() {
    QUERN_CHECK(k % Block::kValues == 0, "encode_row: no whole number of blocks");
    float x[Block::kValues];
    for (int64_t i = 0; i < k / Block::kValues; ++i) {
      for (int j = 0; j < Block::kValues; ++j) {
        const float v = values[i * Block::kValues + j];
        x[j] = std::isfinite(v) ? v : 0;
      }
      Block b;
      std::memset(&b, 0, sizeof b);
      quant::encode_block(x, b);
      std::memcpy(out + i * static_cast<int64_t>(sizeof b), &b, sizeof b);
    }
  });
  QUERN_CHECK(known, "encode_row: no encoder for " + std::string(name(dtype)));
}

void encode_fp4_row(const float* values, int64_t k, float global_scale, std::byte* codes, std::byte* scales) {
  QUERN_CHECK(k % 16 == 0, "encode_fp4_row: no whole number of groups");
  for (int64_t i = 0; i < k; i += 16) {
    const float* x = values + i;
    const uint8_t scale = quant::closest_e4m3_scale(x, global_scale);
    const float d = quant::e4m3_to_float(scale) * global_scale, inverse = d > 0 ? 1 / d : 0;
    scales[i / 16] = static_cast<std::byte>(scale);
    for (int64_t j = 0; j < 8; ++j)
      codes[(i + 2 * j) / 2] = static_cast<std::byte>(float_to_e2m1(x[2 * j] * inverse) |
                                                      float_to_e2m1(x[2 * j + 1] * inverse) << 4);
  }
}

void fp4_row_to_blocks(const std::byte* codes, const std::byte* scales, int64_t k, std::byte* blocks) {
  QUERN_CHECK(k % 64 == 0, "fp4_row_to_blocks: no whole number of blocks");
  for (int64_t i = 0; i < k; i += 64, blocks += sizeof(quant::BlockNVFP4)) {
    quant::BlockNVFP4 b;
    for (int g = 0; g < 4; ++g) {
      const auto scale = std::to_integer<unsigned>(scales[i / 16 + g]);
      const unsigned flip = (scale & 0x80) >> 4;
      b.s[g] = scale & 0x7f;
      const auto nibble = [&](int j) {
        const auto byte = std::to_integer<unsigned>(codes[i / 2 + 8 * g + j / 2]);
        return ((j % 2 ? byte >> 4 : byte & 15) ^ flip) & 15;
      };
      for (int j = 0; j < 8; ++j) b.q[8 * g + j] = static_cast<uint8_t>(nibble(j) | nibble(j + 8) << 4);
    }
    std::memcpy(blocks, &b, sizeof b);
  }
}

void blocks_to_fp4_row(const std::byte* blocks, int64_t k, std::byte* codes, std::byte* scales) {
  QUERN_CHECK(k % 64 == 0, "blocks_to_fp4_row: no whole number of blocks");
  for (int64_t i = 0; i < k; i += 64, blocks += sizeof(quant::BlockNVFP4)) {
    quant::BlockNVFP4 b;
    std::memcpy(&b, blocks, sizeof b);
    for (int g = 0; g < 4; ++g) {
      scales[i / 16 + g] = static_cast<std::byte>(b.s[g] & 0x7f);
      const auto nibble = [&](int j) { return j < 8 ? b.q[8 * g + j] & 15 : b.q[8 * g + j - 8] >> 4; };
      for (int j = 0; j < 16; j += 2)
        codes[i / 2 + 8 * g + j / 2] = static_cast<std::byte>(nibble(j) | nibble(j + 1) << 4);
    }
  }
}

}  // namespace quern

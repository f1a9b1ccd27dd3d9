// The integer view of a quantised group, one value at a time: w_i = scale · (code_i - zero) + minimum, which
// is what ops/quant_formats.h decodes. The scalar level of product.h and the check of the others.
#pragma once

#include <cstdint>

#include "ops/quant_formats.h"

namespace quern::cpu {

// kShift: zero is 2^kShift (formats without minima). kBits: no code is beyond 2^kBits - 1.
template <class Block>
struct Int8Format;

namespace int8_codes {

// Byte j holds value j in its low nibble and value j + n/2 in its high one.
inline void halves(const uint8_t* q, int n, uint8_t* codes) {
  for (int j = 0; j < n / 2; ++j) {
    codes[j] = q[j] & 15;
    codes[j + n / 2] = q[j] >> 4;
  }
}
inline void fifth_bits(const uint8_t* h, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((h[j >> 3] >> (j & 7)) & 1) << 4);
}

}  // namespace int8_codes

template <>
struct Int8Format<quant::BlockQ8_0> {
  static constexpr int kShift = 7, kBits = 8;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockQ8_0& b, int, uint8_t* out) {
    for (int j = 0; j < 32; ++j) out[j] = static_cast<uint8_t>(b.q[j] + 128);
  }
  static float scale(const quant::BlockQ8_0& b, int) { return quant::half_to_float(b.d); }
};

template <>
struct Int8Format<quant::BlockQ4_0> {
  static constexpr int kShift = 3, kBits = 4;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockQ4_0& b, int, uint8_t* out) { int8_codes::halves(b.q, 32, out); }
  static float scale(const quant::BlockQ4_0& b, int) { return quant::half_to_float(b.d); }
};

template <>
struct Int8Format<quant::BlockQ4_1> {
  static constexpr int kShift = 0, kBits = 4;
  static constexpr bool kMinimum = true;
  static void codes(const quant::BlockQ4_1& b, int, uint8_t* out) { int8_codes::halves(b.q, 32, out); }
  static float scale(const quant::BlockQ4_1& b, int) { return quant::half_to_float(b.d); }
  static float minimum(const quant::BlockQ4_1& b, int) { return quant::half_to_float(b.m); }
};

template <>
struct Int8Format<quant::BlockQ5_0> {
  static constexpr int kShift = 4, kBits = 5;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockQ5_0& b, int, uint8_t* out) {
    int8_codes::halves(b.q, 32, out);
    int8_codes::fifth_bits(b.h, out);
  }
  static float scale(const quant::BlockQ5_0& b, int) { return quant::half_to_float(b.d); }
};

template <>
struct Int8Format<quant::BlockQ5_1> {
  static constexpr int kShift = 0, kBits = 5;
  static constexpr bool kMinimum = true;
  static void codes(const quant::BlockQ5_1& b, int, uint8_t* out) {
    int8_codes::halves(b.q, 32, out);
    int8_codes::fifth_bits(b.h, out);
  }
  static float scale(const quant::BlockQ5_1& b, int) { return quant::half_to_float(b.d); }
  static float minimum(const quant::BlockQ5_1& b, int) { return quant::half_to_float(b.m); }
};

template <>
struct Int8Format<quant::BlockQ2_K> {
  static constexpr int kShift = 0, kBits = 2;
  static constexpr bool kMinimum = true;
  static void codes(const quant::BlockQ2_K& b, int g, uint8_t* out) {
    const uint8_t* q = b.q + 32 * (g >> 3) + 16 * (g & 1);
    for (int j = 0; j < 16; ++j) out[j] = (q[j] >> (2 * ((g & 7) >> 1))) & 3;
  }
  static float scale(const quant::BlockQ2_K& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(b.s[g] & 15);
  }
  static float minimum(const quant::BlockQ2_K& b, int g) {
    return -(quant::half_to_float(b.m) * static_cast<float>(b.s[g] >> 4));
  }
};

template <>
struct Int8Format<quant::BlockQ3_K> {
  static constexpr int kShift = 2, kBits = 3;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockQ3_K& b, int g, uint8_t* out) {
    const uint8_t *q = b.q + 32 * (g >> 3) + 16 * (g & 1), *h = b.h + 16 * (g & 1);
    for (int j = 0; j < 16; ++j)
      out[j] = static_cast<uint8_t>(((q[j] >> (2 * ((g & 7) >> 1))) & 3) | ((h[j] >> (g >> 1)) & 1) << 2);
  }
  static float scale(const quant::BlockQ3_K& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(quant::q3_scale(b.s, g));
  }
};

template <>
struct Int8Format<quant::BlockQ4_K> {
  static constexpr int kShift = 0, kBits = 4;
  static constexpr bool kMinimum = true;
  static void codes(const quant::BlockQ4_K& b, int g, uint8_t* out) {
    for (int j = 0; j < 32; ++j) out[j] = (b.q[32 * (g >> 1) + j] >> (4 * (g & 1))) & 15;
  }
  static float scale(const quant::BlockQ4_K& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(quant::k_scale(b.s, g));
  }
  static float minimum(const quant::BlockQ4_K& b, int g) {
    return -(quant::half_to_float(b.m) * static_cast<float>(quant::k_min(b.s, g)));
  }
};

template <>
struct Int8Format<quant::BlockQ5_K> {
  static constexpr int kShift = 0, kBits = 5;
  static constexpr bool kMinimum = true;
  static void codes(const quant::BlockQ5_K& b, int g, uint8_t* out) {
    for (int j = 0; j < 32; ++j)
      out[j] =
          static_cast<uint8_t>(((b.q[32 * (g >> 1) + j] >> (4 * (g & 1))) & 15) | ((b.h[j] >> g) & 1) << 4);
  }
  static float scale(const quant::BlockQ5_K& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(quant::k_scale(b.s, g));
  }
  static float minimum(const quant::BlockQ5_K& b, int g) {
    return -(quant::half_to_float(b.m) * static_cast<float>(quant::k_min(b.s, g)));
  }
};

template <>
struct Int8Format<quant::BlockQ6_K> {
  static constexpr int kShift = 5, kBits = 6;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockQ6_K& b, int g, uint8_t* out) {
    const int half = g >> 3, quarter = (g & 7) >> 1, odd = g & 1;
    const uint8_t* q = b.q + 64 * half + 32 * (quarter & 1) + 16 * odd;
    const uint8_t* h = b.h + 32 * half + 16 * odd;
    for (int j = 0; j < 16; ++j)
      out[j] =
          static_cast<uint8_t>(((q[j] >> (4 * (quarter >> 1))) & 15) | ((h[j] >> (2 * quarter)) & 3) << 4);
  }
  static float scale(const quant::BlockQ6_K& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(b.s[g]);
  }
};

template <>
struct Int8Format<quant::BlockIQ4_NL> {
  static constexpr int kShift = 7, kBits = 8;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockIQ4_NL& b, int, uint8_t* out) {
    int8_codes::halves(b.q, 32, out);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<uint8_t>(quant::iq4_level(out[j]) + 128);
  }
  static float scale(const quant::BlockIQ4_NL& b, int) { return quant::half_to_float(b.d); }
};

template <>
struct Int8Format<quant::BlockIQ4_XS> {
  static constexpr int kShift = 7, kBits = 8;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockIQ4_XS& b, int g, uint8_t* out) {
    int8_codes::halves(b.q + 16 * g, 32, out);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<uint8_t>(quant::iq4_level(out[j]) + 128);
  }
  static float scale(const quant::BlockIQ4_XS& b, int g) {
    return quant::half_to_float(b.d) * static_cast<float>(quant::iq4_xs_scale(b, g));
  }
};

template <>
struct Int8Format<quant::BlockMXFP4> {
  static constexpr int kShift = 4, kBits = 5;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockMXFP4& b, int, uint8_t* out) {
    int8_codes::halves(b.q, 32, out);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<uint8_t>(quant::e2m1_twice(out[j]) + 16);
  }
  static float scale(const quant::BlockMXFP4& b, int) { return quant::e8m0_to_float(b.e) * 0.5f; }
};

template <>
struct Int8Format<quant::BlockNVFP4> {
  static constexpr int kShift = 4, kBits = 5;
  static constexpr bool kMinimum = false;
  static void codes(const quant::BlockNVFP4& b, int g, uint8_t* out) {
    int8_codes::halves(b.q + 8 * g, 16, out);
    for (int j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>(quant::e2m1_twice(out[j]) + 16);
  }
  static float scale(const quant::BlockNVFP4& b, int g) { return quant::e4m3_to_float(b.s[g] & 0x7f) * 0.5f; }
};

// ModelOpt's rows of E2M1 pairs: a "block" is 32 values, whose two scales lie elsewhere.
struct BlockE2M1 {
  static constexpr int kValues = 32, kGroup = 16;
  uint8_t q[16];
};
template <>
struct Int8Format<BlockE2M1> {
  static constexpr int kShift = 4, kBits = 5;
  static constexpr bool kMinimum = false;
  static void codes(const BlockE2M1& b, int g, uint8_t* out) {
    for (int j = 0; j < 16; ++j) {
      const uint8_t byte = b.q[8 * g + j / 2];
      out[j] = static_cast<uint8_t>(quant::e2m1_twice(j % 2 ? byte >> 4 : byte & 15) + 16);
    }
  }
  static float scale(uint8_t s, float global_scale) {
    return 0.5f * (quant::e4m3_to_float(s) * global_scale);
  }
};

// fn.operator()<Block>() of an 8-bit format; false for any other.
template <class F>
bool with_int8_block(DType dtype, F fn) {
  switch (dtype) {
    case DType::F4E2M1:
      fn.template operator()<BlockE2M1>();
      return true;
    case DType::Q8_0:
      fn.template operator()<quant::BlockQ8_0>();
      return true;
    case DType::Q4_0:
      fn.template operator()<quant::BlockQ4_0>();
      return true;
    case DType::Q4_1:
      fn.template operator()<quant::BlockQ4_1>();
      return true;
    case DType::Q5_0:
      fn.template operator()<quant::BlockQ5_0>();
      return true;
    case DType::Q5_1:
      fn.template operator()<quant::BlockQ5_1>();
      return true;
    case DType::Q2_K:
      fn.template operator()<quant::BlockQ2_K>();
      return true;
    case DType::Q3_K:
      fn.template operator()<quant::BlockQ3_K>();
      return true;
    case DType::Q4_K:
      fn.template operator()<quant::BlockQ4_K>();
      return true;
    case DType::Q5_K:
      fn.template operator()<quant::BlockQ5_K>();
      return true;
    case DType::Q6_K:
      fn.template operator()<quant::BlockQ6_K>();
      return true;
    case DType::IQ4_NL:
      fn.template operator()<quant::BlockIQ4_NL>();
      return true;
    case DType::IQ4_XS:
      fn.template operator()<quant::BlockIQ4_XS>();
      return true;
    case DType::MXFP4:
      fn.template operator()<quant::BlockMXFP4>();
      return true;
    case DType::NVFP4:
      fn.template operator()<quant::BlockNVFP4>();
      return true;
    default:
      return false;
  }
}

}  // namespace quern::cpu

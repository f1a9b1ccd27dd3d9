#include "ops/quant_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/quant_formats.h"

namespace quern {
namespace {

// The nearest of all codes by exhaustive search, ties to the even code.
template <typename Decode>
int nearest(double x, int n_codes, Decode decode) {
  int best = -1;
  for (int c = 0; c < n_codes; ++c) {
    const double v = decode(c);
    if (!std::isfinite(v) || std::signbit(v) != std::signbit(x)) continue;
    const double e = std::fabs(v - x), b = best < 0 ? INFINITY : std::fabs(decode(best) - x);
    if (e < b || (e == b && c % 2 == 0)) best = c;
  }
  return best;
}

TEST(QuantEncode, floats_round_to_the_nearest_code) {
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  std::vector<float> values = {0.0f,      -0.0f, 1e-9f, 448,   449,   1e9f,  -1e9f, 0x1p-10f,
                               0x1.8p-9f, 5,     2.5f,  0.25f, 0.75f, 65519, 65504};
  for (int i = 0; i < 400; ++i) values.push_back(normal(gen) * std::exp2(static_cast<float>(i % 36 - 26)));
  for (int c = 0; c < 0x7c00; c += 7)  // half-way between neighbours
    values.push_back((quant::half_to_float(static_cast<uint16_t>(c)) +
                      quant::half_to_float(static_cast<uint16_t>(c + 1))) /
                     2);
  for (const float x : values) {
    EXPECT_EQ(float_to_e4m3(x),
              nearest(x, 256, [](int c) { return quant::e4m3_to_float(static_cast<uint8_t>(c)); }))
        << x;
    // A negative zero's code decodes to zero without its sign.
    EXPECT_EQ(float_to_e2m1(x), nearest(x, 16,
                                        [](int c) {
                                          return c < 8 ? quant::e2m1_to_float(static_cast<unsigned>(c))
                                                       : -quant::e2m1_to_float(static_cast<unsigned>(c - 8));
                                        }))
        << x;
  }
  for (size_t i = 0; i < values.size(); i += 40) {
    const float x = values[i];
    EXPECT_EQ(float_to_half(x),
              nearest(x, 65536, [](int c) { return quant::half_to_float(static_cast<uint16_t>(c)); }))
        << x;
  }
}

TEST(QuantEncode, every_code_comes_back) {
  for (int c = 0; c < 65536; ++c) {
    const auto h = static_cast<uint16_t>(c);
    if (std::isfinite(quant::half_to_float(h))) {
      EXPECT_EQ(float_to_half(quant::half_to_float(h)), h);
    }
    if (std::isfinite(quant::bf16_to_float(h))) {
      EXPECT_EQ(float_to_bf16(quant::bf16_to_float(h)), h);
    }
  }
  for (int c = 0; c < 256; ++c) {
    if (c % 128 != 127) {
      EXPECT_EQ(float_to_e4m3(quant::e4m3_to_float(static_cast<uint8_t>(c))), c);
    }
  }
  for (unsigned c = 0; c < 16; ++c) {
    if (c != 8) {
      EXPECT_EQ(float_to_e2m1(quant::e2m1_to_float(c)), c);
    }
  }
}

TEST(QuantEncode, bf16_ties_go_to_even) {
  EXPECT_EQ(float_to_bf16(quant::bits_to_float(0x3f808000)), 0x3f80);
  EXPECT_EQ(float_to_bf16(quant::bits_to_float(0x3f818000)), 0x3f82);
  EXPECT_EQ(float_to_bf16(quant::bits_to_float(0x3f808001)), 0x3f81);
  EXPECT_TRUE(std::isnan(quant::bf16_to_float(float_to_bf16(quant::bits_to_float(0x7f800001)))));
}

}  // namespace
}  // namespace quern

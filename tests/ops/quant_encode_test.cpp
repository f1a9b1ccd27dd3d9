#include "ops/quant_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

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

struct Loss {
  DType type;
  double limit;
};

// Relative error ‖decoded - x‖ / ‖x‖ on normal numbers. The limits are a little above what was measured; a uniform
// quantiser of b bits over ±3 deviations would reach 1.73 / 2^b.
TEST(QuantEncode, block_types_keep_normal_rows) {
  constexpr Loss kLosses[] = {
      {DType::Q8_0, 0.006},  {DType::Q6_K, 0.02},   {DType::Q5_K, 0.04},    {DType::Q5_1, 0.045},
      {DType::Q5_0, 0.05},   {DType::Q4_K, 0.08},   {DType::Q4_1, 0.09},    {DType::Q4_0, 0.1},
      {DType::IQ4_NL, 0.09}, {DType::IQ4_XS, 0.09}, {DType::MXFP4, 0.14},   {DType::NVFP4, 0.11},
      {DType::Q3_K, 0.18},   {DType::IQ3_S, 0.17},  {DType::IQ3_XXS, 0.23}, {DType::Q2_K, 0.34},
      {DType::IQ2_S, 0.34},  {DType::IQ2_XS, 0.37}, {DType::IQ2_XXS, 0.42}};
  std::mt19937 gen(9);
  std::normal_distribution<float> normal;
  constexpr int k = 2560, n_rows = 20;
  for (const Loss& l : kLosses) {
    ASSERT_TRUE(can_encode(l.type));
    double error = 0, square = 0;
    for (int r = 0; r < n_rows; ++r) {
      std::vector<float> x(k), y(k);
      for (float& v : x) v = normal(gen);
      std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(l.type, k)));
      encode_row(l.type, x.data(), k, bytes.data());
      decode_row(l.type, bytes.data(), k, y.data());
      for (int i = 0; i < k; ++i) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        square += x[i] * x[i];
      }
    }
    const double loss = std::sqrt(error / square);
    std::printf("%-8s %.4f\n", std::string(name(l.type)).c_str(), loss);
    EXPECT_LT(loss, l.limit) << name(l.type) << " seed 9";
    EXPECT_GT(loss, l.limit / 3) << name(l.type) << " seed 9";
  }
}

// Rows of zeros, of one value, of tiny and huge values, and of numbers that are none.
TEST(QuantEncode, odd_rows_stay_finite) {
  for (int t = 0; t < static_cast<int>(DType::kCount); ++t) {
    const auto type = static_cast<DType>(t);
    if (!can_encode(type) || dtype_info(type).block == 1) continue;
    for (const float scale : {0.0f, 1e-38f, 1e-6f, 1.0f, -3.0f, 60000.0f, INFINITY, NAN}) {
      for (const int kind : {0, 1, 2}) {
        std::vector<float> x(256), y(256);
        for (int i = 0; i < 256; ++i)
          x[static_cast<size_t>(i)] = kind == 0   ? scale
                                      : kind == 1 ? (i == 77 ? scale : 0.01f)
                                                  : scale * static_cast<float>(i % 7 - 3);
        std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, 256)));
        encode_row(type, x.data(), 256, bytes.data());
        decode_row(type, bytes.data(), 256, y.data());
        double error = 0, square = 0;
        for (size_t i = 0; i < 256; ++i) {
          ASSERT_TRUE(std::isfinite(y[i])) << name(type) << " scale " << scale << " kind " << kind;
          const double v = std::isfinite(x[i]) ? double{x[i]} : 0;
          error += (v - double{y[i]}) * (v - double{y[i]});
          square += v * v;
        }
        // About as good as all zeros at worst: the IQ2 and IQ3 books have no zero to pair with one large
        // value. Scales far below a half's range are rounded to nothing or up.
        if (std::fabs(scale) <= 1e-6f) continue;
        EXPECT_LE(error, square * 1.1 + 1e-9) << name(type) << " scale " << scale << " kind " << kind;
      }
    }
  }
}

// Every code beside every scale, between ModelOpt's rows and GGUF's blocks: the numbers stay, and so do the bytes but for
// a scale's sign, which blocks keep in the codes.
TEST(QuantEncode, fp4_rows_and_blocks_hold_the_same_numbers) {
  constexpr int64_t kCols = 256 * 16;
  std::vector<std::byte> codes(kCols / 2), scales(kCols / 16), blocks(kCols / 64 * 36),
      codes_back(codes.size()), scales_back(scales.size());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(0x10 + i * 0x9d + i / 8);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(i);
  fp4_row_to_blocks(codes.data(), scales.data(), kCols, blocks.data());
  std::vector<float> values(kCols);
  decode_row(DType::NVFP4, blocks.data(), kCols, values.data());
  for (size_t i = 0; i < kCols; ++i) {
    const auto byte = std::to_integer<unsigned>(codes[i / 2]);
    const float scale = quant::e4m3_to_float(std::to_integer<uint8_t>(scales[i / 16]));
    if (std::isnan(scale)) continue;
    ASSERT_EQ(values[i], scale * quant::e2m1_to_float(i % 2 ? byte >> 4 : byte & 15)) << i;
  }
  blocks_to_fp4_row(blocks.data(), kCols, codes_back.data(), scales_back.data());
  for (size_t i = 0; i < scales.size(); ++i) {
    const bool negative = (scales[i] & std::byte{0x80}) != std::byte{0};
    ASSERT_EQ(scales_back[i], scales[i] & std::byte{0x7f});
    for (size_t j = 8 * i; j < 8 * i + 8; ++j)
      ASSERT_EQ(codes_back[j], codes[j] ^ (negative ? std::byte{0x88} : std::byte{0}));
  }
}

}  // namespace
}  // namespace quern

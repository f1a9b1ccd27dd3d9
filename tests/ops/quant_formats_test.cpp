// Each decoder against a second reading of the format in double: whole blocks, in the order the bytes lie,
// where the decoders go group by group.
#include "ops/quant_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <type_traits>
#include <vector>

namespace quern {
namespace {

using namespace quant;

double half(uint16_t h) {
  const int sign = h >> 15, e = (h >> 10) & 31, m = h & 1023;
  const double v = e == 0    ? std::ldexp(m, -24)
                   : e == 31 ? (m ? NAN : INFINITY)
                             : std::ldexp(1024 + m, e - 25);
  return sign ? -v : v;
}
double e4m3(int b) {
  const int e = (b >> 3) & 15, m = b & 7;
  if (e == 15 && m == 7) return NAN;
  const double v = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return b & 128 ? -v : v;
}
constexpr double kFp4[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

using Values = std::vector<double>;

void reference(const BlockQ8_0& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * b.q[j];
}
void reference(const BlockQ4_0& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * ((j < 16 ? b.q[j] % 16 : b.q[j - 16] / 16) - 8);
}
void reference(const BlockQ4_1& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * (j < 16 ? b.q[j] % 16 : b.q[j - 16] / 16) + half(b.m);
}
template <typename B>
int five(const B& b, int j) {
  uint32_t h;
  std::memcpy(&h, b.h, 4);
  return (j < 16 ? b.q[j] % 16 : b.q[j - 16] / 16) + 16 * static_cast<int>((h >> j) & 1);
}
void reference(const BlockQ5_0& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * (five(b, j) - 16);
}
void reference(const BlockQ5_1& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * five(b, j) + half(b.m);
}
void reference(const BlockQ2_K& b, Values& y) {
  int i = 0;
  for (int n = 0; n < 2; ++n)
    for (int shift = 0; shift < 8; shift += 2)
      for (int l = 0; l < 32; ++l, ++i) {
        const int s = b.s[i / 16];
        y[i] = half(b.d) * (s % 16) * ((b.q[32 * n + l] >> shift) % 4) - half(b.m) * (s / 16);
      }
}
void reference(const BlockQ3_K& b, Values& y) {
  // The twelve scale bytes as three words, unpacked the way the format's authors wrote it down.
  uint32_t a[4], w[3];
  std::memcpy(w, b.s, 12);
  a[0] = (w[0] & 0x0f0f0f0f) | ((w[2] & 0x03030303) << 4);
  a[1] = (w[1] & 0x0f0f0f0f) | (((w[2] >> 2) & 0x03030303) << 4);
  a[2] = ((w[0] >> 4) & 0x0f0f0f0f) | (((w[2] >> 4) & 0x03030303) << 4);
  a[3] = ((w[1] >> 4) & 0x0f0f0f0f) | (((w[2] >> 6) & 0x03030303) << 4);
  uint8_t s[16];
  std::memcpy(s, a, 16);
  int i = 0, bit = 0;
  for (int n = 0; n < 2; ++n)
    for (int shift = 0; shift < 8; shift += 2, ++bit)
      for (int l = 0; l < 32; ++l, ++i)
        y[i] =
            half(b.d) * (s[i / 16] - 32) * ((b.q[32 * n + l] >> shift) % 4 - ((b.h[l] >> bit) % 2 ? 0 : 4));
}
template <typename B>
void k_scales(const B& b, int g, int& s, int& m) {
  if (g < 4) {
    s = b.s[g] % 64;
    m = b.s[g + 4] % 64;
  } else {
    s = b.s[g + 4] % 16 + 16 * (b.s[g - 4] / 64);
    m = b.s[g + 4] / 16 + 16 * (b.s[g] / 64);
  }
}
void reference(const BlockQ4_K& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    int s, m;
    k_scales(b, i / 32, s, m);
    const int byte = b.q[i / 64 * 32 + i % 32];
    y[i] = half(b.d) * s * (i / 32 % 2 ? byte / 16 : byte % 16) - half(b.m) * m;
  }
}
void reference(const BlockQ5_K& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    int s, m;
    k_scales(b, i / 32, s, m);
    const int byte = b.q[i / 64 * 32 + i % 32];
    const int q = (i / 32 % 2 ? byte / 16 : byte % 16) + 16 * ((b.h[i % 32] >> (i / 32)) % 2);
    y[i] = half(b.d) * s * q - half(b.m) * m;
  }
}
void reference(const BlockQ6_K& b, Values& y) {
  for (int n = 0; n < 2; ++n)
    for (int l = 0; l < 32; ++l) {
      const uint8_t* q = b.q + 64 * n;
      const int h = b.h[32 * n + l];
      const int8_t* s = b.s + 8 * n + l / 16;
      const int v[4] = {q[l] % 16 + 16 * (h % 4), q[l + 32] % 16 + 16 * (h / 4 % 4),
                        q[l] / 16 + 16 * (h / 16 % 4), q[l + 32] / 16 + 16 * (h / 64)};
      for (int c = 0; c < 4; ++c) y[128 * n + 32 * c + l] = half(b.d) * s[2 * c] * (v[c] - 32);
    }
}
void reference(const BlockIQ4_NL& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = half(b.d) * kIq4[j < 16 ? b.q[j] % 16 : b.q[j - 16] / 16];
}
void reference(const BlockIQ4_XS& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    const int g = i / 32, j = i % 32;
    const int low = g % 2 ? b.sl[g / 2] / 16 : b.sl[g / 2] % 16;
    const int s = low + 16 * ((b.sh >> (2 * g)) % 4) - 32;
    y[i] = half(b.d) * s * kIq4[j < 16 ? b.q[16 * g + j] % 16 : b.q[16 * g + j - 16] / 16];
  }
}
void reference(const BlockMXFP4& b, Values& y) {
  for (int j = 0; j < 32; ++j) y[j] = std::ldexp(kFp4[j < 16 ? b.q[j] % 16 : b.q[j - 16] / 16], b.e - 127);
}
void reference(const BlockNVFP4& b, Values& y) {
  for (int i = 0; i < 64; ++i) {
    const int g = i / 16, j = i % 16;
    y[i] = e4m3(b.s[g] % 128) * kFp4[j < 8 ? b.q[8 * g + j] % 16 : b.q[8 * g + j - 8] / 16];
  }
}
double magnitude(uint64_t entry, int j) { return static_cast<double>((entry >> (8 * j)) & 255); }
int even_sign(int code, int j) {
  return (j < 7 ? code >> j : __builtin_popcount(static_cast<unsigned>(code))) % 2 ? -1 : 1;
}
void reference(const BlockIQ2_XXS& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    uint8_t bytes[8];
    std::memcpy(bytes, b.q + 4 * (i / 32), 8);
    uint32_t word;
    std::memcpy(&word, bytes + 4, 4);
    const int k = i % 32 / 8, j = i % 8;
    y[i] = half(b.d) * (0.5 + (word >> 28)) / 4 * magnitude(kIq2XxsGrid[bytes[k]], j) *
           even_sign((word >> (7 * k)) % 128, j);
  }
}
void reference(const BlockIQ2_XS& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    const int q = b.q[i / 8], s = i / 16 % 2 ? b.s[i / 32] / 16 : b.s[i / 32] % 16;
    y[i] = half(b.d) * (0.5 + s) / 4 * magnitude(kIq2XsGrid[q % 512], i % 8) * even_sign(q / 512, i % 8);
  }
}
void reference(const BlockIQ2_S& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    const int k = i / 8, s = i / 16 % 2 ? b.s[i / 32] / 16 : b.s[i / 32] % 16;
    const int index = b.q[k] + 256 * ((b.h[k / 4] >> (2 * (k % 4))) % 4);
    y[i] = half(b.d) * (0.5 + s) / 4 * magnitude(kIq2SGrid[index], i % 8) *
           ((b.signs[k] >> (i % 8)) % 2 ? -1 : 1);
  }
}
void reference(const BlockIQ3_XXS& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    uint32_t word;
    std::memcpy(&word, b.s + 4 * (i / 32), 4);
    y[i] = half(b.d) * (0.5 + (word >> 28)) / 2 * magnitude(kIq3XxsGrid[b.q[i / 4]], i % 4) *
           even_sign((word >> (7 * (i % 32 / 8))) % 128, i % 8);
  }
}
void reference(const BlockIQ3_S& b, Values& y) {
  for (int i = 0; i < 256; ++i) {
    const int g = i / 32, s = g % 2 ? b.s[g / 2] / 16 : b.s[g / 2] % 16;
    const int index = b.q[i / 4] + 256 * ((b.h[g] >> (i % 32 / 4)) % 2);
    y[i] = half(b.d) * (1 + 2 * s) * magnitude(kIq3SGrid[index], i % 4) *
           ((b.signs[i / 8] >> (i % 8)) % 2 ? -1 : 1);
  }
}

constexpr DType kBlockTypes[] = {DType::Q8_0,   DType::Q4_0,   DType::Q4_1,    DType::Q5_0,  DType::Q5_1,
                                 DType::Q2_K,   DType::Q3_K,   DType::Q4_K,    DType::Q5_K,  DType::Q6_K,
                                 DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4,   DType::NVFP4, DType::IQ2_XXS,
                                 DType::IQ2_XS, DType::IQ2_S,  DType::IQ3_XXS, DType::IQ3_S};

// Scales that are NaN, infinite or so large that float overflows are left out: only finite rows are compared.
TEST(QuantFormats, decoders_agree_with_the_formats_on_random_bytes) {
  std::mt19937 gen(1);
  for (const DType type : kBlockTypes) {
    int compared = 0;
    with_block_type(type, [&]<typename Block>() {
      ASSERT_EQ(static_cast<int>(sizeof(Block)), dtype_info(type).bytes);
      ASSERT_EQ(Block::kValues, dtype_info(type).block);
      for (int trial = 0; trial < 500; ++trial) {
        Block b;
        unsigned char bytes[sizeof b];
        for (auto& x : bytes) x = static_cast<unsigned char>(gen());
        std::memcpy(&b, bytes, sizeof b);
        if constexpr (std::is_same_v<Block, BlockMXFP4>) {
          if (b.e == 255) continue;  // no number
        }
        Values expected(Block::kValues);
        reference(b, expected);
        std::vector<float> got(Block::kValues);
        decode_row(type, reinterpret_cast<const std::byte*>(bytes), Block::kValues, got.data());
        for (int i = 0; i < Block::kValues; ++i) {
          if (!(std::fabs(expected[i]) < 1e37)) continue;
          // An offset may cancel: the error counts against the larger of the two terms.
          double scale = std::fabs(expected[i]);
          if constexpr (requires { b.m; }) scale += 64 * std::fabs(half(b.m));
          ASSERT_NEAR(got[i], expected[i], 3e-7 * scale + 1e-45)
              << name(type) << " seed 1, trial " << trial << ", value " << i;
          ++compared;
        }
      }
    });
    EXPECT_GT(compared, 5000) << name(type);
  }
}

TEST(QuantFormats, every_half_and_every_fp8_value) {
  for (int h = 0; h < 65536; ++h) {
    const double expected = half(static_cast<uint16_t>(h));
    const float got = half_to_float(static_cast<uint16_t>(h));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(got)) << h;
    else
      EXPECT_EQ(static_cast<double>(got), expected) << h;
  }
  for (int b = 0; b < 256; ++b) {
    const float got = e4m3_to_float(static_cast<uint8_t>(b));
    if (std::isnan(e4m3(b)))
      EXPECT_TRUE(std::isnan(got)) << b;
    else
      EXPECT_EQ(static_cast<double>(got), e4m3(b)) << b;
  }
  for (int e = 0; e < 255; ++e)
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(e))), std::ldexp(1.0, e - 127));
  for (unsigned n = 0; n < 16; ++n) {
    EXPECT_EQ(e2m1_to_float(n), static_cast<float>(kFp4[n]));
    EXPECT_EQ(iq4_level(n), kIq4[n]);
  }
}

}  // namespace
}  // namespace quern

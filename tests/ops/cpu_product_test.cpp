// The levels of instructions of ops/cpu/product.h against each other, bit for bit, and against the formula.
#include <limits>

#include "ops/cpu/int8_formats.h"
#include "ops/cpu/product.h"
#include "ops/device_test.h"
#include "ops/linear.h"
#include "reference.h"

namespace quern::test {
namespace {

constexpr DType kFormats[] = {DType::Q8_0,   DType::Q4_0,   DType::Q4_1,  DType::Q5_0,  DType::Q5_1,
                              DType::Q2_K,   DType::Q3_K,   DType::Q4_K,  DType::Q5_K,  DType::Q6_K,
                              DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4, DType::NVFP4, DType::F4E2M1};

using Records = std::vector<std::byte>;

Records rounded(const cpu::ProductLevel& level, const std::vector<float>& x, int64_t k) {
  const int64_t bytes = cpu::int8_row_bytes(k), rows = static_cast<int64_t>(x.size()) / k;
  Records out(static_cast<size_t>(rows * bytes));
  for (int64_t r = 0; r < rows; ++r)
    level.round_row(&x[static_cast<size_t>(r * k)], k, &out[static_cast<size_t>(r * bytes)]);
  return out;
}

std::vector<float> product(const cpu::ProductLevel& level, const Weight& w, const Records& x, int64_t rows,
                           int64_t n0, int64_t n1) {
  std::vector<float> y(static_cast<size_t>(rows * w.n()), -1);
  level.int8_product({.w = &w, .rounded = x.data(), .y = y.data(), .y_stride = w.n(), .n_rows = rows}, n0,
                     n1);
  return y;
}
std::vector<float> f32_product(const cpu::ProductLevel& level, const Weight& w, const std::vector<float>& x,
                               int64_t rows, int64_t n0, int64_t n1) {
  std::vector<float> y(static_cast<size_t>(rows * w.n()), -1);
  level.f32_product(
      {.w = &w, .x = x.data(), .x_stride = w.k(), .y = y.data(), .y_stride = w.n(), .n_rows = rows}, n0, n1);
  return y;
}

class CpuProductTest : public ::testing::Test {
 protected:
  // The level of that name, or null with a line that says that this processor lacks it.
  static const cpu::ProductLevel* level(const std::string& name) {
    for (const cpu::ProductLevel& l : cpu::product_levels())
      if (l.name == name) return &l;
    return nullptr;
  }
  static void expect_scalar_bits(const cpu::ProductLevel& l) {
    const cpu::ProductLevel& scalar = *level("scalar");
    Machine m(DeviceType::Cpu, 1);
    Random random(11);
    for (const DType dtype : kFormats) {
      const int64_t block = dtype == DType::F4E2M1 ? 32 : dtype_info(dtype).block;
      std::vector<int64_t> widths{block, 3 * block, 2560, 10240};
      for (const int64_t k : {32, 160, 320, 512, 544, 640, 1024})
        if (k % block == 0) widths.push_back(k);
      for (const int64_t k : widths)
        for (const int64_t n : {1, 31, 33}) {
          if (k > 2560 && n > 1) continue;
          const TestWeight w = random_weight(m, random, dtype, n, k);
          for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 17, 97}) {
            if (rows > 17 && (k > 640 || n != 33)) continue;
            const auto x = random.normals(rows * k, 3);
            const Records records = rounded(scalar, x, k);
            ASSERT_EQ(
                difference(product(l, w.w, records, rows, 0, n), product(scalar, w.w, records, rows, 0, n)),
                "")
                << l.name << ' ' << name(dtype) << " [" << n << ", " << k << "], " << rows
                << " rows, seed 11";
          }
        }
    }
  }
};

TEST_F(CpuProductTest, avx2_gives_the_bits_of_the_formula) {
  const auto* l = level("avx2");
  if (!l) GTEST_SKIP() << "this processor has no AVX2, FMA and F16C";
  expect_scalar_bits(*l);
}
TEST_F(CpuProductTest, avxvnni_gives_the_bits_of_the_formula) {
  const auto* l = level("avxvnni");
  if (!l) GTEST_SKIP() << "this processor has no AVX-VNNI";
  expect_scalar_bits(*l);
}
TEST_F(CpuProductTest, avx512vnni_gives_the_bits_of_the_formula) {
  const auto* l = level("avx512vnni");
  if (!l) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  expect_scalar_bits(*l);
}

// Codes, scales and minima are those of the one decoder.
TEST_F(CpuProductTest, the_integer_view_of_a_group_is_what_the_decoder_gives) {
  Machine m(DeviceType::Cpu, 1);
  Random random(12);
  for (const DType dtype : kFormats) {
    if (dtype == DType::F4E2M1) continue;
    const TestWeight w = random_weight(m, random, dtype, 8, 2560);
    cpu::with_int8_block(dtype, [&]<class Block>() {
      if constexpr (!std::is_same_v<Block, cpu::BlockE2M1>) {
        using Format = cpu::Int8Format<Block>;
        const auto* blocks = w.w.data.as<const Block>();
        for (int64_t i = 0; i < 8 * 2560; i += Block::kGroup) {
          const Block& b = blocks[i / Block::kValues];
          const int g = static_cast<int>(i % Block::kValues / Block::kGroup);
          uint8_t codes[32];
          Format::codes(b, g, codes);
          for (int j = 0; j < Block::kGroup; ++j) {
            ASSERT_LT(codes[j], 1 << Format::kBits);
            float value = Format::scale(b, g) *
                          static_cast<float>(codes[j] - (Format::kMinimum ? 0 : 1 << Format::kShift));
            if constexpr (Format::kMinimum) value += Format::minimum(b, g);
            ASSERT_EQ(value, static_cast<float>(w.values[static_cast<size_t>(i + j)]))
                << name(dtype) << " value " << i + j;
          }
        }
      }
    });
  }
}

TEST_F(CpuProductTest, every_level_rounds_rows_alike) {
  Random random(13);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t k = 640;
  std::vector<float> x = random.normals(9 * k);
  for (int64_t i = 0; i < k; ++i) {
    x[static_cast<size_t>(k + i)] *= 1e-20f;
    x[static_cast<size_t>(2 * k + i)] *= 1e-35f;  // groups on both sides of 2^-100
    x[static_cast<size_t>(3 * k + i)] *= 1e30f;
    x[static_cast<size_t>(4 * k + i)] = static_cast<float>(i % 255 - 127) / 2;  // ties
    x[static_cast<size_t>(5 * k + i)] = 0;
  }
  x[6 * k + 40] = inf;
  x[6 * k + 80] = -inf;
  x[7 * k + 3] = nan;
  x[7 * k + 4] = inf;
  x[8 * k] = -1e-45f;
  const Records expected = rounded(cpu::product_levels().front(), x, k);
  for (const cpu::ProductLevel& l : cpu::product_levels())
    EXPECT_TRUE(rounded(l, x, k) == expected) << l.name;
  const auto* codes = reinterpret_cast<const int8_t*>(expected.data());
  for (int64_t r = 0; r < 9; ++r)
    for (int64_t i = 0; i < k; ++i) ASSERT_GE(codes[r * cpu::int8_row_bytes(k) + i], -127);
  // A tie goes to the even code: the largest of 63.5 makes d = 1/2, so values are half codes.
  for (int64_t i = 0; i < k; ++i)
    EXPECT_EQ(codes[4 * cpu::int8_row_bytes(k) + i],
              reference::round_to_int8(doubles({x.begin() + 4 * k, x.begin() + 5 * k}), 1, k)
                  .codes[static_cast<size_t>(i)]);
}

TEST_F(CpuProductTest, an_infinity_or_a_nan_makes_its_row_nan_and_no_other) {
  Machine m(DeviceType::Cpu, 1);
  Random random(14);
  const int64_t n = 33, k = 512, rows = 5;
  for (const DType dtype : {DType::Q8_0, DType::Q4_K, DType::Q6_K}) {
    const TestWeight w = random_weight(m, random, dtype, n, k);
    auto x = random.normals(rows * k);
    x[static_cast<size_t>(k + 100)] = std::numeric_limits<float>::infinity();
    x[static_cast<size_t>(3 * k + 511)] = std::numeric_limits<float>::quiet_NaN();
    for (const cpu::ProductLevel& l : cpu::product_levels()) {
      const auto y = product(l, w.w, rounded(l, x, k), rows, 0, n);
      for (int64_t i = 0; i < rows * n; ++i)
        ASSERT_EQ(std::isnan(y[static_cast<size_t>(i)]), i / n == 1 || i / n == 3)
            << l.name << ' ' << name(dtype) << " element " << i;
    }
  }
}

TEST_F(CpuProductTest, a_nan_among_fp8_weights_makes_its_output_nan_and_no_other) {
  Machine m(DeviceType::Cpu, 1);
  Random random(16);
  const int64_t n = 40, k = 160;
  const TestWeight w = random_weight(m, random, DType::F8E4M3, n, k);
  w.w.data.as<uint8_t>()[3 * k + 2] = 0x7f;
  w.w.data.as<uint8_t>()[39 * k + 159] = 0xff;
  for (const cpu::ProductLevel& l : cpu::product_levels()) {
    const auto y = f32_product(l, w.w, random.normals(2 * k), 2, 0, n);
    for (int64_t i = 0; i < 2 * n; ++i)
      EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i % n == 3 || i % n == 39)
          << l.name << " element " << i;
  }
}

// Sixteen rows of normal numbers take another way than those with a zero or a subnormal among them.
TEST_F(CpuProductTest, every_fp8_code_in_every_byte_gives_the_scalar_bits) {
  Machine m(DeviceType::Cpu, 1);
  Random random(17);
  const int64_t n = 256, k = 70;
  std::vector<uint8_t> bytes(static_cast<size_t>(n * k));
  for (int64_t row = 0; row < n; ++row)
    for (int64_t i = 0; i < k; ++i) {
      const bool nan = (row & 0x7f) == 0x7f, alone = i >= 32;
      const auto other = static_cast<uint8_t>(0x38 + (row + i) % 16);
      bytes[static_cast<size_t>(row * k + i)] = nan || (alone && i % 4 != row / 16 % 4) ? other : row & 0xff;
    }
  Weight w;
  w.data = m.tensor(DType::F8E4M3, {n, k}, bytes);
  for (const int64_t rows : {1, 7, 97}) {
    const auto x = random.normals(rows * k);
    const auto expected = f32_product(cpu::product_levels().front(), w, x, rows, 0, n);
    for (const cpu::ProductLevel& l : cpu::product_levels())
      EXPECT_EQ(difference(f32_product(l, w, x, rows, 0, n), expected), "")
          << l.name << ' ' << rows << " rows, seed 17";
  }
}

TEST_F(CpuProductTest, the_most_extreme_codes_do_not_overflow) {
  Machine m(DeviceType::Cpu, 1);
  const int64_t n = 32, k = 512, rows = 3;
  for (const DType dtype : kFormats) {
    if (dtype == DType::F4E2M1) continue;
    for (const uint8_t byte : {0x00, 0x80, 0xff, 0x7f}) {
      std::vector<uint8_t> bytes(static_cast<size_t>(n * row_bytes(dtype, k)), byte);
      quant::with_block_type(dtype, [&]<typename Block>() {
        for (size_t at = 0; at < bytes.size(); at += sizeof(Block)) {
          auto* b = reinterpret_cast<Block*>(&bytes[at]);
          if constexpr (requires { b->d; }) b->d = scalar::f32_to_f16(0.5f);
          if constexpr (requires { b->m; }) b->m = scalar::f32_to_f16(0.25f);
          if constexpr (requires { b->e; }) b->e = 127;
          if constexpr (std::is_same_v<Block, quant::BlockNVFP4>)
            for (uint8_t& s : b->s) s = 0x38;
        }
      });
      Weight w;
      w.data = m.tensor(dtype, {n, k}, bytes);
      std::vector<float> x(static_cast<size_t>(rows * k), 1.0f);
      for (int64_t i = 0; i < k; ++i) {
        x[static_cast<size_t>(k + i)] = -1;
        x[static_cast<size_t>(2 * k + i)] = i % 4 < 2 ? 1.0f : -1.0f;
      }
      const Records records = rounded(cpu::product_levels().front(), x, k);
      std::vector<float> row(static_cast<size_t>(k));
      decode_row(dtype, w.data.data, k, row.data());
      const auto expected = reference::linear(doubles(x), doubles(row), rows, 1, k);
      for (const cpu::ProductLevel& l : cpu::product_levels()) {
        const auto y = product(l, w, records, rows, 0, n);
        for (int64_t r = 0; r < rows; ++r) {
          double size = 0;
          for (const float v : row) size += std::abs(v);
          ASSERT_NEAR(y[static_cast<size_t>(r * n + 7)], expected[static_cast<size_t>(r)],
                      1e-5 * size + 1e-30)
              << l.name << ' ' << name(dtype) << " byte " << int{byte} << " row " << r;
          // A row alone may take another way.
          const auto alone =
              product(l, w, rounded(l, {x.begin() + r * k, x.begin() + (r + 1) * k}, k), 1, 0, n);
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + r * n))
              << l.name << ' ' << name(dtype) << " byte " << int{byte} << " row " << r;
        }
      }
    }
  }
}

TEST_F(CpuProductTest, outputs_beyond_the_range_are_left_alone) {
  Machine m(DeviceType::Cpu, 1);
  Random random(15);
  const TestWeight w = random_weight(m, random, DType::Q8_0, 100, 64);
  for (const cpu::ProductLevel& l : cpu::product_levels()) {
    const auto y = product(l, w.w, rounded(l, random.normals(2 * 64), 64), 2, 37, 70);
    for (int64_t i = 0; i < 200; ++i)
      EXPECT_EQ(y[static_cast<size_t>(i)] == -1, i % 100 < 37 || i % 100 >= 70) << l.name;
    const auto f = f32_product(l, w.w, random.normals(2 * 64), 2, 37, 70);
    for (int64_t i = 0; i < 200; ++i)
      EXPECT_EQ(f[static_cast<size_t>(i)] == -1, i % 100 < 37 || i % 100 >= 70) << l.name;
  }
}

}  // namespace
}  // namespace quern::test

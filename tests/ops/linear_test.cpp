#include "ops/linear.h"

#include "ops/cpu/product.h"
#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class LinearTest : public OpTest {};
ON_EVERY_DEVICE(LinearTest);

constexpr DType kPlain[] = {DType::F32, DType::BF16, DType::F16};
constexpr DType kScaled[] = {
    DType::F8E4M3, DType::F4E2M1, DType::Q8_0,    DType::Q4_0,   DType::Q4_1,  DType::Q5_0,    DType::Q5_1,
    DType::Q2_K,   DType::Q3_K,   DType::Q4_K,    DType::Q5_K,   DType::Q6_K,  DType::IQ4_NL,  DType::IQ4_XS,
    DType::MXFP4,  DType::NVFP4,  DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S};

// Largest error against the root of the sum of the products' squares: what rounding is proportional to,
// whatever cancels. Activations are exact in BF16 and weights in f32, so the CPU only rounds sums. A tensor
// core cuts sums where a float rounds them, and CUDA rounds to BF16 the weights of formats whose values a
// BF16 does not hold (ops/linear.h).
double tolerance(DType dtype, bool cpu) {
  if (cpu) return 1e-6;
  switch (dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
    case DType::F4E2M1:
    case DType::MXFP4:
    case DType::NVFP4:
      return 2e-5;
    default:
      return 3e-3;
  }
}

std::vector<float> product(Machine& m, const TestWeight& w, const std::vector<float>& x, int64_t rows,
                           int64_t n_decode = -1) {
  const Tensor y = m.zeros(DType::F32, {rows, w.w.n()});
  linear(m.s, y, m.f32({rows, w.w.k()}, x), w.w, n_decode < 0 ? rows : n_decode);
  return m.read(y);
}

void check(Machine& m, Random& random, DType dtype, int64_t n, int64_t k, int64_t rows) {
  const TestWeight w = random_weight(m, random, dtype, n, k);
  const auto x = random.normals(rows * k);
  const bool int8 = m.is_cpu() && cpu::takes_int8(w.w);
  const auto exact = reference::linear(doubles(x), w.values, rows, n, k);
  const auto expected =
      int8 ? reference::linear(reference::round_to_int8(doubles(x), rows, k).values, w.values, rows, n, k)
           : exact;
  double scale = 0;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) {
        const double product = x[static_cast<size_t>(t * k + j)] * w.values[static_cast<size_t>(i * k + j)];
        scale += product * product;
      }
  for (const int64_t n_decode : {int64_t{0}, rows / 2, rows}) {
    const auto got = product(m, w, x, rows, n_decode);
    double error = 0, rounding = 0;
    for (size_t i = 0; i < got.size(); ++i) rounding += (got[i] - exact[i]) * (got[i] - exact[i]);
    // A group of normal numbers reaches about 2.1 times their deviation: steps of a sixtieth, errors of
    // 0.0048.
    if (int8) {
      EXPECT_LT(std::sqrt(rounding / scale), n * rows < 30 ? 0.02 : 0.009)
          << name(dtype) << " [" << n << ", " << k << "], " << rows << " rows, seed of the test";
    }
    for (size_t i = 0; i < got.size(); ++i) error += (got[i] - expected[i]) * (got[i] - expected[i]);
    EXPECT_LT(std::sqrt(error / scale), tolerance(dtype, m.is_cpu()))
        << name(dtype) << " [" << n << ", " << k << "], " << rows << " rows, " << n_decode
        << " of them decode";
  }
}

TEST_P(LinearTest, matches_double_precision_at_odd_shapes) {
  Machine m(GetParam());
  Random random(1);
  for (const DType dtype : kPlain)
    for (const auto& [n, k] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 33}, {33, 7}, {129, 127}, {31, 64}})
      for (const int64_t rows : {1, 2, 3, 4, 9, 25, 65}) check(m, random, dtype, n, k, rows);
}

TEST_P(LinearTest, matches_double_precision_at_the_models_shapes) {
  Machine m(GetParam());
  Random random(2);
  for (const DType dtype : kPlain)
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {48, 2560}, {1, 2560}, {320, 10240}, {2560, 640}, {640, 2560}, {32, 1024}, {256, 96}})
      for (const int64_t rows : {1, 5}) check(m, random, dtype, n, k, rows);
}

TEST_P(LinearTest, matches_double_precision_in_every_quantised_format) {
  Machine m(GetParam());
  Random random(3);
  for (const DType dtype : kScaled)
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{33, 256}, {129, 768}, {40, 2560}})
      for (const int64_t rows : {1, 3, 8, 26}) check(m, random, dtype, n, k, rows);
  for (const DType dtype : {DType::Q8_0, DType::Q4_0, DType::IQ4_NL, DType::MXFP4, DType::F4E2M1})
    for (const int64_t rows : {1, 4}) check(m, random, dtype, 37, 96, rows);
  for (const DType dtype : {DType::F8E4M3, DType::NVFP4})
    for (const int64_t rows : {1, 4}) check(m, random, dtype, 130, 320, rows);
}

TEST_P(LinearTest, a_row_does_not_depend_on_its_neighbours) {
  Machine m(GetParam());
  Random random(4);
  std::vector<DType> dtypes(std::begin(kPlain), std::end(kPlain));
  dtypes.insert(dtypes.end(), std::begin(kScaled), std::end(kScaled));
  for (const DType dtype : dtypes) {
    const int64_t n = 67, k = 768, rows = 53;
    const TestWeight w = random_weight(m, random, dtype, n, k);
    const auto x = random.normals(rows * k);
    for (const bool decode : {true, false}) {
      const auto whole = product(m, w, x, rows, decode ? rows : 0);
      for (const int64_t size : {1, 2, 3, 5, 8, 24, 25, 48}) {
        const int64_t first = random.integer(0, rows - size);
        const std::vector<float> part(x.begin() + first * k, x.begin() + (first + size) * k);
        const std::vector<float> expected(whole.begin() + first * n, whole.begin() + (first + size) * n);
        ASSERT_EQ(difference(product(m, w, part, size, decode ? size : 0), expected), "")
            << name(dtype) << (decode ? " decode" : " prefill") << ", rows " << first << " to "
            << first + size;
      }
    }
  }
}

// On CUDA a long K that meets few rows of weight is cut over the blocks of a cluster, and more than eight rows go by
// another kernel than fewer.
constexpr DType kLong[] = {DType::F32,    DType::BF16, DType::F16,  DType::F8E4M3,
                           DType::F4E2M1, DType::Q8_0, DType::Q4_K, DType::NVFP4};

TEST_P(LinearTest, a_long_k_over_few_outputs_matches_double_precision) {
  Machine m(GetParam());
  Random random(9);
  for (const DType dtype : kLong)
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{40, 4096}, {19, 4864}})
      for (const int64_t rows : {1, 9, 33, 64}) check(m, random, dtype, n, k, rows);
}

TEST_P(LinearTest, a_row_over_a_long_k_does_not_depend_on_its_neighbours) {
  Machine m(GetParam());
  Random random(10);
  for (const DType dtype : kLong) {
    const int64_t n = 40, k = 4864, rows = 70;
    const TestWeight w = random_weight(m, random, dtype, n, k);
    const auto x = random.normals(rows * k);
    for (const bool decode : {true, false}) {
      const auto whole = product(m, w, x, rows, decode ? rows : 0);
      for (const int64_t size : {1, 7, 8, 9, 16, 17, 32, 33, 64}) {
        const int64_t first = random.integer(0, rows - size);
        ASSERT_EQ(difference(product(m, w, {x.begin() + first * k, x.begin() + (first + size) * k}, size,
                                     decode ? size : 0),
                             {whole.begin() + first * n, whole.begin() + (first + size) * n}),
                  "")
            << name(dtype) << (decode ? " decode" : " prefill") << ", rows " << first << " to "
            << first + size;
      }
    }
  }
}

TEST_P(LinearTest, injected_rows_over_a_long_k_do_not_depend_on_their_neighbours) {
  Machine m(GetParam());
  Random random(11);
  for (const DType dtype : {DType::BF16, DType::F8E4M3}) {
    const int64_t n = 48, k = 4096, rows = 41, S = 4;
    const TestWeight w = random_weight(m, random, dtype, n, k);
    const auto a = random.normals(rows * k), x = random.normals(rows * S * n), inj = random.normals(rows * S);
    const auto of = [&](int64_t first, int64_t size) {
      const Tensor xt = m.f32({size, S * n}, {x.begin() + first * S * n, x.begin() + (first + size) * S * n});
      linear_inject(m.s, xt, m.f32({size, S}, {inj.begin() + first * S, inj.begin() + (first + size) * S}),
                    m.f32({size, k}, {a.begin() + first * k, a.begin() + (first + size) * k}), w.w, size);
      return m.read(xt);
    };
    const auto whole = of(0, rows);
    for (const auto& [first, size] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {40, 1}, {3, 8}, {7, 9}})
      ASSERT_EQ(difference(of(first, size),
                           {whole.begin() + first * S * n, whole.begin() + (first + size) * S * n}),
                "")
          << name(dtype) << ", rows " << first << " to " << first + size;
  }
}

// Prompts of every length: on CUDA the long one goes in larger tiles.
TEST_P(LinearTest, a_prompt_row_does_not_depend_on_the_length_of_the_prompt) {
  Machine m(GetParam());
  Random random(8);
  for (const DType dtype : {DType::BF16, DType::F8E4M3, DType::F4E2M1}) {
    const int64_t n = 1600, k = 192, rows = 3000;
    const TestWeight w = random_weight(m, random, dtype, n, k);
    const auto x = random.normals(rows * k);
    const auto whole = product(m, w, x, rows, 0);
    for (const auto& [first, size] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {2900, 100}, {700, 520}})
      ASSERT_EQ(difference(product(m, w, {x.begin() + first * k, x.begin() + (first + size) * k}, size, 0),
                           {whole.begin() + first * n, whole.begin() + (first + size) * n}),
                "")
          << name(dtype) << ", " << size << " rows from " << first;
  }
}

TEST_P(LinearTest, the_number_of_threads_changes_nothing) {
  if (!on_cpu()) GTEST_SKIP() << "threads are the CPU's";
  for (const DType dtype : {DType::BF16, DType::Q4_K}) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
      Machine m(GetParam(), threads);
      Random random(5);
      const TestWeight w = random_weight(m, random, dtype, 333, 512);
      results.push_back(product(m, w, random.normals(11 * 512), 11));
    }
    EXPECT_EQ(difference(results[0], results[1]), "");
    EXPECT_EQ(difference(results[0], results[2]), "");
  }
}

TEST_P(LinearTest, several_products_equal_one_call_each) {
  Machine m(GetParam());
  Random random(6);
  const TestWeight a = random_weight(m, random, DType::BF16, 70, 128),
                   b = random_weight(m, random, DType::F32, 1, 128),
                   c = random_weight(m, random, DType::Q8_0, 33, 128);
  const auto x = random.normals(9 * 128);
  const Tensor xt = m.f32({9, 128}, x), wide = m.zeros(DType::F32, {9, 110});
  const Tensor ya = wide.slice_cols(2, 72), yb = wide.slice_cols(72, 73), yc = wide.slice_cols(73, 106);
  const Product products[] = {{ya, &a.w}, {yb, &b.w}, {yc, &c.w}};
  linear(m.s, products, xt, 4);
  EXPECT_EQ(difference(m.read(ya), product(m, a, x, 9, 4)), "");
  EXPECT_EQ(difference(m.read(yb), product(m, b, x, 9, 4)), "");
  EXPECT_EQ(difference(m.read(yc), product(m, c, x, 9, 4)), "");
  const std::vector<float> all = m.read(wide);
  for (const size_t t : {0u, 8u})
    for (const size_t column : {0u, 1u, 106u, 109u})
      EXPECT_EQ(all[t * 110 + column], 0) << "written outside the slice";
}

TEST_P(LinearTest, a_fine_product_of_prompt_rows_has_sixteen_bits_of_x) {
  Machine m(GetParam());
  Random random(12);
  for (const DType dtype : {DType::BF16, DType::F4E2M1}) {
    const int64_t n = 130, k = 320, rows = 70;
    const TestWeight w = random_weight(m, random, dtype, n, k);
    auto x = random.normals(rows * k);
    for (float& v : x) v += random.normal() * 0x1p-10f;  // bits that a BF16 does not hold
    const Tensor y = m.zeros(DType::F32, {rows, n}), xt = m.f32({rows, k}, x);
    const Product fine{y, &w.w, true};
    linear(m.s, {&fine, 1}, xt, 0);
    if (m.is_cpu() && cpu::takes_int8(w.w)) continue;
    EXPECT_LT(relative_error(m.read(y), reference::linear(doubles(x), w.values, rows, n, k)), 2e-5)
        << name(dtype);
  }
}

TEST_P(LinearTest, inject_adds_the_product_to_every_stream) {
  Machine m(GetParam());
  Random random(7);
  for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{256, 768}, {33, 17}, {2560, 96}}) {
    const int64_t rows = 7, S = 4;
    const TestWeight w = random_weight(m, random, DType::BF16, n, k);
    const auto a = random.normals(rows * k), x = random.normals(rows * S * n), inj = random.normals(rows * S);
    const Tensor xt = m.f32({rows, S * n}, x);
    linear_inject(m.s, xt, m.f32({rows, S}, inj), m.f32({rows, k}, a), w.w, 3);
    const auto y = reference::linear(doubles(a), w.values, rows, n, k);
    std::vector<double> expected = doubles(x);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t s = 0; s < S; ++s)
        for (int64_t i = 0; i < n; ++i)
          expected[static_cast<size_t>((t * S + s) * n + i)] +=
              inj[static_cast<size_t>(t * S + s)] * y[static_cast<size_t>(t * n + i)];
    EXPECT_LT(relative_error(m.read(xt), expected), 1e-6);
  }
}

}  // namespace
}  // namespace quern::test

#include "ops/hyper_connection.h"

#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class HyperConnectionTest : public OpTest {
 protected:
  // The low-rank row between the two products is rounded to BF16 on CUDA.
  double tolerance() const { return on_cpu() ? 1e-6 : 3e-3; }
};
ON_EVERY_DEVICE(HyperConnectionTest);

struct Case {
  int64_t H, R;
  TestWeight down, up, inject;
  std::vector<float> norm;
  MixerWeights w;
};
Case make(Machine& m, Random& random, int64_t H, int64_t R, DType dtype = DType::BF16) {
  Case c{.H = H,
         .R = R,
         .down = random_weight(m, random, dtype, R, 4 * H),
         .up = random_weight(m, random, dtype, 4 * H, R),
         .inject = random_weight(m, random, dtype, 4, 4 * H),
         .norm = random.normals(4 * H, 0.1f),
         .w = {}};
  c.w = {m.f32({4 * H}, c.norm), c.down.w, c.up.w, c.inject.w};
  return c;
}
struct Result {
  std::vector<float> h, inj;
};
Result run(Machine& m, const Case& c, const std::vector<float>& x, int64_t n_decode) {
  const auto rows = static_cast<int64_t>(x.size()) / (4 * c.H);
  const Tensor h = m.zeros(DType::F32, {rows, c.H}), inj = m.zeros(DType::F32, {rows, 4});
  hc_mix(m.s, h, inj, m.f32({rows, 4 * c.H}, x), c.w, 4, 1e-6f, n_decode);
  return {m.read(h), m.read(inj)};
}

TEST_P(HyperConnectionTest, matches_double_precision) {
  Machine m(GetParam());
  Random random(1);
  for (const auto& [H, R] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 32}, {16, 8}, {37, 5}, {2560, 320}})
    for (const int64_t rows : {1, 2, 7, 97}) {
      if (H == 2560 && rows > 2) continue;
      const Case c = make(m, random, H, R);
      const auto x = random.normals(rows * 4 * H, 2);
      const auto expected = reference::hc_mix(doubles(x), doubles(c.norm), c.down.values, c.up.values,
                                              c.inject.values, rows, 4, H, R, 1e-6);
      for (const int64_t n_decode : {int64_t{0}, rows}) {
        const Result got = run(m, c, x, n_decode);
        EXPECT_LT(relative_error(got.h, expected.h), tolerance())
            << "h: " << rows << " rows, H " << H << ", R " << R;
        EXPECT_LT(relative_error(got.inj, expected.inj), tolerance()) << "inj: " << rows << " rows, H " << H;
      }
    }
}

TEST_P(HyperConnectionTest, the_final_mixer_has_no_inject) {
  Machine m(GetParam());
  Random random(2);
  Case c = make(m, random, 256, 32);
  const auto x = random.normals(3 * 1024);
  const Result with = run(m, c, x, 3);
  c.w.inject = {};
  const Tensor h = m.zeros(DType::F32, {3, 256});
  hc_mix(m.s, h, {}, m.f32({3, 1024}, x), c.w, 4, 1e-6f, 3);
  EXPECT_EQ(difference(m.read(h), with.h), "");
}

TEST_P(HyperConnectionTest, a_row_does_not_depend_on_its_neighbours) {
  Machine m(GetParam());
  Random random(3);
  const Case c = make(m, random, 256, 32);
  const int64_t rows = 201;
  const auto x = random.normals(rows * 1024);
  for (const bool decode : {true, false}) {
    const Result whole = run(m, c, x, decode ? rows : 0);
    for (const int64_t t : {0, 95, 96, 97, 200}) {
      const Result one = run(m, c, {x.begin() + t * 1024, x.begin() + (t + 1) * 1024}, decode ? 1 : 0);
      ASSERT_EQ(difference(one.h, {whole.h.begin() + t * 256, whole.h.begin() + (t + 1) * 256}), "")
          << "row " << t;
      ASSERT_EQ(difference(one.inj, {whole.inj.begin() + t * 4, whole.inj.begin() + (t + 1) * 4}), "")
          << "row " << t;
    }
  }
}

}  // namespace
}  // namespace quern::test

#include "ops/norm.h"

#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class NormTest : public OpTest {};
ON_EVERY_DEVICE(NormTest);

TEST_P(NormTest, matches_double_precision) {
  Machine m(GetParam());
  Random random(1);
  for (const int64_t rows : {1, 3, 17})
    for (const int groups : {1, 4})
      for (const int64_t d : {1, 7, 8, 31, 64, 127, 256, 2560}) {
        const auto x = random.normals(rows * groups * d, 3), w = random.normals(groups * d, 0.2f);
        const Tensor y = m.zeros(DType::F32, {rows, groups * d});
        rms_norm(m.s, y, m.f32({rows, groups * d}, x), m.f32({groups * d}, w), groups, 1e-6f);
        const auto expected = reference::rms_norm(doubles(x), doubles(w), rows, groups, d, 1e-6);
        EXPECT_LT(relative_error(m.read(y), expected), 3e-7)
            << rows << " rows, " << groups << " groups of " << d;
      }
}

TEST_P(NormTest, works_in_place_on_a_column_slice) {
  Machine m(GetParam());
  Random random(2);
  const auto x = random.normals(5 * 100), w = random.normals(60);
  const Tensor whole = m.f32({5, 100}, x), slice = whole.slice_cols(10, 70);
  const std::vector<float> before = m.read(slice);
  rms_norm(m.s, slice, slice, m.f32({60}, w), 1, 1e-6f);
  EXPECT_LT(relative_error(m.read(slice), reference::rms_norm(doubles(before), doubles(w), 5, 1, 60, 1e-6)),
            3e-7);
  const std::vector<float> after = m.read(whole);
  for (size_t i = 0; i < after.size(); ++i) {
    const bool outside = i % 100 < 10 || i % 100 >= 70;
    if (outside) {
      ASSERT_EQ(after[i], x[i]) << "column " << i % 100 << " is outside the slice";
    }
  }
}

}  // namespace
}  // namespace quern::test

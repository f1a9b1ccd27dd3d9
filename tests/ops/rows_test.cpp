#include "ops/rows.h"

#include "ops/device_test.h"

namespace quern::test {
namespace {

class RowsTest : public OpTest {};
ON_EVERY_DEVICE(RowsTest);

TEST_P(RowsTest, gather_picks_the_named_rows) {
  Machine m(GetParam());
  Random random(1);
  for (const int64_t d : {1, 31, 256, 10240}) {
    const auto x = random.normals(7 * d);
    const std::vector<int32_t> index{6, 0, 3, 3};
    const Tensor y = m.zeros(DType::F32, {4, d});
    gather_rows(m.s, y, m.f32({7, d}, x), m.array(index));
    const auto got = m.read(y);
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t c = 0; c < d; ++c)
        ASSERT_EQ(got[static_cast<size_t>(i * d + c)],
                  x[static_cast<size_t>(index[static_cast<size_t>(i)] * d + c)])
            << "row " << i << " column " << c << " of " << d;
  }
}

TEST_P(RowsTest, a_stored_row_is_loaded_at_its_position_and_a_drafted_one_from_its_own_place) {
  Machine m(GetParam());
  Random random(2);
  const int64_t d = 96;
  const auto x = random.normals(20 * d), drafted = random.normals(3 * d), other = random.normals(6 * d);
  const Tensor ring = m.zeros(DType::F32, {2, kHiddenRing + 1, d});
  // Positions 5 to 24 of slot 1; the ring keeps 9 to 24.
  const TestBatch stored(m, {{.n_rows = 20, .position = 5, .slot = 1}});
  hidden_store(m.s, ring, m.f32({20, d}, x), stored.view);
  const TestBatch draft(m, {{.n_rows = 3, .position = 25, .slot = 1}});
  hidden_store_draft(m.s, ring, m.f32({3, d}, drafted), draft.view);
  const TestBatch loaded(m, {{.n_rows = 6, .position = 19, .slot = 1}});
  const std::vector<int32_t> source{2, kFromRing, kFromRing, kFromRing, kFromDraft, kFromRing};
  const Tensor y = m.zeros(DType::F32, {6, d});
  hidden_load(m.s, y, m.f32({6, d}, other), ring, m.array(source), loaded.view);
  const auto got = m.read(y);
  for (size_t i = 0; i < 6; ++i)
    for (size_t c = 0; c < 96; ++c) {
      const float expected = i == 0 ? other[2 * 96 + c] : i == 4 ? drafted[2 * 96 + c] : x[(14 + i) * 96 + c];
      ASSERT_EQ(got[i * 96 + c], expected) << "row " << i << " column " << c;
    }
}

}  // namespace
}  // namespace quern::test

#include "ops/advance.h"

#include "ops/device_test.h"

namespace quern::test {
namespace {

class AdvanceTest : public OpTest {};
ON_EVERY_DEVICE(AdvanceTest);

// What the host would build for the next step of the same sequences.
TEST_P(AdvanceTest, makes_the_batch_the_host_would_build) {
  Machine m(GetParam());
  const std::vector<int32_t> a{5, 6, 7, 8, 9}, b{40, 41, 42};
  const auto batch = [&](int32_t pa, int32_t pb, int32_t pending) {
    return TestBatch(
        m, {{.n_rows = 1, .position = pa, .slot = 1, .role = Role::Decode, .n_pending = pending, .ids = a},
            {.n_rows = 1, .position = pb, .slot = 0, .role = Role::Decode, .n_pending = pending, .ids = b}});
  };
  const TestBatch now = batch(3, 1, 0), next = batch(4, 2, 1);
  const std::vector<SamplingRow> rows{{.position = 4}, {.position = 2}};
  auto* on_device = m.array(rows);
  advance(m.s, now.view, on_device, m.tensor(DType::I32, {2, 1}, std::vector<int32_t>{9, 42}));
  const auto ints = [&](const int32_t* p, int64_t n) {
    return m.read<int32_t>(Tensor(const_cast<int32_t*>(p), DType::I32, {n, 1}));
  };
  EXPECT_EQ(ints(now.view.ids, 2), ints(next.view.ids, 2));
  EXPECT_EQ(ints(now.view.windows, 6), ints(next.view.windows, 6));
  EXPECT_EQ(ints(now.view.positions, 2), ints(next.view.positions, 2));
  const auto segments = [&](const Segment* p) {
    return ints(reinterpret_cast<const int32_t*>(p), 2 * sizeof(Segment) / 4);
  };
  auto expected = segments(next.view.segments);
  EXPECT_EQ(segments(now.view.segments), expected);
  const auto after =
      m.read<uint8_t>(Tensor(on_device, DType::U8, {1, static_cast<int64_t>(2 * sizeof(SamplingRow))}));
  const auto* sampled = reinterpret_cast<const SamplingRow*>(after.data());
  EXPECT_EQ(sampled[0].position, 5);
  EXPECT_EQ(sampled[1].position, 3);
}

}  // namespace
}  // namespace quern::test

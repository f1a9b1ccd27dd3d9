#include "ops/sampling.h"

#include <map>
#include <set>

#include "ops/device_test.h"

namespace quern::test {
namespace {

class SamplingTest : public OpTest {};
ON_EVERY_DEVICE(SamplingTest);

std::vector<int32_t> run(Machine& m, const std::vector<float>& logits, const std::vector<SamplingRow>& rows) {
  const auto n = static_cast<int64_t>(rows.size()), V = static_cast<int64_t>(logits.size()) / n;
  const Tensor ids = m.zeros(DType::I32, {n, 1});
  sample(m.s, ids, m.f32({n, V}, logits), m.array(rows), n);
  return m.read<int32_t>(ids);
}
int32_t run(Machine& m, const std::vector<float>& logits, const SamplingRow& row) {
  return run(m, logits, std::vector<SamplingRow>{row})[0];
}

// The ids that survive the cuts, most likely first, with their probabilities; by full sort, in double.
std::vector<std::pair<int32_t, double>> survivors(const std::vector<double>& l, const SamplingRow& row) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < l.size(); ++i)
    if (l[i] > -HUGE_VAL) order.push_back(static_cast<int32_t>(i));
  const auto at = [&](int32_t i) { return l[static_cast<size_t>(i)] / static_cast<double>(row.temperature); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < order.size())
    order.resize(static_cast<size_t>(row.top_k));
  std::vector<std::pair<int32_t, double>> p;
  double sum = 0;
  for (const int32_t i : order) sum += std::exp(at(i) - at(order[0]));
  double reached = 0;
  for (const int32_t i : order) {
    if (!p.empty() && row.top_p < 1 && reached >= static_cast<double>(row.top_p)) break;
    p.emplace_back(i, std::exp(at(i) - at(order[0])) / sum);
    reached += p.back().second;
  }
  std::erase_if(p, [&](const auto& c) { return c.second < static_cast<double>(row.min_p) * p[0].second; });
  double kept = 0;
  for (const auto& c : p) kept += c.second;
  for (auto& c : p) c.second /= kept;
  return p;
}

TEST_P(SamplingTest, greedy_takes_the_first_of_the_largest) {
  Machine m(GetParam());
  Random random(1);
  for (const int64_t V : {1, 2, 7, 33, 1024, 4096, 50001, 248320}) {
    std::vector<float> l = random.normals(V);
    const auto top = static_cast<int32_t>(random.integer(0, V - 1));
    l[static_cast<size_t>(top)] = 9;
    for (int64_t i = top; i < V; i += 1 + V / 5) l[static_cast<size_t>(i)] = 9;
    EXPECT_EQ(run(m, l, SamplingRow{.temperature = 0}), top) << "V " << V;
  }
}

TEST_P(SamplingTest, a_bad_row_is_an_error_of_that_row_alone) {
  Machine m(GetParam());
  const float inf = HUGE_VALF;
  const std::vector<float> l{0,   1, 2,    3,    0,    NAN,  2, 3,    0,    1,
                             inf, 3, -inf, -inf, -inf, -inf, 5, -inf, -inf, -inf};
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingRow row{.temperature = temperature, .top_k = 1};
    const std::vector<int32_t> expected{3, -1, -1, -1, 0};
    EXPECT_EQ(run(m, l, {row, row, row, row, row}), expected) << "temperature " << temperature;
  }
}

TEST_P(SamplingTest, a_mask_hides_ids) {
  Machine m(GetParam());
  std::vector<float> l(70, 0.0f);
  l[69] = 5;
  l[33] = 4;
  uint32_t* all_but = m.array(std::vector<uint32_t>{~0u, ~0u, 0x1fu});
  uint32_t* none = m.array(std::vector<uint32_t>{0, 0, 0});
  EXPECT_EQ(run(m, l, SamplingRow{.temperature = 0, .mask = all_but}), 33);
  EXPECT_EQ(run(m, l, SamplingRow{.temperature = 1, .top_k = 1, .mask = all_but}), 33);
  EXPECT_EQ(run(m, l, SamplingRow{.temperature = 0, .mask = none}), -1);
  EXPECT_EQ(run(m, l, SamplingRow{.temperature = 1, .mask = none}), -1);
}

TEST_P(SamplingTest, penalties_and_bias_apply_in_the_documented_order) {
  Machine m(GetParam());
  // id 1: (3 + 1)/2 - 0.5 - 2·0.25 = 1; id 2: -1·2 = -2; id 3: in the prompt only: 2.2/2 = 1.1; id 0: 1.05
  const std::vector<float> l{1.05f, 3, -1, 2.2f, -9};
  SamplingRow row{.temperature = 0, .repetition = 2, .presence = 0.5f, .frequency = 0.25f};
  row.seen_ids = m.array(std::vector<int32_t>{1, 2, 3});
  row.seen_counts = m.array(std::vector<int32_t>{2, 0, 0});
  row.n_seen = 3;
  row.bias_ids = m.array(std::vector<int32_t>{1});
  row.bias = m.array(std::vector<float>{1});
  row.n_bias = 1;
  EXPECT_EQ(run(m, l, row), 3);
  row.bias = m.array(std::vector<float>{1.4f});  // (4.4)/2 - 1 = 1.2
  EXPECT_EQ(run(m, l, row), 1);
  row.frequency = 0.5f;  // 2.2 - 1.5 = 0.7
  EXPECT_EQ(run(m, l, row), 3);
  row.repetition = 1;  // id 3 keeps 2.2, id 1 has 4.4 - 1.5
  EXPECT_EQ(run(m, l, row), 1);
}

TEST_P(SamplingTest, only_survivors_of_the_cuts_are_drawn) {
  Machine m(GetParam());
  Random random(2);
  for (const int64_t V : {1, 5, 100, 4096}) {
    std::vector<float> l = random.normals(V, 2);
    if (V > 20) l[17] = l[3] = l[11] = 6;  // ties at the top
    for (const SamplingRow& cut :
         {SamplingRow{.top_k = 1}, SamplingRow{.top_k = 2}, SamplingRow{.top_k = 20},
          SamplingRow{.top_p = 0.5f}, SamplingRow{.top_p = 0.95f, .top_k = 20}, SamplingRow{.min_p = 0.1f},
          SamplingRow{.top_p = 0.0f},
          SamplingRow{.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.02f, .top_k = 50}}) {
      const auto allowed = survivors(doubles(l), cut);
      std::set<int32_t> ids, got;
      for (const auto& a : allowed) ids.insert(a.first);
      std::vector<SamplingRow> rows;
      std::vector<float> logits;
      for (int i = 0; i < 64; ++i) {
        SamplingRow row = cut;
        row.seed = 7;
        row.position = i;
        rows.push_back(row);
        logits.insert(logits.end(), l.begin(), l.end());
      }
      for (const int32_t id : run(m, logits, rows)) {
        ASSERT_TRUE(ids.contains(id))
            << "V " << V << ", top_k " << cut.top_k << ", top_p " << cut.top_p << ": id " << id;
        got.insert(id);
      }
      if (ids.size() <= 2) {
        EXPECT_EQ(got, ids) << "V " << V << ", top_k " << cut.top_k << ", top_p " << cut.top_p;
      }
    }
  }
}

TEST_P(SamplingTest, frequencies_are_the_probabilities) {
  Machine m(GetParam());
  Random random(3);
  const std::vector<float> l = random.normals(40, 1.5f);
  for (const SamplingRow& cut : {SamplingRow{}, SamplingRow{.temperature = 0.7f, .top_p = 0.8f},
                                 SamplingRow{.temperature = 2, .top_k = 7}}) {
    const int kDraws = 40000;
    std::map<int32_t, int> count;
    for (int block = 0; block < kDraws; block += 1000) {
      std::vector<SamplingRow> rows(1000, cut);
      std::vector<float> logits;
      for (int i = 0; i < 1000; ++i) {
        rows[static_cast<size_t>(i)].seed = 99;
        rows[static_cast<size_t>(i)].position = block + i;
        logits.insert(logits.end(), l.begin(), l.end());
      }
      for (const int32_t id : run(m, logits, rows)) ++count[id];
    }
    double chi = 0;
    const auto p = survivors(doubles(l), cut);
    for (const auto& [id, probability] : p) {
      const double e = probability * kDraws;
      chi += (count[id] - e) * (count[id] - e) / e;
    }
    // Chi square of n - 1 degrees: mean n - 1, deviation sqrt(2(n - 1)); five deviations.
    const double n = static_cast<double>(p.size()) - 1;
    EXPECT_LT(chi, n + 5 * std::sqrt(2 * n)) << p.size() << " survivors";
  }
}

TEST_P(SamplingTest, a_seed_gives_the_same_ids_whatever_runs_beside_it) {
  Machine m(GetParam());
  Random random(4);
  const int64_t V = 5000;
  std::vector<float> l = random.normals(3 * V, 2);
  const SamplingRow a{.top_p = 0.95f, .top_k = 20, .seed = 1, .position = 10}, b{.seed = 2, .position = 10},
      c{.temperature = 0};
  const auto together = run(m, l, {a, b, c});
  const auto row = [&](int64_t i) { return std::vector<float>(l.begin() + i * V, l.begin() + (i + 1) * V); };
  EXPECT_EQ(run(m, row(0), a), together[0]);
  EXPECT_EQ(run(m, row(1), b), together[1]);
  EXPECT_EQ(run(m, row(2), c), together[2]);
  std::set<int32_t> by_seed;
  for (uint64_t seed = 0; seed < 40; ++seed)
    by_seed.insert(run(m, row(1), SamplingRow{.seed = seed, .position = 10}));
  EXPECT_GT(by_seed.size(), 5u) << "seeds draw different ids";
}

TEST_P(SamplingTest, a_whole_vocabulary_draws_the_argmax_of_noisy_logits) {
  Machine m(GetParam());
  Random random(5);
  const int64_t V = 248320;
  const std::vector<float> l = random.normals(V, 2);
  for (int64_t position = 0; position < 20; ++position) {
    const uint64_t key = scalar::noise_key(42, position);
    int32_t best = 0;
    double top = -HUGE_VAL, second = -HUGE_VAL;
    for (int64_t i = 0; i < V; ++i) {
      const double v =
          (static_cast<double>(scalar::noise_bits(key, static_cast<int32_t>(i))) + 0.5) * 0x1p-32;
      const double noisy = l[static_cast<size_t>(i)] - std::log(-std::log1p(-v));
      if (noisy > top) {
        second = top;
        top = noisy;
        best = static_cast<int32_t>(i);
      } else if (noisy > second) {
        second = noisy;
      }
    }
    if (top - second < 1e-4) continue;  // too close for single precision
    EXPECT_EQ(run(m, l, SamplingRow{.seed = 42, .position = position}), best) << "position " << position;
  }
}

TEST_P(SamplingTest, a_top_k_draws_the_argmax_of_its_noisy_logits) {
  Machine m(GetParam());
  Random random(6);
  const int64_t V = 50001;
  // Ids below `crowd` are far likelier than the others: they are all candidates, more than a block or a warp takes.
  for (const int64_t crowd : {0, 40, 300, 380, 3000}) {
    std::vector<float> l = random.normals(V, 2);
    for (int64_t i = 0; i < crowd; ++i) l[static_cast<size_t>(i)] += 20;
    for (const int32_t k : {1, 2, 20, 31, 32, 33, 100, 128}) {
      for (const SamplingRow& cut : {SamplingRow{.top_k = k}, SamplingRow{.top_p = 0.8f, .top_k = k},
                                     SamplingRow{.top_p = 0.95f, .min_p = 0.05f, .top_k = k}}) {
        const auto allowed = survivors(doubles(l), cut);
        std::vector<SamplingRow> rows;
        std::vector<float> logits;
        for (int position = 0; position < 4; ++position) {
          rows.push_back(cut);
          rows.back().seed = 42;
          rows.back().position = position;
          logits.insert(logits.end(), l.begin(), l.end());
        }
        const auto got = run(m, logits, rows);
        for (int position = 0; position < 4; ++position) {
          const uint64_t key = scalar::noise_key(42, position);
          int32_t best = -1;
          double top = -HUGE_VAL, second = -HUGE_VAL;
          for (const auto& [id, probability] : allowed) {
            const double v = (static_cast<double>(scalar::noise_bits(key, id)) + 0.5) * 0x1p-32;
            const double noisy = l[static_cast<size_t>(id)] - std::log(-std::log1p(-v));
            second = std::max(second, std::min(top, noisy));
            if (noisy > top) best = id;
            top = std::max(top, noisy);
          }
          if (top - second < 1e-4) continue;  // too close for single precision
          ASSERT_EQ(got[static_cast<size_t>(position)], best)
              << "crowd " << crowd << ", top_k " << k << ", top_p " << cut.top_p << ", position " << position;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quern::test

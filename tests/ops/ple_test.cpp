#include "ops/ple.h"

#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class PleTest : public OpTest {
 protected:
  double tolerance() const { return on_cpu() ? 1e-6 : 2e-6; }
};
ON_EVERY_DEVICE(PleTest);

constexpr float kEps = 1e-6f;
constexpr int32_t kEos = 4000;

NgramHash hash_of(Random& random, int64_t rows) {
  NgramHash h;
  for (auto& a : h.multiplier) a = (random.integer(int64_t{1} << 40, int64_t{1} << 51)) * 2 + 1;
  const int64_t primes[] = {97, 101, 103, 107, 109, 113, 127, 131};
  int64_t offset = 0;
  for (int i = 0; i < 16; ++i) {
    h.vocab.push_back(primes[i % 8]);
    h.offset.push_back(offset);
    offset += primes[i % 8];
  }
  QUERN_CHECK(offset <= rows, "test table too small");
  h.eos = kEos;
  return h;
}

TEST_P(PleTest, rows_are_those_of_the_formula) {
  Machine m(GetParam());
  Random random(1);
  const int64_t table_rows = 1800, d = 16;
  const NgramHash hash = hash_of(random, table_rows);
  const TestWeight table = random_weight(m, random, DType::BF16, table_rows, d);
  // Several documents: eos at the start, twice in a row, and near the end.
  std::vector<int32_t> ids;
  for (int i = 0; i < 60; ++i) ids.push_back(static_cast<int32_t>(random.integer(0, 4095)));
  for (const size_t i : {0u, 7u, 20u, 21u, 40u, 42u, 58u}) ids[i] = kEos;
  for (const int64_t parts : {1, 4}) {
    PleTable t{.parts = {}, .rows_per_part = (table_rows + parts - 1) / parts, .d_row = d};
    for (int64_t i = 0; i < parts; ++i)
      t.parts.push_back(
          table.w.slice_rows(i * t.rows_per_part, std::min(table_rows, (i + 1) * t.rows_per_part)));
    const TestBatch batch(m, {{.n_rows = 1, .position = 59, .role = Role::Decode, .ids = ids},
                              {.n_rows = 60, .position = 0, .ids = ids},
                              {.n_rows = 11, .position = 20, .ids = ids}});
    const Tensor emb = m.zeros(DType::F32, {72, 16 * d});
    ple_rows(m.s, emb, batch.view, hash, t);
    const auto got = m.read(emb);
    for (int64_t r = 0; r < 72; ++r) {
      const int64_t at = r == 0 ? 59 : r < 61 ? r - 1 : r - 61 + 20;
      const auto rows = reference::ngram_rows(ids, at, {hash.multiplier.begin(), hash.multiplier.end()},
                                              hash.vocab, hash.offset, kEos);
      for (size_t h = 0; h < 16; ++h)
        for (int64_t i = 0; i < d; ++i)
          ASSERT_EQ(got[static_cast<size_t>(r * 16 * d) + h * 16 + static_cast<size_t>(i)],
                    static_cast<float>(table.values[static_cast<size_t>(rows[h] * d + i)]))
              << parts << " parts, token " << at << " (id " << ids[static_cast<size_t>(at)] << "), head "
              << h;
    }
  }
}

TEST_P(PleTest, rows_of_every_length_and_alignment) {
  Machine m(GetParam());
  Random random(5);
  const int64_t table_rows = 1800;
  const NgramHash hash = hash_of(random, table_rows);
  std::vector<int32_t> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(static_cast<int32_t>(random.integer(0, 4095)));
  // In bytes 2, 34, 170, 500, 512, 1020 and 1024: less than 16, odd multiples of 2, and the most there may be.
  for (const auto& [dtype, d] : std::vector<std::pair<DType, int64_t>>{{DType::F8E4M3, 2},
                                                                       {DType::Q8_0, 32},
                                                                       {DType::Q8_0, 160},
                                                                       {DType::BF16, 250},
                                                                       {DType::BF16, 256},
                                                                       {DType::Q8_0, 960},
                                                                       {DType::F32, 256}}) {
    const TestWeight table = random_weight(m, random, dtype, table_rows, d);
    const PleTable t{.parts = {table.w}, .rows_per_part = table_rows, .d_row = d};
    const TestBatch batch(m, {{.n_rows = 20, .position = 0, .ids = ids}});
    const Tensor emb = m.zeros(DType::F32, {20, 16 * d});
    ple_rows(m.s, emb, batch.view, hash, t);
    const auto got = m.read(emb);
    for (int64_t at = 0; at < 20; ++at) {
      const auto rows = reference::ngram_rows(ids, at, {hash.multiplier.begin(), hash.multiplier.end()},
                                              hash.vocab, hash.offset, kEos);
      for (size_t h = 0; h < 16; ++h)
        for (int64_t i = 0; i < d; ++i)
          ASSERT_EQ(got[static_cast<size_t>((at * 16 + static_cast<int64_t>(h)) * d + i)],
                    static_cast<float>(table.values[static_cast<size_t>(rows[h] * d + i)]))
              << name(dtype) << ", d " << d << ", token " << at << ", head " << h << ", value " << i;
    }
  }
}

TEST_P(PleTest, the_current_eos_does_not_cut_its_own_context) {
  const int64_t a[3] = {3, 5, 7};
  const int32_t window[3] = {kEos, 11, 12}, cut[3] = {kEos, kEos, kEos};
  const auto row = [&](const int32_t* w, int h) { return scalar::ngram_row(w, a, 1000003, 0, h, 2, kEos); };
  EXPECT_EQ(row(window, 0), (kEos * 3 ^ 11 * 5) % 1000003);
  EXPECT_EQ(row(window, 1), (kEos * 3 ^ 11 * 5 ^ 12 * 7) % 1000003);
  EXPECT_NE(row(window, 0), row(cut, 0));
  const int32_t eos_before[3] = {9, kEos, 12};  // a previous eos hides what lies before it, not itself
  EXPECT_EQ(row(eos_before, 1), (9 * 3 ^ kEos * 5 ^ kEos * 7) % 1000003);
}

struct Case {
  int64_t rows, S, H;
  std::vector<float> x, key, value, norm_key, norm_query, norm_conv, conv;
};
Case make(Random& random, int64_t rows, int64_t S, int64_t H) {
  return {rows,
          S,
          H,
          random.normals(rows * S * H, 2),
          random.normals(rows * S * H),
          random.normals(rows * H),
          random.normals(S * H, 0.2f),
          random.normals(S * H, 0.2f),
          random.normals(S * H, 0.2f),
          random.normals(S * H * 4, 0.5f)};
}
std::vector<double> expected(const Case& c) {
  return reference::ple_add(doubles(c.x), doubles(c.key), doubles(c.value), doubles(c.norm_key),
                            doubles(c.norm_query), doubles(c.norm_conv), doubles(c.conv), c.rows, c.S, c.H,
                            kEps);
}

class Runner {
 public:
  Runner(Machine& m, const Case& c, int64_t slots) : m_(m), c_(c) {
    const int64_t W = c.S * c.H;
    w_ = {m.f32({W}, c.norm_key), m.f32({W}, c.norm_query), m.f32({W}, c.norm_conv), m.f32({W, 4}, c.conv)};
    ring_ = m.f32({slots, kPleRing, W}, std::vector<float>(static_cast<size_t>(slots * kPleRing * W), NAN));
  }
  std::vector<float> step(const std::vector<Part>& parts) {
    std::vector<float> x, key, value;
    const int64_t W = c_.S * c_.H;
    for (const Part& p : parts) {
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
        to.insert(to.end(), from.begin() + p.position * width,
                  from.begin() + (p.position + p.n_rows) * width);
      };
      add(x, c_.x, W);
      add(key, c_.key, W);
      add(value, c_.value, c_.H);
    }
    const TestBatch batch(m_, parts);
    const int64_t rows = batch.view.n_rows;
    const Tensor xt = m_.f32({rows, W}, x);
    ple_add(m_.s, xt, m_.f32({rows, W}, key), m_.f32({rows, c_.H}, value), w_, ring_, batch.view,
            static_cast<int>(c_.S), kEps);
    return m_.read(xt);
  }

 private:
  Machine& m_;
  const Case& c_;
  PleWeights w_;
  Tensor ring_;
};

TEST_P(PleTest, add_matches_double_precision) {
  Machine m(GetParam());
  Random random(2);
  for (const auto& [S, H] : std::vector<std::pair<int64_t, int64_t>>{{4, 256}, {1, 1}, {3, 37}, {4, 2560}})
    for (const int64_t rows : {1, 2, 10, 33}) {
      const Case c = make(random, rows, S, H);
      Runner r(m, c, 1);
      EXPECT_LT(relative_error(r.step({{.n_rows = static_cast<int32_t>(rows), .position = 0}}), expected(c)),
                tolerance())
          << rows << " rows, S " << S << ", H " << H;
    }
}

TEST_P(PleTest, a_tiny_gate_is_clamped) {
  Machine m(GetParam());
  Random random(3);
  Case c = make(random, 6, 4, 64);
  // Key and query orthogonal but for a trace: |g| far below 1e-6, of either sign, and exactly 0.
  std::fill(c.norm_key.begin(), c.norm_key.end(), 0.0f);
  std::fill(c.norm_query.begin(), c.norm_query.end(), 0.0f);
  for (int64_t t = 0; t < 6; ++t)
    for (int64_t s = 0; s < 4; ++s)
      for (int64_t i = 0; i < 64; ++i) {
        const auto e = static_cast<size_t>((t * 4 + s) * 64 + i);
        const float trace = s == 0 ? 0.0f : s == 1 ? 0x1p-24f : -0x1p-24f;
        c.key[e] = i < 32 ? 1.0f : 0.0f;
        c.x[e] = i < 32 ? (i == 0 ? trace : 0.0f) : 1.0f;
      }
  Runner r(m, c, 1);
  const auto want = expected(c);
  EXPECT_LT(relative_error(r.step({{.n_rows = 6, .position = 0}}), want), tolerance());
  // The clamp is what makes the sign visible: streams 1 and 2 differ by sigmoid(±1e-3).
  EXPECT_GT(std::abs(want[1 * 64 + 40] - want[2 * 64 + 40]), 1e-5);
}

TEST_P(PleTest, chunks_and_drafts_equal_the_whole) {
  Machine m(GetParam());
  Random random(4);
  const Case c = make(random, 90, 4, 64);
  Runner whole(m, c, 1);
  const auto y = whole.step({{.n_rows = 90, .position = 0}});
  const int64_t W = 256;
  for (int round = 0; round < 4; ++round) {
    Runner r(m, c, 2);
    std::vector<float> got;
    for (int64_t at = 0; at < 90;) {
      const int64_t n = std::min<int64_t>(90 - at, round == 0 ? 1 : random.integer(1, 40));
      const auto part =
          r.step({{.n_rows = static_cast<int32_t>(n), .position = static_cast<int32_t>(at), .slot = 1}});
      got.insert(got.end(), part.begin(), part.end());
      at += n;
    }
    ASSERT_EQ(difference(got, y), "") << "round " << round;
  }
  for (int32_t accepted = 1; accepted <= kMaxDrafts + 1; ++accepted) {
    Case drafted = c;
    Runner r(m, drafted, 1);
    r.step({{.n_rows = 12, .position = 0}});
    for (int32_t t = 12; t + kMaxDrafts + 1 <= 90; t += accepted) {
      drafted.value = c.value;
      for (auto i = static_cast<size_t>((t + accepted) * c.H); i < drafted.value.size(); ++i)
        drafted.value[i] += 1;
      const auto got = r.step({{.n_rows = kMaxDrafts + 1, .position = t, .role = Role::Decode}});
      ASSERT_EQ(difference(std::vector<float>(got.begin(), got.begin() + accepted * W),
                           std::vector<float>(y.begin() + t * W, y.begin() + (t + accepted) * W)),
                "")
          << accepted << " accepted at " << t;
    }
  }
}

TEST_P(PleTest, decode_rows_beside_a_prompt_equal_the_whole) {
  Machine m(GetParam());
  Random random(6);
  const Case c = make(random, 90, 4, 64);
  Runner whole(m, c, 1);
  const auto y = whole.step({{.n_rows = 90, .position = 0}});
  const int64_t W = 256;
  Runner r(m, c, 2);
  r.step({{.n_rows = 13, .position = 0, .slot = 1}});
  int32_t decoded = 13, prompt = 0;
  for (const int32_t rows : {1, 9, 2, 9, 4}) {
    const int32_t chunk = rows == 1 ? 3 : 5 * rows - 6;  // shorter and longer than the ring
    const auto got = r.step({{.n_rows = rows, .position = decoded, .slot = 1, .role = Role::Decode},
                             {.n_rows = chunk, .position = prompt, .slot = 0}});
    std::vector<float> want(y.begin() + decoded * W, y.begin() + (decoded + rows) * W);
    want.insert(want.end(), y.begin() + prompt * W, y.begin() + (prompt + chunk) * W);
    ASSERT_EQ(difference(got, want), "") << rows << " rows at " << decoded << ", a prompt's at " << prompt;
    decoded += rows;
    prompt += chunk;
    if (prompt > 45) prompt = 0;
  }
}

}  // namespace
}  // namespace quern::test

#include "ops/moe.h"

#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class MoeTest : public OpTest {
 protected:
  // On CUDA the intermediate of an expert is rounded to BF16.
  double tolerance() const { return on_cpu() ? 1e-6 : 4e-3; }
};
ON_EVERY_DEVICE(MoeTest);

struct Case {
  int64_t H, I, E;
  int K;
  TestWeight router, shared_gate, shared_up, shared_down, shared_expert_gate;
  std::vector<TestWeight> gate, up, down;
  MoeWeights w;
};

// E matrices as the device takes them: views on the CPU, one rank-3 piece on CUDA.
ExpertWeights experts(Machine& m, Random& random, DType dtype, int64_t E, int64_t n, int64_t k,
                      std::vector<TestWeight>& out) {
  ExpertWeights w;
  w.n_experts = E;
  w.n = n;
  w.k = k;
  for (int64_t e = 0; e < E; ++e) {
    TestWeight& t = out.emplace_back(random_weight(m, random, dtype, n, k));
    if (dtype != DType::F4E2M1) continue;
    t.w.global_scale *= static_cast<float>(1 << e % 3);  // each expert has its own
    for (double& v : t.values) v *= 1 << e % 3;
  }
  if (m.is_cpu()) {
    for (const TestWeight& t : out) w.items.push_back(t.w);
    return w;
  }
  const auto pack = [&](const auto& part) {
    const Tensor first = part(out[0].w), all = m.zeros(first.dtype, {E, first.shape[0], first.shape[1]});
    for (int64_t e = 0; e < E; ++e)
      m.s.copy(all.data + e * first.bytes(), part(out[static_cast<size_t>(e)].w).data, first.bytes());
    return all;
  };
  w.packed.data = pack([](const Weight& x) { return x.data; });
  if (out[0].w.scale) w.packed.scale = pack([](const Weight& x) { return x.scale; });
  if (dtype == DType::F4E2M1) {
    std::vector<float> scales;
    for (const TestWeight& t : out) scales.push_back(t.w.global_scale);
    w.global_scales = m.f32({E}, scales);
  }
  return w;
}

Case make(Machine& m, Random& random, int64_t H, int64_t I, int64_t E, int K, DType dtype = DType::BF16,
          int64_t shared_I = 0, DType shared = DType::BF16) {
  if (shared_I == 0) shared_I = I;
  Case c{.H = H,
         .I = I,
         .E = E,
         .K = K,
         .router = random_weight(m, random, DType::BF16, E, H),
         .shared_gate = random_weight(m, random, shared, shared_I, H),
         .shared_up = random_weight(m, random, shared, shared_I, H),
         .shared_down = random_weight(m, random, shared, H, shared_I),
         .shared_expert_gate = random_weight(m, random, DType::BF16, 1, H),
         .gate = {},
         .up = {},
         .down = {},
         .w = {}};
  c.w.router = c.router.w;
  c.w.gate = experts(m, random, dtype, E, I, H, c.gate);
  c.w.up = experts(m, random, dtype, E, I, H, c.up);
  c.w.down = experts(m, random, dtype, E, H, I, c.down);
  c.w.shared_gate = c.shared_gate.w;
  c.w.shared_up = c.shared_up.w;
  c.w.shared_down = c.shared_down.w;
  c.w.shared_expert_gate = c.shared_expert_gate.w;
  c.w.top_k = K;
  return c;
}

struct Result {
  std::vector<int32_t> ids;
  std::vector<float> p, x, y;
};
Result run(Machine& m, const Case& c, const std::vector<float>& h, const std::vector<float>& x,
           const std::vector<float>& inj, int64_t n_decode) {
  const auto rows = static_cast<int64_t>(h.size()) / c.H, S = static_cast<int64_t>(inj.size()) / rows;
  const Tensor ids = m.zeros(DType::I32, {rows, c.K}), p = m.zeros(DType::F32, {rows, c.K});
  const Tensor ht = m.f32({rows, c.H}, h), xt = m.f32({rows, S * c.H}, x),
               y = m.zeros(DType::F32, {rows, c.H});
  moe_route(m.s, ids, p, ht, c.w, n_decode);
  const Tensor injt = m.f32({rows, S}, inj);
  moe(m.s, xt, injt, ht, ids, p, c.w, n_decode, y);
  const Result r{m.read<int32_t>(ids), m.read(p), m.read(xt), m.read(y)};
  const Tensor ids2 = m.zeros(DType::I32, {rows, c.K}), p2 = m.zeros(DType::F32, {rows, c.K}),
               x2 = m.f32({rows, S * c.H}, x), y2 = m.zeros(DType::F32, {rows, c.H});
  moe_routed(m.s, x2, injt, ht, ids2, p2, c.w, n_decode, y2);
  EXPECT_EQ(m.read<int32_t>(ids2), r.ids) << "moe_routed";
  EXPECT_EQ(m.read(p2), r.p) << "moe_routed";
  EXPECT_EQ(m.read(x2), r.x) << "moe_routed";
  EXPECT_EQ(m.read(y2), r.y) << "moe_routed";
  return r;
}

void expect_matches(const Case& c, const Result& got, const std::vector<float>& h,
                    const std::vector<float>& x, const std::vector<float>& inj, double tolerance) {
  const auto rows = static_cast<int64_t>(h.size()) / c.H, S = static_cast<int64_t>(inj.size()) / rows;
  const auto hd = doubles(h);
  const auto logits = reference::linear(hd, c.router.values, rows, c.E, c.H);
  std::vector<double> y(h.size()), out = doubles(x);
  for (int64_t t = 0; t < rows; ++t) {
    const auto route = reference::route(&logits[static_cast<size_t>(t * c.E)], c.E, c.K, c.w.renormalise);
    for (int j = 0; j < c.K; ++j) {
      ASSERT_EQ(got.ids[static_cast<size_t>(t * c.K + j)], route.ids[static_cast<size_t>(j)])
          << "row " << t << " choice " << j;
      ASSERT_NEAR(got.p[static_cast<size_t>(t * c.K + j)], route.p[static_cast<size_t>(j)], 1e-6);
      const auto e = static_cast<size_t>(route.ids[static_cast<size_t>(j)]);
      const auto r = reference::expert(&hd[static_cast<size_t>(t * c.H)], c.gate[e].values, c.up[e].values,
                                       c.down[e].values, c.I, c.H);
      for (int64_t i = 0; i < c.H; ++i)
        y[static_cast<size_t>(t * c.H + i)] += route.p[static_cast<size_t>(j)] * r[static_cast<size_t>(i)];
    }
    const auto r = reference::expert(&hd[static_cast<size_t>(t * c.H)], c.shared_gate.values,
                                     c.shared_up.values, c.shared_down.values, c.shared_gate.w.n(), c.H);
    const std::vector<double> row(hd.begin() + t * c.H, hd.begin() + (t + 1) * c.H);
    const double gate = reference::sigmoid(reference::linear(row, c.shared_expert_gate.values, 1, 1, c.H)[0]);
    for (int64_t i = 0; i < c.H; ++i) y[static_cast<size_t>(t * c.H + i)] += gate * r[static_cast<size_t>(i)];
    for (int64_t s = 0; s < S; ++s)
      for (int64_t i = 0; i < c.H; ++i)
        out[static_cast<size_t>((t * S + s) * c.H + i)] +=
            inj[static_cast<size_t>(t * S + s)] * y[static_cast<size_t>(t * c.H + i)];
  }
  EXPECT_LT(relative_error(got.y, y), tolerance) << rows << " rows, H " << c.H << ", I " << c.I;
  EXPECT_LT(relative_error(got.x, out), tolerance) << rows << " rows, H " << c.H << ", I " << c.I;
}

TEST_P(MoeTest, matches_double_precision) {
  Machine m(GetParam());
  Random random(1);
  struct Size {
    int64_t H, I, E;
    int K;
    int64_t shared;
  };
  for (const Size& z : {Size{256, 96, 16, 4, 96}, Size{32, 16, 8, 1, 48}, Size{64, 32, 5, 5, 32},
                        Size{2560, 640, 12, 10, 640}})
    for (const int64_t rows : {1, 2, 9, 40}) {
      if (z.H == 2560 && rows > 1) continue;
      Case c = make(m, random, z.H, z.I, z.E, z.K, DType::BF16, z.shared);
      c.w.renormalise = rows != 9;
      const auto h = random.normals(rows * z.H), x = random.normals(rows * 4 * z.H),
                 inj = random.normals(rows * 4);
      for (const int64_t n_decode : {int64_t{0}, rows / 2, rows})
        expect_matches(c, run(m, c, h, x, inj, n_decode), h, x, inj, tolerance());
    }
}

// Rows and intermediates are rounded to 8 bits per 32 values on the way into quantised experts. The reference
// rounds its own double intermediate, so where an f32 one lies beside a tie their codes may differ by one:
// 1e-3, not 1e-6.
TEST_P(MoeTest, quantised_experts_match_a_reference_that_rounds_as_they_do) {
  if (!on_cpu()) GTEST_SKIP() << "only the CPU rounds rows to 8 bits";
  Machine m(GetParam());
  Random random(5);
  for (const DType dtype : {DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::MXFP4})
    for (const int64_t rows : {1, 7, 40}) {
      const int64_t H = 256, I = 96, E = 6, K = 3;
      const Case c = make(m, random, H, I, E, K, dtype);
      const auto h = random.normals(rows * H), x = random.normals(rows * H);
      const Result got = run(m, c, h, x, std::vector<float>(static_cast<size_t>(rows), 0.0f), 0);
      const auto hr = reference::round_to_int8(doubles(h), rows, H).values;
      std::vector<double> y(h.size());
      for (int64_t t = 0; t < rows; ++t) {
        const auto row = [&](const std::vector<double>& v) {
          return std::vector<double>(v.begin() + t * H, v.begin() + (t + 1) * H);
        };
        const auto expert = [&](const std::vector<double>& in, const TestWeight& gate, const TestWeight& up,
                                const TestWeight& down, bool rounds) {
          auto a = reference::linear(in, gate.values, 1, I, H);
          const auto u = reference::linear(in, up.values, 1, I, H);
          for (size_t i = 0; i < a.size(); ++i) a[i] = reference::silu(a[i]) * u[i];
          if (rounds) a = reference::round_to_int8(a, 1, I).values;
          return reference::linear(a, down.values, 1, H, I);
        };
        for (int j = 0; j < K; ++j) {
          const auto e = static_cast<size_t>(got.ids[static_cast<size_t>(t * K + j)]);
          const auto r = expert(row(hr), c.gate[e], c.up[e], c.down[e], true);
          for (int64_t i = 0; i < H; ++i)
            y[static_cast<size_t>(t * H + i)] +=
                got.p[static_cast<size_t>(t * K + j)] * r[static_cast<size_t>(i)];
        }
        const auto in = row(doubles(h));
        const auto r = expert(in, c.shared_gate, c.shared_up, c.shared_down, false);
        const double gate =
            reference::sigmoid(reference::linear(in, c.shared_expert_gate.values, 1, 1, H)[0]);
        for (int64_t i = 0; i < H; ++i) y[static_cast<size_t>(t * H + i)] += gate * r[static_cast<size_t>(i)];
      }
      EXPECT_LT(relative_error(got.y, y), 1e-3) << name(dtype) << ", " << rows << " rows";
    }
}

// Every format experts come in, with scales of their own; prompts long enough that an expert has more rows than a tile.
TEST_P(MoeTest, matches_double_precision_in_quantised_experts) {
  Machine m(GetParam());
  Random random(7);
  for (const DType dtype : {DType::BF16, DType::F8E4M3, DType::F4E2M1, DType::Q4_K})
    for (const int64_t rows : {9, 700}) {
      if (on_cpu() && (dtype == DType::F4E2M1 || dtype == DType::Q4_K)) continue;  // rounds rows to 8 bits
      const Case c = make(m, random, 256, 256, 4, 2, dtype);
      const auto h = random.normals(rows * 256), x = random.normals(rows * 512),
                 inj = random.normals(rows * 2);
      SCOPED_TRACE(name(dtype));
      for (const int64_t n_decode : {int64_t{0}, int64_t{7}, int64_t{9}})
        expect_matches(c, run(m, c, h, x, inj, n_decode), h, x, inj, tolerance());
    }
}

// Decode rows of many experts, at the released widths and at short ones.
TEST_P(MoeTest, decode_rows_of_four_bit_experts_match_double_precision) {
  if (on_cpu()) GTEST_SKIP() << "rounds rows to 8 bits";
  Machine m(GetParam());
  Random random(8);
  struct Size {
    int64_t H, I, E;
    int K;
    DType shared;
  };
  for (const Size& z : {Size{256, 128, 61, 10, DType::F8E4M3}, Size{640, 384, 7, 3, DType::F8E4M3},
                        Size{256, 128, 24, 4, DType::BF16}, Size{2560, 640, 13, 2, DType::F8E4M3},
                        Size{1152, 256, 19, 11, DType::F8E4M3}})
    for (const int64_t rows : {1, 2, 9, 64}) {
      if (z.H == 2560 && rows == 64) continue;
      const Case c = make(m, random, z.H, z.I, z.E, z.K, DType::F4E2M1, 0, z.shared);
      const auto h = random.normals(rows * z.H), x = random.normals(rows * 4 * z.H),
                 inj = random.normals(rows * 4);
      expect_matches(c, run(m, c, h, x, inj, rows), h, x, inj, tolerance());
    }
}

TEST_P(MoeTest, equal_probabilities_go_to_the_lower_id) {
  Machine m(GetParam());
  Random random(2);
  Case c = make(m, random, 64, 32, 16, 4);
  // Experts 3, 5, 9, 12 and 14 have one router row: the same logit, above all others.
  std::vector<uint16_t> rows(16 * 64);
  for (size_t e = 0; e < 16; ++e)
    for (size_t i = 0; i < 64; ++i) {
      const bool equal = e == 3 || e == 5 || e == 9 || e == 12 || e == 14;
      rows[e * 64 + i] = scalar::f32_to_bf16(equal ? 0.5f : -0.25f);
    }
  c.w.router.data = m.tensor(DType::BF16, {16, 64}, rows);
  const Tensor ids = m.zeros(DType::I32, {2, 4}), p = m.zeros(DType::F32, {2, 4});
  moe_route(m.s, ids, p, m.f32({2, 64}, std::vector<float>(128, 1.0f)), c.w, 1);
  const std::vector<int32_t> expected{3, 5, 9, 12, 3, 5, 9, 12};
  EXPECT_EQ(m.read<int32_t>(ids), expected);
  for (const float v : m.read(p)) EXPECT_NEAR(v, 0.25f, 1e-7);
}

TEST_P(MoeTest, a_row_does_not_depend_on_its_neighbours) {
  Machine m(GetParam());
  Random random(3);
  struct Size {
    DType dtype;
    int64_t I, E;
    int K;
    DType shared = DType::BF16;
  };
  // Some 12 rows an expert; then a few of many experts; then rows of the intermediate that are whole steps of a format.
  for (const Size& z :
       {Size{DType::BF16, 96, 16, 4}, Size{DType::Q8_0, 96, 16, 4}, Size{DType::F8E4M3, 96, 16, 4},
        Size{DType::F4E2M1, 96, 16, 4}, Size{DType::Q4_K, 256, 16, 4}, Size{DType::NVFP4, 128, 16, 4},
        Size{DType::F4E2M1, 64, 61, 10}, Size{DType::F8E4M3, 64, 61, 10}, Size{DType::F4E2M1, 128, 16, 4},
        Size{DType::F4E2M1, 640, 12, 5}, Size{DType::F8E4M3, 640, 12, 5}, Size{DType::F4E2M1, 128, 61, 10},
        Size{DType::F4E2M1, 256, 9, 4, DType::F8E4M3}, Size{DType::F4E2M1, 128, 61, 10, DType::F8E4M3}}) {
    const int64_t rows = z.K <= 5 ? 45 : 64;
    const Case c = make(m, random, 256, z.I, z.E, z.K, z.dtype, 0, z.shared);
    const auto h = random.normals(rows * 256), x = random.normals(rows * 1024),
               inj = random.normals(rows * 4);
    for (const bool decode : {true, false}) {
      const Result whole = run(m, c, h, x, inj, decode ? rows : 0);
      for (const int64_t size : {1, 2, 9, 16}) {
        for (const int64_t t : {int64_t{0}, int64_t{13}, rows - size}) {
          const Result part = run(m, c, {h.begin() + t * 256, h.begin() + (t + size) * 256},
                                  {x.begin() + t * 1024, x.begin() + (t + size) * 1024},
                                  {inj.begin() + t * 4, inj.begin() + (t + size) * 4}, decode ? size : 0);
          ASSERT_EQ(difference(part.x, {whole.x.begin() + t * 1024, whole.x.begin() + (t + size) * 1024}), "")
              << name(z.dtype) << (decode ? " decode" : " prefill") << ", rows " << t << " to " << t + size;
        }
      }
    }
  }
}

TEST_P(MoeTest, a_prompt_row_does_not_depend_on_the_length_of_the_prompt) {
  Machine m(GetParam());
  Random random(6);
  const Case c = make(m, random, 256, 96, 4, 2, DType::F4E2M1);
  const int64_t rows = 1100;  // some 550 of an expert
  const auto h = random.normals(rows * 256), x = random.normals(rows * 1024), inj = random.normals(rows * 4);
  const Result whole = run(m, c, h, x, inj, 0);
  for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {100, 64}, {513, 300}}) {
    const Result part = run(m, c, {h.begin() + first * 256, h.begin() + (first + n) * 256},
                            {x.begin() + first * 1024, x.begin() + (first + n) * 1024},
                            {inj.begin() + first * 4, inj.begin() + (first + n) * 4}, 0);
    ASSERT_EQ(difference(part.x, {whole.x.begin() + first * 1024, whole.x.begin() + (first + n) * 1024}), "")
        << n << " rows from " << first;
  }
}

TEST_P(MoeTest, the_number_of_threads_changes_nothing) {
  if (!on_cpu()) GTEST_SKIP() << "threads are the CPU's";
  std::vector<Result> results;
  for (const int threads : {1, 2, 5}) {
    Machine m(GetParam(), threads);
    Random random(4);
    const Case c = make(m, random, 128, 64, 8, 3);
    results.push_back(run(m, c, random.normals(7 * 128), random.normals(7 * 512), random.normals(28), 3));
  }
  EXPECT_EQ(difference(results[0].x, results[1].x), "");
  EXPECT_EQ(difference(results[0].x, results[2].x), "");
}

}  // namespace
}  // namespace quern::test

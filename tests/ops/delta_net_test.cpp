#include "ops/delta_net.h"

#include "ops/device_test.h"
#include "reference.h"

namespace quern::test {
namespace {

class DeltaNetTest : public OpTest {
 protected:
  double tolerance() const { return on_cpu() ? 2e-6 : 1e-5; }
};
ON_EVERY_DEVICE(DeltaNetTest);

constexpr float kEps = 1e-6f;

// A sequence of inputs with weights; C channels, V = n_v·d_v.
struct Case {
  DeltaNetShape shape;
  int64_t rows, C, V;
  std::vector<float> qkv, z, a, b, conv, decay, dt_bias, norm;
};
Case make(Random& random, DeltaNetShape shape, int64_t rows) {
  Case c{.shape = shape,
         .rows = rows,
         .C = shape.conv_channels(),
         .V = shape.n_v * shape.d_v,
         .qkv = {},
         .z = {},
         .a = {},
         .b = {},
         .conv = {},
         .decay = {},
         .dt_bias = {},
         .norm = {}};
  c.qkv = random.normals(rows * c.C);
  c.z = random.normals(rows * c.V);
  c.a = random.normals(rows * shape.n_v);
  c.b = random.normals(rows * shape.n_v);
  c.conv = random.normals(c.C * 4, 0.5f);
  for (int i = 0; i < shape.n_v; ++i) c.decay.push_back(-std::exp(random.normal()));
  c.dt_bias = random.normals(shape.n_v);
  c.norm = random.normals(shape.d_v);
  return c;
}

std::vector<float> rows_of(const std::vector<float>& v, int64_t width, int64_t begin, int64_t end) {
  return {v.begin() + begin * width, v.begin() + end * width};
}

// Sequences of one shape running on one device, several slots.
class Runner {
 public:
  Runner(Machine& m, const Case& c, int64_t slots) : m_(m), c_(c) {
    w_ = {m.f32({c.C, 4}, c.conv), m.f32({c.shape.n_v}, c.decay), m.f32({c.shape.n_v}, c.dt_bias),
          m.f32({c.shape.d_v}, c.norm)};
    state = {m.zeros(DType::F32, {slots, c.shape.n_v, c.shape.d_k, c.shape.d_v}),
             m.zeros(DType::F32, {slots, kConvRing, c.C}),
             m.zeros(DType::F32, {slots, kMaxDrafts + 1, c.shape.pending_width()})};
    const std::vector<float> poison(static_cast<size_t>(state.ring.elements()), NAN);
    m.s.upload(state.ring.data, poison.data(), state.ring.bytes());
    m.s.synchronize();
  }
  // One step over parts of the case's sequence; y of all rows.
  std::vector<float> step(const std::vector<Part>& parts) {
    std::vector<float> qkv, z, a, b;
    for (const Part& p : parts) {
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
        const auto part = rows_of(from, width, p.position, p.position + p.n_rows);
        to.insert(to.end(), part.begin(), part.end());
      };
      add(qkv, c_.qkv, c_.C);
      add(z, c_.z, c_.V);
      add(a, c_.a, c_.shape.n_v);
      add(b, c_.b, c_.shape.n_v);
    }
    const TestBatch batch(m_, parts);
    const int64_t rows = batch.view.n_rows;
    const Tensor y = m_.zeros(DType::F32, {rows, c_.V});
    delta_net(m_.s, y, m_.f32({rows, c_.C}, qkv), m_.f32({rows, c_.V}, z), m_.f32({rows, c_.shape.n_v}, a),
              m_.f32({rows, c_.shape.n_v}, b), c_.shape, w_, state, batch.view, kEps);
    return m_.read(y);
  }
  std::vector<float> M(int64_t slot) {
    return m_.read(Tensor(state.M.as<float>() + slot * c_.shape.n_v * c_.shape.d_k * c_.shape.d_v, DType::F32,
                          {c_.shape.n_v * c_.shape.d_k, c_.shape.d_v}));
  }
  DeltaNetState state;

 private:
  Machine& m_;
  const Case& c_;
  DeltaNetWeights w_;
};

constexpr DeltaNetShape kTiny{.n_k = 2, .n_v = 6, .d_k = 128, .d_v = 128};

std::vector<double> expected(const Case& c) {
  const DeltaNetShape& s = c.shape;
  return reference::delta_net(
      doubles(c.qkv), doubles(c.z), doubles(c.a), doubles(c.b),
      {s.n_k, s.n_v, s.d_k, s.d_v, s.order == HeadOrder::Tiled, s.gate == GateType::Silu}, doubles(c.conv),
      doubles(c.decay), doubles(c.dt_bias), doubles(c.norm), c.rows, kEps);
}

TEST_P(DeltaNetTest, matches_double_precision) {
  Machine m(GetParam());
  Random random(1);
  for (const int64_t rows : {1, 3, 64, 67, 130}) {
    for (const auto order : {HeadOrder::Grouped, HeadOrder::Tiled}) {
      DeltaNetShape shape = kTiny;
      shape.order = order;
      shape.gate = rows % 2 ? GateType::Sigmoid : GateType::Silu;
      const Case c = make(random, shape, rows);
      Runner r(m, c, 2);
      EXPECT_LT(relative_error(r.step({{.n_rows = static_cast<int32_t>(rows), .position = 0, .slot = 1}}),
                               expected(c)),
                tolerance())
          << rows << " rows";
    }
  }
}

TEST_P(DeltaNetTest, matches_double_precision_at_odd_sizes) {
  if (!on_cpu()) GTEST_SKIP() << "on CUDA heads are 128 wide";
  Machine m(GetParam());
  Random random(2);
  for (const DeltaNetShape& shape : {DeltaNetShape{.n_k = 1, .n_v = 1, .d_k = 1, .d_v = 1},
                                     DeltaNetShape{.n_k = 3, .n_v = 3, .d_k = 5, .d_v = 7},
                                     DeltaNetShape{.n_k = 1, .n_v = 4, .d_k = 31, .d_v = 67}}) {
    const Case c = make(random, shape, 21);
    Runner r(m, c, 1);
    EXPECT_LT(relative_error(r.step({{.n_rows = 21, .position = 0, .slot = 0}}), expected(c)), tolerance())
        << "d_v " << shape.d_v;
  }
}

TEST_P(DeltaNetTest, small_keys_keep_the_epsilon_inside_the_root) {
  Machine m(GetParam());
  Random random(3);
  Case c = make(random, kTiny, 5);
  for (float& v : c.qkv)
    v = Random::bf16(v * 1e-3f);  // Σ k² is near 1e-6: x / max(|x|, eps) would differ by far
  Runner r(m, c, 1);
  EXPECT_LT(relative_error(r.step({{.n_rows = 5, .position = 0, .slot = 0}}), expected(c)), 5 * tolerance());
}

TEST_P(DeltaNetTest, any_chunks_equal_the_whole) {
  Machine m(GetParam());
  Random random(4);
  const Case c = make(random, kTiny, 200);
  Runner whole(m, c, 1);
  const auto y = whole.step({{.n_rows = 200, .position = 0, .slot = 0}});
  for (int round = 0; round < 4; ++round) {
    Runner r(m, c, 1);
    std::vector<float> got;
    std::string cuts;
    for (int64_t at = 0; at < 200;) {
      // On CUDA chunks are 64 positions at absolute multiples, so cuts fall there.
      const int64_t wanted = !on_cpu()    ? 64 * random.integer(1, 2)
                             : round == 0 ? 1
                             : round == 1 ? 64
                                          : random.integer(1, 70);
      const int64_t n = std::min<int64_t>(200 - at, wanted);
      const auto part =
          r.step({{.n_rows = static_cast<int32_t>(n), .position = static_cast<int32_t>(at), .slot = 0}});
      got.insert(got.end(), part.begin(), part.end());
      cuts += " " + std::to_string(n);
      at += n;
    }
    ASSERT_EQ(difference(got, y), "") << "chunks" << cuts;
    ASSERT_EQ(difference(r.M(0), whole.M(0)), "") << "M after chunks" << cuts;
  }
}

TEST_P(DeltaNetTest, a_batch_equals_each_alone) {
  Machine m(GetParam());
  Random random(5);
  const Case c = make(random, kTiny, 120);
  // Slots 0, 1, 2 first prefill 20, 50 and 0 rows of the same inputs; then one step mixes decode and prefill.
  const std::vector<Part> first{{.n_rows = 20, .position = 0, .slot = 0},
                                {.n_rows = 50, .position = 0, .slot = 1}};
  const std::vector<Part> mixed{{.n_rows = 3, .position = 20, .slot = 0, .role = Role::Decode},
                                {.n_rows = 1, .position = 50, .slot = 1, .role = Role::Decode},
                                {.n_rows = 77, .position = 0, .slot = 2}};
  Runner together(m, c, 3), apart(m, c, 3);
  auto a = together.step(first);
  auto b = together.step(mixed);
  a.insert(a.end(), b.begin(), b.end());
  std::vector<float> one;
  for (const auto& parts : {first, mixed})
    for (const Part& p : parts) {
      const auto y = apart.step({p});
      one.insert(one.end(), y.begin(), y.end());
    }
  EXPECT_EQ(difference(a, one), "");
  for (int64_t slot = 0; slot < 3; ++slot)
    EXPECT_EQ(difference(together.M(slot), apart.M(slot)), "") << "slot " << slot;
}

TEST_P(DeltaNetTest, any_accepted_count_equals_the_undrafted_run) {
  Machine m(GetParam());
  Random random(6);
  const Case c = make(random, kTiny, 40);
  Runner plain(m, c, 1);
  std::vector<float> y = plain.step({{.n_rows = 10, .position = 0, .slot = 0}});
  for (int32_t t = 10; t < 40; ++t) {
    const auto row =
        plain.step({{.n_rows = 1, .position = t, .slot = 0, .role = Role::Decode, .n_pending = t > 10}});
    y.insert(y.end(), row.begin(), row.end());
  }
  for (int32_t accepted = 1; accepted <= kMaxDrafts + 1; ++accepted) {
    for (const int32_t width : {accepted, kMaxDrafts + 1}) {
      // `width` rows run each step, of which `accepted` count; the rows of dropped drafts hold other inputs.
      Case drafted = c;
      Runner r(m, drafted, 1);
      r.step({{.n_rows = 10, .position = 0, .slot = 0}});
      int32_t pending = 0;
      for (int32_t t = 10; t + width <= 40; t += accepted) {
        drafted.qkv = c.qkv;
        for (auto i = static_cast<size_t>((t + accepted) * c.C); i < drafted.qkv.size(); ++i)
          drafted.qkv[i] = -drafted.qkv[i];
        const auto got =
            r.step({{.n_rows = width, .position = t, .slot = 0, .role = Role::Decode, .n_pending = pending}});
        pending = accepted;
        ASSERT_EQ(difference(rows_of(got, c.V, 0, accepted), rows_of(y, c.V, t, t + accepted)), "")
            << accepted << " of " << width << " rows accepted, at position " << t;
      }
    }
  }
}

TEST_P(DeltaNetTest, commit_replays_what_the_next_step_would) {
  Machine m(GetParam());
  Random random(7);
  const Case c = make(random, kTiny, 30);
  for (int32_t accepted = 0; accepted <= 5; ++accepted) {
    Runner a(m, c, 2), b(m, c, 2);
    for (Runner* r : {&a, &b}) {
      r->step({{.n_rows = 7, .position = 0, .slot = 1}});
      r->step({{.n_rows = 5, .position = 7, .slot = 1, .role = Role::Decode}});
    }
    delta_net_commit(m.s, c.shape, a.state, 1, accepted);
    const int32_t next = 7 + accepted;
    const auto ya = a.step({{.n_rows = 4, .position = next, .slot = 1}});
    const auto yb =
        b.step({{.n_rows = 4, .position = next, .slot = 1, .role = Role::Prefill, .n_pending = accepted}});
    EXPECT_EQ(difference(ya, yb), "") << accepted << " accepted";
    EXPECT_EQ(difference(a.M(1), b.M(1)), "") << accepted << " accepted";
  }
}

TEST_P(DeltaNetTest, the_number_of_threads_changes_nothing) {
  if (!on_cpu()) GTEST_SKIP() << "threads are the CPU's";
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    Machine m(GetParam(), threads);
    Random random(8);
    const Case c = make(random, kTiny, 33);
    Runner r(m, c, 1);
    results.push_back(r.step({{.n_rows = 33, .position = 0, .slot = 0}}));
  }
  EXPECT_EQ(difference(results[0], results[1]), "");
  EXPECT_EQ(difference(results[0], results[2]), "");
}

}  // namespace
}  // namespace quern::test

// The draft block against double precision over a whole sequence: its sparse selection (beyond 64 + 3 visible positions),
// its blocks on absolute multiples of 4 positions though its entries lie one later, and chains of drafts, which read the
// block's own wide rows. The reference's files hold 18 dense positions of it only.
#include <cmath>

#include "model/tiny_model.h"
#include "reference.h"

namespace quern::test {
namespace {

using reference::Vector;

class DraftReference {
 public:
  explicit DraftReference(const Checkpoint& file, const Config& config) : file_(file), c_(config) {}

  struct Out {
    Vector x, logits;  // [rows, W], [rows, V]
    int64_t n_sparse = 0;
  };
  // Positions 0 … rows - 1: hidden rows [rows, W] and the ids of the positions after them.
  Out run(const Vector& hidden, const Ids& ids) const {
    const auto rows = static_cast<int64_t>(ids.size());
    const int64_t H = c_.d_model, S = c_.streams, W = c_.wide();
    const std::string layer = "mtp.layers.0.", attn = layer + "self_attn.", mlp = layer + "mlp.";
    Vector e(rows * H);
    const Vector table = w("embed_tokens.weight");
    for (int64_t t = 0; t < rows; ++t) std::copy_n(table.begin() + ids[t] * H, H, e.begin() + t * H);
    e = reference::rms_norm(e, w("mtp.pre_fc_norm_embedding.weight"), rows, 1, H, c_.norm_eps);
    e = reference::linear(e, w("mtp.fc_embedding.weight"), rows, H, H);
    const Vector n = reference::rms_norm(hidden, w("mtp.pre_fc_norm_hidden.weight"), rows, 1, W, c_.norm_eps);
    Out out;
    out.x = reference::linear(n, w("mtp.fc_hidden.weight"), rows * S, H, H);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t s = 0; s < S; ++s)
        for (int64_t i = 0; i < H; ++i) out.x[(t * S + s) * H + i] += e[t * H + i];

    auto mix = mixer(out.x, layer + "attn_hyper_connection.", true, rows);
    const int64_t d = c_.d_head, di = c_.indexer.d_head, ni = c_.indexer.n_heads;
    const auto project = [&](const std::string& name, int64_t n_out) {
      return reference::linear(mix.h, w(attn + name + ".weight"), rows, n_out, H);
    };
    const Vector index = project("indexer.index_qk_proj", (ni + 1) * di);
    Vector qi, ki;
    for (int64_t t = 0; t < rows; ++t) {
      qi.insert(qi.end(), index.begin() + t * (ni + 1) * di, index.begin() + (t * (ni + 1) + ni) * di);
      ki.insert(ki.end(), index.begin() + (t * (ni + 1) + ni) * di, index.begin() + (t + 1) * (ni + 1) * di);
    }
    const reference::SparseShape shape{
        c_.n_heads, c_.n_kv_heads, d, c_.d_rope, ni, di, c_.indexer.n_blocks(), c_.rope_theta};
    const auto sparse = reference::sparse_attention(
        project("q_proj", int64_t{c_.n_heads} * 2 * d), project("k_proj", int64_t{c_.n_kv_heads} * d),
        project("v_proj", int64_t{c_.n_kv_heads} * d), qi, ki, shape, w(attn + "q_norm.weight"),
        w(attn + "k_norm.weight"), w(attn + "indexer.q_layernorm.weight"),
        w(attn + "indexer.k_layernorm.weight"), rows, c_.norm_eps);
    for (const Vector& scores : sparse.scores)
      out.n_sparse += static_cast<int64_t>(scores.size()) > c_.indexer.n_blocks();
    inject(out.x, mix.inj,
           reference::linear(sparse.y, w(attn + "o_proj.weight"), rows, H, int64_t{c_.n_heads} * d), rows);

    mix = mixer(out.x, layer + "mlp_hyper_connection.", true, rows);
    const int64_t E = c_.n_experts, I = c_.d_expert;
    const Vector router = reference::linear(mix.h, w(mlp + "gate.weight"), rows, E, H);
    const Vector gate_up = w(mlp + "experts.gate_up_proj"), down = w(mlp + "experts.down_proj");
    const Vector shared_gate = w(mlp + "shared_expert.gate_proj.weight"),
                 shared_up = w(mlp + "shared_expert.up_proj.weight"),
                 shared_down = w(mlp + "shared_expert.down_proj.weight");
    const Vector gate_of_shared = reference::linear(mix.h, w(mlp + "shared_expert_gate.weight"), rows, 1, H);
    Vector y(rows * H);
    for (int64_t t = 0; t < rows; ++t) {
      const double* h = &mix.h[t * H];
      const auto add = [&](double p, const Vector& part) {
        for (int64_t i = 0; i < H; ++i) y[t * H + i] += p * part[i];
      };
      const auto r = reference::route(&router[t * E], E, c_.top_k, c_.norm_topk_prob);
      for (size_t j = 0; j < r.ids.size(); ++j) {
        const auto* gu = gate_up.data() + r.ids[j] * 2 * I * H;
        add(r.p[j],
            reference::expert(h, Vector(gu, gu + I * H), Vector(gu + I * H, gu + 2 * I * H),
                              Vector(down.begin() + r.ids[j] * H * I, down.begin() + (r.ids[j] + 1) * H * I),
                              I, H));
      }
      add(reference::sigmoid(gate_of_shared[t]),
          reference::expert(h, shared_gate, shared_up, shared_down, c_.d_shared, H));
    }
    inject(out.x, mix.inj, y, rows);
    const auto last = mixer(out.x, "mtp.hyper_connection_mixer.", false, rows);
    out.logits = reference::linear(last.h, w("lm_head.weight"), rows, c_.vocab, H);
    return out;
  }

 private:
  Vector w(const std::string& name) const {
    const TensorView* t = file_.find(name);
    EXPECT_NE(t, nullptr) << name;
    Vector v(t->elements());
    for (size_t i = 0; i < v.size(); ++i) {
      uint32_t bits = 0;
      if (t->dtype == DType::BF16)
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, t->bytes.data() + 2 * i, 2);
      else
        std::memcpy(&bits, t->bytes.data() + 4 * i, 4);
      float f;
      std::memcpy(&f, &bits, 4);
      v[i] = f;
    }
    return v;
  }
  reference::Mix mixer(const Vector& x, const std::string& p, bool with_inject, int64_t rows) const {
    return reference::hc_mix(x, w(p + "hc_norm.weight"), w(p + "input_mix_weight_down.weight"),
                             w(p + "input_mix_weight_up.weight"),
                             with_inject ? w(p + "block_inject_weight.weight") : Vector(), rows, c_.streams,
                             c_.d_model, c_.hc_rank, c_.norm_eps);
  }
  void inject(Vector& x, const Vector& inj, const Vector& y, int64_t rows) const {
    const int64_t S = c_.streams, H = c_.d_model;
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t s = 0; s < S; ++s)
        for (int64_t i = 0; i < H; ++i) x[(t * S + s) * H + i] += inj[t * S + s] * y[t * H + i];
  }

  const Checkpoint& file_;
  const Config& c_;
};

double relative_error(const float* got, const double* expected, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

TEST(Mtp, selection_and_chained_drafts_equal_double_precision) {
  TinyModel m(2, DType::F32);
  const auto file = Checkpoint::open(QUERN_SOURCE_DIR "/models/quern-tiny");
  const Config config = read_config(*file);
  const DraftReference reference(*file, config);
  std::mt19937 rng(20262);
  const int64_t T = 90;
  const Ids ids = random_ids(rng, T);

  Vector hidden;
  Logits taps;
  m.model->set_tap([&](std::string_view name, Tensor value) {
    if (name == "layer7")
      for (int64_t i = 0; i < value.elements(); ++i) hidden.push_back(value.as<float>()[i]);
    if (name == "mtp.logits")
      for (int64_t i = 0; i < value.rows(); ++i)
        taps.emplace_back(value.row<float>(i), value.row<float>(i) + value.cols());
  });
  const auto s = m.sequence();
  m.prefill_in(*s, ids, {50});  // two steps: the second one's first entry reads the ring
  m.model->set_tap({});
  ASSERT_EQ(static_cast<int64_t>(hidden.size()), T * config.wide());
  ASSERT_EQ(static_cast<int64_t>(taps.size()), T - 1);

  // The chain: the true pass with the newest id, then three drafted ids.
  const Ids chain = {17, 301, 4000, 5};
  Logits drafted;
  s->append(chain[0]);
  drafted.push_back(m.draft(*s));
  for (size_t i = 1; i < chain.size(); ++i)
    drafted.push_back(
        m.draft(*s, T + static_cast<int64_t>(i), std::span(chain).subspan(i, 1), HiddenFrom::Draft));

  Ids next(ids.begin() + 1, ids.end());
  for (size_t i = 0; i < chain.size(); ++i) {
    next.push_back(chain[i]);
    const auto expected = reference.run(hidden, next);
    const int64_t V = config.vocab, last = static_cast<int64_t>(next.size()) - 1;
    if (i == 0) {
      EXPECT_GT(expected.n_sparse, 10);
      for (int64_t t = 0; t < T - 1; ++t)
        EXPECT_LT(relative_error(taps[t].data(), &expected.logits[t * V], V), 1e-5) << "position " << t;
    }
    EXPECT_LT(relative_error(drafted[i].data(), &expected.logits[last * V], V), 1e-5) << "draft " << i;
    hidden.insert(hidden.end(), expected.x.end() - config.wide(), expected.x.end());
  }
}

}  // namespace
}  // namespace quern::test

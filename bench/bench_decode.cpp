// The decode ops on a CUDA device at the released model's shapes, each alone in a graph that walks the layers' weights,
// so that nothing is found in the cache: microseconds a call, and the bytes it must read over the rate of a large copy.
//
//   bench_decode [--rows 1,8,64] [--context N] [--layers N] [--experts TYPE] [--dense TYPE] [--only TEXT]

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/batch.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "model/synthetic_weights.h"
#include "ops/advance.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/sampling.h"
#include "tensor/graph.h"
#include "tensor/random_fill.h"

namespace quern {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<int> rows{1, 8, 64};
  int64_t context = 4096;
  int layers = 8;
  std::string experts = "nvfp4", dense = "fp8", only;
};

int64_t bytes_of(const Weight& w) { return w.data.bytes() + (w.scale ? w.scale.bytes() : 0); }
int64_t bytes_of(const ExpertWeights& w) { return bytes_of(w.packed) / w.n_experts; }

class Bench {
 public:
  explicit Bench(const Options& o)
      : o_(o),
        pool_(0),
        s_(Device{DeviceType::Cuda, 0}, pool_),
        config_(
            parse_config(synthetic_config({.full = true, .layers = o.layers, .experts = 0}), "geometry")) {
    SyntheticWeightOptions w;
    w.experts = parse_synthetic_type("--experts", o.experts);
    w.dense = parse_synthetic_type("--dense", o.dense);
    w.table_rows = 1 << 16;
    w_ = synthetic_weights(config_, w, s_);
    s_.reserve_scratch(int64_t{3} << 30);
    const int width = *std::max_element(o.rows.begin(), o.rows.end());
    ModelOptions trunk;
    trunk.drafts = false;
    memory_ = std::make_unique<SequenceMemory>(
        s_, cache_shape_of(config_, delta_, trunk),
        static_cast<int32_t>(width * (o.context / kPageTokens + 2)), width);
    for (int i = 0; i < memory_->kv.n_layers(); ++i) {
      random_fill(s_, memory_->kv.layer(i).k, Fill::BF16, 1, 100 + i);
      random_fill(s_, memory_->kv.layer(i).v, Fill::BF16, 1, 200 + i);
      random_fill(s_, memory_->kv.layer(i).pooled, Fill::F32, 1, 300 + i);
    }
    copy_rate_ = copy_rate();
    fmt::print("copy {:.2f} TB/s; context {}, {} experts, {} dense\n", copy_rate_ * 1e-12, o.context,
               o.experts, o.dense);
  }

  void run(int n) {
    const Config& c = config_;
    fmt::print("{} rows\n", n);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<BatchItem> items;
    std::vector<int32_t> next(static_cast<size_t>(n), 5);
    const int64_t context = o_.context / kPageTokens * kPageTokens;
    const BatchCapacity capacity{.rows = 8192, .segments = n, .logits = n, .context = context + 256};
    Batch batch(s_.device(), capacity);
    for (int i = 0; i < n; ++i) {
      sequences.push_back(Sequence::create(*memory_));
      Sequence& q = *sequences.back();
      std::vector<int32_t> ids(static_cast<size_t>(context), 7);
      q.append(ids);
      QUERN_CHECK(q.reserve(context + kPageTokens), "no pages");
      for (int64_t at = 0; at < context; at += 8192) {
        const int64_t rows = std::min<int64_t>(8192, context - at);
        const BatchItem item{&q, {q.ids().data() + at, static_cast<size_t>(rows)}, Role::Prefill, 0};
        batch.build({&item, 1});
        q.commit(static_cast<int32_t>(rows));
      }
    }
    for (int i = 0; i < n; ++i)
      items.push_back(
          {sequences[static_cast<size_t>(i)].get(), {&next[static_cast<size_t>(i)], 1}, Role::Decode, 1});
    batch.build(items);
    batch.upload(s_);
    s_.synchronize();
    const BatchView& b = batch.view();

    const Tensor x = f32(n, c.wide()), h = f32(n, c.d_model), inj = f32(n, c.streams);
    const float eps = c.norm_eps;
    const auto& L = w_;
    const int n_moe = static_cast<int>(L.moe.size()), n_delta = static_cast<int>(L.delta.size()),
              n_attention = static_cast<int>(L.attention.size());

    line("hc_mix", 2 * n_moe,
         bytes_of(L.moe[0].mix.down) + bytes_of(L.moe[0].mix.up) + bytes_of(L.moe[0].mix.inject), [&](int i) {
           const auto& layer = L.layers[static_cast<size_t>(i / 2)];
           const auto at = static_cast<size_t>(layer.index);
           const MixerWeights& m = i % 2                               ? L.moe[static_cast<size_t>(i / 2)].mix
                                   : layer.kind == LayerKind::DeltaNet ? L.delta[at].mix
                                                                       : L.attention[at].mix;
           hc_mix(s_, h, inj, x, m, c.streams, eps, n);
         });

    // As the router spreads rows that have nothing in common.
    const Tensor ids = own(DType::I32, n, c.top_k), p = f32(n, c.top_k);
    line("moe_route", n_moe, bytes_of(L.moe[0].moe.router),
         [&](int i) { moe_route(s_, ids, p, h, L.moe[static_cast<size_t>(i)].moe, n); });
    std::vector<Tensor> layer_ids;
    std::mt19937 random(17);
    double distinct = 0;
    for (int i = 0; i < n_moe; ++i) {
      std::vector<int32_t> v;
      std::vector<char> used(static_cast<size_t>(c.n_experts));
      for (int t = 0; t < n; ++t) {
        std::vector<int32_t> row;
        while (static_cast<int>(row.size()) < c.top_k) {
          const auto e = static_cast<int32_t>(random() % static_cast<unsigned>(c.n_experts));
          if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
        }
        for (const int32_t e : row) {
          v.push_back(e);
          used[static_cast<size_t>(e)] = 1;
        }
      }
      distinct += static_cast<double>(std::count(used.begin(), used.end(), 1)) / n_moe;
      layer_ids.push_back(own(DType::I32, n, c.top_k));
      s_.upload(layer_ids.back().data, v.data(), layer_ids.back().bytes());
      s_.synchronize();
    }
    const MoeWeights& m0 = L.moe[0].moe;
    const auto expert = static_cast<double>(bytes_of(m0.gate) + bytes_of(m0.up) + bytes_of(m0.down));
    const auto shared =
        static_cast<double>(bytes_of(m0.shared_gate) + bytes_of(m0.shared_up) + bytes_of(m0.shared_down));
    line("moe", n_moe, static_cast<int64_t>(distinct * expert + shared), [&](int i) {
      moe(s_, x, inj, h, layer_ids[static_cast<size_t>(i)], p, L.moe[static_cast<size_t>(i)].moe, n);
    });

    const Tensor qkv = f32(n, c.delta.qkv_width()), z = f32(n, c.delta.value_width()),
                 beta = f32(n, c.delta.n_value_heads), a = f32(n, c.delta.n_value_heads),
                 o = f32(n, c.delta.value_width());
    const DeltaLayer& d0 = L.delta[0];
    line("delta in", n_delta, bytes_of(d0.qkv) + bytes_of(d0.z) + bytes_of(d0.a) + bytes_of(d0.b),
         [&](int i) {
           const DeltaLayer& d = L.delta[static_cast<size_t>(i)];
           const Product in[] = {{qkv, &d.qkv}, {z, &d.z}, {beta, &d.b}, {a, &d.a}};
           linear(s_, in, h, n);
         });
    line("delta_net", n_delta, int64_t{n} * 2 * 4 * c.delta.n_value_heads * 128 * 128, [&](int i) {
      delta_net(s_, o, qkv, z, a, beta, delta_, L.delta[static_cast<size_t>(i)].delta,
                memory_->state.delta(i), b, eps);
    });
    line("delta out", n_delta, bytes_of(d0.out),
         [&](int i) { linear_inject(s_, x, inj, o, L.delta[static_cast<size_t>(i)].out, n); });

    const Tensor q_gate = f32(n, int64_t{c.n_heads} * 2 * c.d_head),
                 k = f32(n, int64_t{c.n_kv_heads} * c.d_head), v = f32(n, int64_t{c.n_kv_heads} * c.d_head),
                 index = f32(n, int64_t{c.indexer.n_heads + 1} * c.indexer.d_head),
                 attn = f32(n, int64_t{c.n_heads} * c.d_head);
    const Tensor qi = index.slice_cols(0, c.indexer.n_heads * c.indexer.d_head),
                 ki = index.slice_cols(c.indexer.n_heads * c.indexer.d_head,
                                       (c.indexer.n_heads + 1) * c.indexer.d_head);
    const Selection selection{own(DType::I32, n, c.indexer.n_blocks()), own(DType::I32, n, 1)};
    const AttentionLayer& a0 = L.attention[0];
    line("attention in", n_attention,
         bytes_of(a0.q_gate) + bytes_of(a0.k) + bytes_of(a0.v) + bytes_of(a0.index_qk), [&](int i) {
           const AttentionLayer& w = L.attention[static_cast<size_t>(i)];
           const Product in[] = {{q_gate, &w.q_gate}, {k, &w.k}, {v, &w.v}, {index, &w.index_qk}};
           linear(s_, in, h, n);
         });
    line("qsa_write", n_attention, 0, [&](int i) {
      qsa_write(s_, q_gate, k, v, qi, ki, qsa_, L.attention[static_cast<size_t>(i)].norms,
                memory_->kv.layer(i), b, eps);
    });
    line("qsa_select", n_attention, n * context / 4 * 128 * 4,
         [&](int i) { qsa_select(s_, selection, qi, qsa_, memory_->kv.layer(i), b); });
    line("qsa_attend", n_attention, n * std::min<int64_t>(context, 2048) * 2 * 2 * 256 * 2,
         [&](int i) { qsa_attend(s_, attn, q_gate, selection, qsa_, memory_->kv.layer(i), b); });
    line("attention out", n_attention, bytes_of(a0.out),
         [&](int i) { linear_inject(s_, x, inj, attn, L.attention[static_cast<size_t>(i)].out, n); });

    const Tensor logits = f32(n, c.vocab), chosen = own(DType::I32, n, 1);
    line("lm_head", 1, bytes_of(L.lm_head), [&](int) { linear(s_, logits, h, L.lm_head, n); });
    std::vector<SamplingRow> rows(static_cast<size_t>(n));
    for (SamplingRow& r : rows)
      r = {.temperature = 1, .top_p = 0.95F, .top_k = 20, .seed = 7, .position = context + 1};
    const Tensor params = own(DType::U8, n, sizeof(SamplingRow));
    s_.upload(params.data, rows.data(), params.bytes());
    s_.synchronize();
    line("sample", 1, logits.bytes(),
         [&](int) { sample(s_, chosen, logits, reinterpret_cast<const SamplingRow*>(params.data), n); });
    owned_.clear();
  }

 private:
  Tensor own(DType dtype, int64_t rows, int64_t cols) {
    return owned_.emplace_back(s_.device(), dtype, std::initializer_list<int64_t>{rows, cols}).tensor;
  }
  Tensor f32(int64_t rows, int64_t cols) {
    const Tensor t = own(DType::F32, rows, cols);
    random_fill(s_, t, Fill::F32, 1, 1000 + owned_.size());
    return t;
  }
  double seconds(const std::function<void()>& fn) {
    s_.synchronize();
    const auto begin = Clock::now();
    fn();
    s_.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  double copy_rate() {
    const int64_t bytes = int64_t{1} << 30;
    const OwnedTensor a(s_.device(), DType::U8, {bytes}), b(s_.device(), DType::U8, {bytes});
    double best = 1e9;
    for (int i = 0; i < 6; ++i)
      best = std::min(best, seconds([&] {
                              for (int j = 0; j < 4; ++j) s_.copy(b.tensor.data, a.tensor.data, bytes);
                            }) / 4);
    return 2.0 * static_cast<double>(bytes) / best;
  }
  // One call of each layer, then again, so that a graph holds about 48; the best of several timings of ten graphs.
  void line(std::string_view name, int n_layers, int64_t bytes, const std::function<void(int)>& call) {
    if (name.find(o_.only) == std::string_view::npos) return;
    const int calls = n_layers * std::max(1, 48 / n_layers);
    const Graph graph = Graph::capture(s_, [&] {
      for (int i = 0; i < calls; ++i) call(i % n_layers);
    });
    graph.launch(s_);
    double best = 1e9;
    for (int r = 0; r < 4; ++r)
      best = std::min(best, seconds([&] {
                              for (int j = 0; j < 5; ++j) graph.launch(s_);
                            }) / (5 * calls));
    fmt::print("  {:<14} {:8.2f} us, {} kernels", name, best * 1e6, graph.n_kernels() / calls);
    if (bytes > 0)
      fmt::print("; {:8.2f} MB, {:6.2f} us at the copy's rate: {:3.0f} %", static_cast<double>(bytes) * 1e-6,
                 static_cast<double>(bytes) / copy_rate_ * 1e6,
                 static_cast<double>(bytes) / copy_rate_ / best * 100);
    fmt::print("\n");
    std::fflush(stdout);
  }

  Options o_;
  ThreadPool pool_;
  Stream s_;
  Config config_;
  ModelWeights w_;
  DeltaNetShape delta_{.n_k = 16, .n_v = 48, .d_k = 128, .d_v = 128};
  QsaShape qsa_{.n_heads = 24,
                .n_kv = 2,
                .d_head = 256,
                .d_rope = 64,
                .index_heads = 4,
                .d_index = 128,
                .budget_blocks = 512};
  std::unique_ptr<SequenceMemory> memory_;
  std::vector<OwnedTensor> owned_;
  double copy_rate_ = 0;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--rows") {
      o.rows.clear();
      for (size_t at = 0; at < value.size();) {
        const size_t comma = std::min(value.find(',', at), value.size());
        o.rows.push_back(std::atoi(std::string(value.substr(at, comma - at)).c_str()));
        at = comma + 1;
      }
    } else if (name == "--context") {
      o.context = std::atoll(argv[i + 1]);
    } else if (name == "--layers") {
      o.layers = std::atoi(argv[i + 1]);
    } else if (name == "--experts") {
      o.experts = value;
    } else if (name == "--dense") {
      o.dense = value;
    } else if (name == "--only") {
      o.only = value;
    } else {
      throw Error(fmt::format("bench_decode: unknown option '{}'", name));
    }
  }
  return o;
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  try {
    const quern::Options o = quern::parse(argc, argv);
    quern::Bench bench(o);
    for (const int n : o.rows) bench.run(n);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_decode: {}\n", e.what());
    return 1;
  }
  return 0;
}

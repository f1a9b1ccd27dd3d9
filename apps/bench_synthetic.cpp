// quern bench --synthetic: speed of any geometry with weights made on the device, no file needed.
//
// Decode steps are replayed as one graph each: the model, sampling, and the advance to the next step's inputs, so the host
// only launches. Contexts are not computed: their cache holds random keys, which a step cannot tell apart. Prefill runs
// for real, chunk after chunk.
#include "bench_synthetic.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "commands.h"
#include "footprint.h"
#include "model/memory_plan.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "model/synthetic_weights.h"
#include "model_flags.h"
#include "ops/advance.h"
#include "tensor/graph.h"
#include "tensor/random_fill.h"

namespace quern {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Options {
  std::string geometry = "full", experts = "nvfp4", dense = "fp8", device = kHasCuda ? "cuda" : "cpu",
              kv = "bf16";
  int layers = 48, chunk = 16384, steps = 48;
  std::vector<int64_t> contexts{4096, 204800}, prefill{8192, 102400};
  std::vector<int> streams{1, 64};
  int64_t stream_context = 2048;  // of several streams
  bool json = false;
};

class SyntheticBench {
 public:
  explicit SyntheticBench(const Options& o) : o_(o), pool_(0), stream_(parse_device(o.device), pool_) {
    Json geometry = synthetic_config({.full = o.geometry == "full", .layers = o.layers, .experts = 0});
    config_ = parse_config(geometry, "--synthetic " + o.geometry);
    const auto begin = Clock::now();
    const int64_t free_before = device_memory(stream_.device()).free;
    SyntheticWeightOptions w;
    w.experts = parse_synthetic_type("--experts-type", o.experts);
    w.dense = parse_synthetic_type("--dense-type", o.dense);
    if (o.geometry != "full") w.table_rows = 1 << 16;
    ModelOptions options;
    options.kv = parse_kv(o.kv);
    options.drafts = false;
    const int width = *std::max_element(o.streams.begin(), o.streams.end());
    const int64_t longest = std::max(*std::max_element(o.contexts.begin(), o.contexts.end()),
                                     *std::max_element(o.prefill.begin(), o.prefill.end()));
    options.batch = {
        .rows = std::max(o.chunk, width), .segments = width, .logits = width, .context = longest + 256};
    options.n_slots = width;
    options.n_pages = static_cast<int32_t>(
        std::max((longest + 256) / kPageTokens + 2, width * (o.stream_context / kPageTokens + 2)));
    refuse_too_large(synthetic_bytes(config_, w), options);
    ModelWeights weights = synthetic_weights(config_, w, stream_);
    model_ = std::make_unique<Model>(std::move(weights), config_, options, stream_);
    batch_ = std::make_unique<Batch>(stream_.device(), options.batch);
    for (int i = 0; i < model_->memory().kv.n_layers(); ++i) {
      const QsaCache& c = model_->memory().kv.layer(i);
      const Fill fill = options.kv == DType::F32 ? Fill::F32 : Fill::BF16;
      random_fill(stream_, c.k, fill, 1, 100 + i);
      random_fill(stream_, c.v, fill, 1, 200 + i);
      random_fill(stream_, c.pooled, Fill::F32, 1, 300 + i);
    }
    rows_ = OwnedTensor(stream_.device(), DType::U8, {width, static_cast<int64_t>(sizeof(SamplingRow))});
    ids_ = OwnedTensor(stream_.device(), DType::I32, {width, 1});
    stream_.synchronize();
    load_s_ = seconds_since(begin);
    memory_ = free_before - device_memory(stream_.device()).free;
  }

  double load_s() const { return load_s_; }
  int64_t memory() const { return memory_; }
  int64_t weight_bytes() const { return model_->weight_bytes(); }
  int64_t bytes_per_token() const { return static_cast<int64_t>(model_->step_cost().weight_bytes(1)); }
  int64_t kernels() const { return kernels_; }
  Footprint taken() const { return footprint(stream_.device()); }

  // Bytes a second of a large copy, read and written counted.
  double copy_rate() {
    const int64_t bytes = int64_t{1} << 30;
    const OwnedTensor a(stream_.device(), DType::U8, {bytes}), b(stream_.device(), DType::U8, {bytes});
    double best = 1e9;
    for (int i = 0; i < 6; ++i) {
      stream_.synchronize();
      const auto begin = Clock::now();
      for (int j = 0; j < 4; ++j) stream_.copy(b.tensor.data, a.tensor.data, bytes);
      stream_.synchronize();
      best = std::min(best, seconds_since(begin) / 4);
    }
    return 2.0 * static_cast<double>(bytes) / best;
  }

  // Seconds a step of `n` streams at `context` tokens.
  double decode(int n, int64_t context) {
    context = context / kPageTokens * kPageTokens;  // the steps stay within one page
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<BatchItem> items;
    std::vector<SamplingRow> rows(static_cast<size_t>(n));
    std::vector<int32_t> next(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      sequences.push_back(new_sequence(context));
      skip(*sequences.back(), context);
      rows[static_cast<size_t>(i)] = {
          .temperature = 1, .top_p = 0.95F, .top_k = 20, .seed = 7, .position = context + 1};
      next[static_cast<size_t>(i)] = static_cast<int32_t>(random_() % 1000);
    }
    for (int i = 0; i < n; ++i)
      items.push_back(
          {sequences[static_cast<size_t>(i)].get(), {&next[static_cast<size_t>(i)], 1}, Role::Decode, 1});
    batch_->build(items);
    batch_->upload(stream_);
    stream_.upload(rows_.tensor.data, rows.data(), static_cast<int64_t>(rows.size() * sizeof(SamplingRow)));
    stream_.synchronize();
    auto* params = reinterpret_cast<SamplingRow*>(rows_.tensor.data);
    const Tensor ids = ids_.tensor.slice_rows(0, n);
    const auto step = [&] {
      const Tensor logits = model_->enqueue(*batch_);
      sample(stream_, ids, logits, params, n);
      advance(stream_, batch_->view(), params, ids);
    };
    Graph graph;
    if (stream_.handle()) {
      graph = Graph::capture(stream_, step);
      kernels_ = graph.n_kernels();
    }
    const auto run = [&] { graph ? graph.launch(stream_) : step(); };
    for (int i = 0; i < 8; ++i) run();
    stream_.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < o_.steps; ++i) run();
    stream_.synchronize();
    return seconds_since(begin) / o_.steps;
  }

  // Of a prompt, to its first token.
  struct Prefill {
    double seconds = 0, last_chunk = 0;
    int64_t last_rows = 0;
  };
  Prefill prefill(int64_t tokens) {
    auto sequence = new_sequence(tokens);
    Prefill p;
    const SamplingRow greedy{.temperature = 0};
    stream_.upload(rows_.tensor.data, &greedy, static_cast<int64_t>(sizeof greedy));
    stream_.synchronize();
    const auto begin = Clock::now();
    for (int64_t at = 0; at < tokens; at += o_.chunk) {
      const int64_t n = std::min<int64_t>(o_.chunk, tokens - at);
      const BatchItem item{sequence.get(),
                           {sequence->ids().data() + at, static_cast<size_t>(n)},
                           Role::Prefill,
                           at + n == tokens ? 1 : 0};
      batch_->build({&item, 1});
      const auto chunk = Clock::now();
      const Tensor logits = model_->forward(*batch_);
      if (at + n == tokens) {
        sample(stream_, ids_.tensor.slice_rows(0, 1), logits,
               reinterpret_cast<SamplingRow*>(rows_.tensor.data), 1);
      }
      stream_.synchronize();  // the staging memory is reused
      sequence->commit(static_cast<int32_t>(n));
      p.last_chunk = seconds_since(chunk);
      p.last_rows = n;
    }
    p.seconds = seconds_since(begin);
    return p;
  }

 private:
  // What cannot fit is said before any of it is made. A step's own memory comes on top.
  void refuse_too_large(SyntheticBytes weights, const ModelOptions& options) const {
    const MemoryPlan each = plan_sequences(config_, options.kv == DType::F32 ? 4 : 2);
    const bool cuda = stream_.device().type == DeviceType::Cuda;
    const int64_t held = weights.device + (cuda ? 0 : weights.table);
    const int64_t caches = options.n_slots * each.state() + options.n_pages * each.page();
    const int64_t free = device_memory(stream_.device()).free;
    if (held + caches <= free) return;
    const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
    throw Error(fmt::format(
        "--synthetic {}: the weights take {:.1f} GB, {} sequences and their contexts {:.1f} GB; of {} {:.1f} "
        "GB are "
        "free; fewer --layers, --streams, --contexts and --prefill take less",
        o_.geometry, gb(held), options.n_slots, gb(caches), cuda ? "the GPU's memory" : "RAM", gb(free)));
  }

  std::unique_ptr<Sequence> new_sequence(int64_t tokens) {
    auto sequence = Sequence::create(model_->memory());
    QUERN_CHECK(sequence != nullptr, "no slot for a sequence of the benchmark");
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (auto& id : ids) id = static_cast<int32_t>(random_() % static_cast<uint64_t>(config_.vocab));
    sequence->append(ids);
    QUERN_CHECK(sequence->reserve(tokens + kPageTokens), "no pages for a sequence of the benchmark");
    return sequence;
  }
  // The sequence's tokens count as computed.
  void skip(Sequence& sequence, int64_t tokens) {
    for (int64_t at = 0; at < tokens; at += o_.chunk) {
      const int64_t n = std::min<int64_t>(o_.chunk, tokens - at);
      const BatchItem item{&sequence, {sequence.ids().data() + at, static_cast<size_t>(n)}, Role::Prefill, 0};
      batch_->build({&item, 1});
      sequence.commit(static_cast<int32_t>(n));
    }
  }

  Options o_;
  ThreadPool pool_;
  Stream stream_;
  Config config_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Batch> batch_;
  OwnedTensor rows_, ids_;
  std::mt19937_64 random_{11};
  double load_s_ = 0;
  int64_t memory_ = 0, kernels_ = 0;
};

}  // namespace

int bench_synthetic(int argc, char** argv) {
  Options o;
  CLI::App app("Speed of a geometry with random weights made on the device.");
  app.add_option("--synthetic", o.geometry, "full or tiny")
      ->check(CLI::IsMember({"full", "tiny"}))
      ->required();
  app.add_option("--layers", o.layers, "layers, every fourth sparse attention")->capture_default_str();
  app.add_option("--experts-type", o.experts, "bf16, fp8, nvfp4 or q4")->capture_default_str();
  app.add_option("--dense-type", o.dense, "bf16 or fp8")->capture_default_str();
  app.add_option("--contexts", o.contexts, "contexts of one stream")->delimiter(',');
  app.add_option("--streams", o.streams,
                 "numbers of streams; one runs at --contexts, others at --stream-context")
      ->delimiter(',');
  app.add_option("--stream-context", o.stream_context, "context of several streams")->capture_default_str();
  app.add_option("--prefill", o.prefill, "prompt lengths")->delimiter(',');
  app.add_option("--chunk", o.chunk, "rows of a prefill step")->capture_default_str();
  app.add_option("--steps", o.steps, "decode steps timed, at most 48")
      ->check(CLI::Range(1, 48))
      ->capture_default_str();
  app.add_option("--kv", o.kv, "type of the KV cache: f32, bf16 or f16")
      ->capture_default_str()
      ->check(kv_fault);
  app.add_option("--device", o.device, "cpu or cuda[:i]")->capture_default_str()->check(device_fault);
  app.add_flag("--json", o.json, "one JSON object");
  if (const auto code = parse_options(app, argc, argv)) return *code;

  SyntheticBench bench(o);
  const double rate = bench.copy_rate();
  std::string json = fmt::format(
      R"({{"geometry":"{}","layers":{},"experts":"{}","dense":"{}","weights_s":{:.2f},"weight_bytes":{},"device_bytes":{},"bytes_per_token":{},"copy_bytes_per_s":{:.4g},"decode":[)",
      o.geometry, o.layers, o.experts, o.dense, bench.load_s(), bench.weight_bytes(), bench.memory(),
      bench.bytes_per_token(), rate);
  if (!o.json) {
    std::printf(
        "%s, %d layers, %s experts, %s dense: %.1f GB of weights made in %.1f s, %.1f GB of the device in "
        "use\n",
        o.geometry.c_str(), o.layers, o.experts.c_str(), o.dense.c_str(),
        static_cast<double>(bench.weight_bytes()) * 1e-9, bench.load_s(),
        static_cast<double>(bench.memory()) * 1e-9);
    std::printf("copy %.2f TB/s; a token reads %.2f GB of weights: %.2f ms at that rate\n", rate * 1e-12,
                static_cast<double>(bench.bytes_per_token()) * 1e-9,
                static_cast<double>(bench.bytes_per_token()) / rate * 1e3);
  }
  bool first = true;
  const auto decode = [&](int n, int64_t context) {
    const double s = bench.decode(n, context);
    json +=
        fmt::format(R"({}{{"streams":{},"context":{},"step_ms":{:.4f},"tokens_per_s":{:.2f},"kernels":{}}})",
                    first ? "" : ",", n, context, s * 1e3, n / s, bench.kernels());
    first = false;
    if (!o.json) {
      std::printf("decode  %3d streams at %7lld tokens: %8.3f ms a step, %9.1f tokens/s, %lld kernels\n", n,
                  static_cast<long long>(context), s * 1e3, n / s, static_cast<long long>(bench.kernels()));
      std::fflush(stdout);
    }
  };
  for (const int n : o.streams) {
    if (n > 1) {
      decode(n, o.stream_context);
      continue;
    }
    for (const int64_t context : o.contexts) decode(1, context);
  }
  json += R"(],"prefill":[)";
  first = true;
  for (const int64_t tokens : o.prefill) {
    if (tokens <= o.chunk) bench.prefill(tokens);  // a short one is timed warm
    const auto p = bench.prefill(tokens);
    json += fmt::format(
        R"({}{{"tokens":{},"seconds":{:.4f},"tokens_per_s":{:.1f},"last_chunk_rows":{},"last_chunk_s":{:.4f}}})",
        first ? "" : ",", tokens, p.seconds, static_cast<double>(tokens) / p.seconds, p.last_rows,
        p.last_chunk);
    first = false;
    if (!o.json) {
      std::printf(
          "prefill %7lld tokens: first token after %8.1f ms, %9.1f tokens/s; last chunk of %lld: %.1f "
          "tokens/s\n",
          static_cast<long long>(tokens), p.seconds * 1e3, static_cast<double>(tokens) / p.seconds,
          static_cast<long long>(p.last_rows), static_cast<double>(p.last_rows) / p.last_chunk);
      std::fflush(stdout);
    }
  }
  const Footprint taken = bench.taken();
  if (o.json) {
    std::printf(R"(%s],"peak_ram_bytes":%lld,"peak_device_bytes":%lld})"
                "\n",
                json.c_str(), static_cast<long long>(taken.ram), static_cast<long long>(taken.device));
  } else {
    std::printf("peak memory: %s\n", describe(taken).c_str());
  }
  return 0;
}

}  // namespace quern

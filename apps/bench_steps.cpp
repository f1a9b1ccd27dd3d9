// quern bench: single steps of the model, prefill and decode, beside what this machine can read and multiply.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "bench.h"
#include "footprint.h"
#include "model_flags.h"
#include "ops/cpu/peaks.h"
#include "ops/sampling.h"

namespace quern {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes that one decoded row reads besides weights: M in and out, and the keys and values it attends to.
double state_bytes(const Model& model, int64_t context) {
  const CacheShape& shape = model.cache_shape();
  const Config& config = model.config();
  const double M = 4.0 * shape.n_delta_layers * shape.delta.n_v * shape.delta.d_k * shape.delta.d_v;
  const auto seen = static_cast<double>(std::min<int64_t>(context, config.indexer.budget + kBlockTokens - 1));
  const double kv = 2.0 * static_cast<double>(row_bytes(shape.kv, shape.d_head)) * shape.n_kv * seen;
  const double index =
      context > config.indexer.budget ? 4.0 * shape.d_index * static_cast<double>(context) / kBlockTokens : 0;
  return 2 * M + shape.n_sparse_layers * (kv + index);
}

struct Decode {
  int64_t context, width, drafts;
  double step, step_bytes;
};
struct Prefill {
  int64_t context, tokens;
  double seconds, flops;
};

class Bench {
 public:
  Bench(Model& model, int64_t repeats)
      : model_(model), batch_(model.stream().device(), model.options().batch), repeats_(repeats) {}

  // Seconds from a prompt to its first token.
  double first_token(int64_t tokens) {
    Stream& stream = model_.stream();
    const OwnedTensor rows(stream.device(), DType::U8, {1, static_cast<int64_t>(sizeof(SamplingRow))}),
        chosen(stream.device(), DType::I32, {1, 1});
    const SamplingRow greedy{.temperature = 0};
    stream.upload(rows.tensor.data, &greedy, static_cast<int64_t>(sizeof greedy));
    const auto s = past(0);
    const std::vector<int32_t> prompt = ids(tokens);
    const double begin = now();
    run(*s, prompt);
    sample(stream, chosen.tensor, logits_, reinterpret_cast<const SamplingRow*>(rows.tensor.data), 1);
    stream.synchronize();
    return now() - begin;
  }

  Prefill prefill(int64_t context, int64_t tokens) {
    std::vector<double> times;
    for (int64_t i = 0; i < repeats_; ++i) {
      auto s = past(context);
      times.push_back(run(*s, ids(tokens)));
    }
    const StepCost& cost = model_.step_cost();
    const double products = static_cast<double>(cost.row_products) * static_cast<double>(tokens) +
                            static_cast<double>(cost.logit_products);
    const double seconds = *std::min_element(times.begin(), times.end());
    return {context, tokens, seconds, 2 * products / seconds};
  }

  // Steps of `width` sequences with 1 + drafts rows each, all accepted.
  Decode decode(int64_t context, int64_t width, int64_t drafts, int64_t steps) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    sequences.push_back(past(context));
    while (static_cast<int64_t>(sequences.size()) < width) sequences.push_back(sequences[0]->fork());
    std::vector<double> times;
    for (int64_t i = 0; i < steps + 1; ++i) {
      std::vector<std::vector<int32_t>> rows;
      std::vector<BatchItem> items;
      for (auto& s : sequences) {
        rows.push_back(ids(1 + drafts));
        s->append(rows.back());
        if (!s->reserve(s->length() + 1 + drafts)) throw Error("bench: the pages are used up");
      }
      for (int64_t j = 0; j < width; ++j)
        items.push_back({sequences[j].get(), rows[j], Role::Decode, kAllRows});
      const double begin = now();
      batch_.build(items);
      model_.forward(batch_);
      model_.stream().synchronize();
      if (i > 0) times.push_back(now() - begin);  // the first warms up
      for (auto& s : sequences) s->commit(static_cast<int32_t>(1 + drafts));
    }
    std::sort(times.begin(), times.end());
    const double bytes = model_.step_cost().weight_bytes(width * (1 + drafts)) +
                         static_cast<double>(width) * state_bytes(model_, context);
    return {context, width, drafts, times[times.size() / 2], bytes};
  }

 private:
  std::vector<int32_t> ids(int64_t n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng_() % static_cast<uint64_t>(model_.config().vocab));
    return ids;
  }

  double run(Sequence& s, const std::vector<int32_t>& ids) {
    s.append(ids);
    if (!s.reserve(s.length() + static_cast<int64_t>(ids.size())))
      throw Error("bench: the pages are used up");
    const double begin = now();
    for (size_t at = 0; at < ids.size();) {
      const size_t n = std::min<size_t>(ids.size() - at, batch_.capacity().rows);
      const BatchItem item{&s, std::span(ids).subspan(at, n), Role::Prefill, at + n == ids.size() ? 1 : 0};
      batch_.build({&item, 1});
      logits_ = model_.forward(batch_);
      model_.stream().synchronize();
      s.commit(static_cast<int32_t>(n));
      at += n;
    }
    return now() - begin;
  }

  std::unique_ptr<Sequence> past(int64_t context) {
    if (!past_ || past_->length() != context) {
      past_ = nullptr;
      past_ = Sequence::create(model_.memory());
      if (context > 0) run(*past_, ids(context));
    }
    auto s = past_->fork();
    if (!s) throw Error("bench: the pages are used up");
    return s;
  }

  Model& model_;
  Batch batch_;
  int64_t repeats_;
  Tensor logits_;  // of the last step of run()
  std::mt19937_64 rng_{1};
  std::unique_ptr<Sequence> past_;
};

}  // namespace

int bench_steps(const BenchOptions& o) {
  const ModelFlags& flags = o.model;
  const StepOptions& steps = o.steps;
  const int64_t widest = *std::max_element(steps.widths.begin(), steps.widths.end());
  const int64_t most_rows = widest * (1 + *std::max_element(steps.drafts.begin(), steps.drafts.end()));
  ModelOptions options;
  options.drafts = false;
  options.n_slots = static_cast<int32_t>(widest) + 1;
  options.batch.rows = std::max<int64_t>({most_rows, std::min<int64_t>(steps.prompt, 2048)});
  options.batch.segments = widest;
  options.batch.logits = most_rows;
  options.batch.context = *std::max_element(steps.contexts.begin(), steps.contexts.end()) +
                          std::max(steps.prompt, (steps.n + 1) * (1 + kMaxDrafts)) + kPageTokens;
  const double begin = now();
  OpenModel open = open_model(flags, options);
  const double load = now() - begin;
  const bool on_cpu = open.stream->device().type == DeviceType::Cpu;

  Bench bench(*open.model, steps.repeats);
  const double first_token = bench.first_token(steps.prompt);
  std::vector<Prefill> prefills;
  std::vector<Decode> decodes;
  for (const int64_t context : steps.contexts) {
    prefills.push_back(bench.prefill(context, steps.prompt));
    for (const int64_t width : steps.widths)
      for (const int64_t draft : steps.drafts)
        decodes.push_back(bench.decode(context, width, draft, steps.n));
  }

  const Footprint taken = footprint(open.stream->device());  // before what follows takes memory of its own
  double read = 0, fma = 0;
  if (on_cpu) {
    const Buffer buffer(Device{}, int64_t{512} << 20);
    std::fill_n(buffer.data(), buffer.size(), std::byte{1});
    for (int i = 0; i < 3; ++i)
      read = std::max(read, cpu::measure_read(*open.pool, buffer.data(), buffer.size()));
    fma = cpu::measure_fma(*open.pool, 0.5);
  }

  if (o.json) {
    Json out;
    out.set("model", flags.model);
    out.set("device", flags.device);
    out.set("threads", open.pool->size());
    out.set("kv", flags.kv);
    out.set("load_seconds", load);
    out.set("first_token_seconds", first_token);
    out.set("peak_ram_bytes", taken.ram);
    out.set("peak_device_bytes", taken.device);
    out.set("read_bytes_per_second", on_cpu ? Json(read) : Json());
    out.set("fma_flops", on_cpu ? Json(fma) : Json());
    Json::Array p, d;
    for (const Prefill& r : prefills) {
      Json j;
      j.set("context", r.context);
      j.set("tokens", r.tokens);
      j.set("tokens_per_second", static_cast<double>(r.tokens) / r.seconds);
      j.set("flops", r.flops);
      j.set("of_fma", on_cpu ? Json(r.flops / fma) : Json());
      p.push_back(j);
    }
    for (const Decode& r : decodes) {
      Json j;
      j.set("context", r.context);
      j.set("width", r.width);
      j.set("drafts", r.drafts);
      j.set("step_seconds", r.step);
      j.set("rows_per_second", static_cast<double>(r.width * (1 + r.drafts)) / r.step);
      j.set("bytes_per_second", r.step_bytes / r.step);
      j.set("of_read", on_cpu ? Json(r.step_bytes / r.step / read) : Json());
      d.push_back(j);
    }
    out.set("prefill", p);
    out.set("decode", d);
    fmt::print("{}\n", write_json(out, {.indent = 1}));
    return 0;
  }
  fmt::print("loaded in {:.2f} s; first token of {} after {:.1f} ms; peak memory {}\n", load, steps.prompt,
             first_token * 1e3, describe(taken));
  if (on_cpu)
    fmt::print("{} threads: reads {:.1f} GB/s, multiplies and adds {:.1f} GFLOP/s\n", open.pool->size(),
               read / 1e9, fma / 1e9);
  fmt::print("{:>9} {:>6} {:>7} {:>10} {:>9} {:>8}\n", "prefill", "", "tokens", "tokens/s", "GFLOP/s",
             "of FMA");
  for (const Prefill& r : prefills)
    fmt::print("{:>9} {:>6} {:>7} {:>10.1f} {:>9.1f} {:>8}\n", r.context, "", r.tokens,
               static_cast<double>(r.tokens) / r.seconds, r.flops / 1e9,
               on_cpu ? fmt::format("{:.0f} %", 100 * r.flops / fma) : "");
  fmt::print("{:>9} {:>6} {:>7} {:>10} {:>9} {:>8}\n", "decode", "width", "drafts", "rows/s", "GB/s",
             "of read");
  for (const Decode& r : decodes)
    fmt::print("{:>9} {:>6} {:>7} {:>10.1f} {:>9.1f} {:>8}\n", r.context, r.width, r.drafts,
               static_cast<double>(r.width * (1 + r.drafts)) / r.step, r.step_bytes / r.step / 1e9,
               on_cpu ? fmt::format("{:.0f} %", 100 * r.step_bytes / r.step / read) : "");
  return 0;
}

}  // namespace quern

// quern-tiny on the test's device behind an EngineCore that tests step by hand, and the oracle: a request alone, undrafted,
// with an empty cache, by nothing but Model and sample.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "device_main.h"
#include "engine/engine_core.h"
#include "model/model.h"
#include "ops/sampling.h"
#include "tensor/stream.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quern {

inline const std::string kTiny = QUERN_SOURCE_DIR "/models/quern-tiny";

// A fresh one, removed at the end of the test.
struct Folder {
  std::filesystem::path path;
  Folder() {
    char name[] = "/tmp/quern-engine-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

struct TinyModel {
  ThreadPool pool;
  Stream stream;
  std::shared_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;

  TinyModel(int32_t n_pages, int32_t n_slots, int64_t rows = 640, int64_t context = 4096, int threads = 1,
            DType kv = DType::BF16)
      : pool(threads), stream(test_device, pool), checkpoint(Checkpoint::open(kTiny)) {
    ModelOptions options;
    options.kv = kv;
    options.n_pages = n_pages;
    options.n_slots = n_slots;
    options.batch = {
        .rows = rows, .segments = n_slots, .logits = n_slots * (kMaxDrafts + 1) + 64, .context = context};
    model = std::make_unique<Model>(checkpoint, read_config(*checkpoint), options, stream);
  }
};

// Random ids; with ends, about one in fifty is <|endoftext|>.
inline std::vector<int32_t> ids_of(size_t n, uint32_t seed, bool with_ends = true) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  while (ids.size() < n)
    ids.push_back(with_ends && random() % 50 == 0 ? 4000 : static_cast<int32_t>(random() % 4000));
  return ids;
}

inline Request ask_for(std::vector<int32_t> prompt, int64_t max_tokens = 12) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  return r;
}

// What a reply came to.
struct Outcome {
  std::vector<int32_t> ids;
  bool finished = false;
  FinishReason reason = FinishReason::Stop;
  std::string error;
  Usage usage;
  std::vector<TokenLogprob> logprobs;
};

// An engine without a thread.
struct TinyEngine {
  TinyModel& tiny;
  std::map<std::pair<RequestId, int32_t>, Outcome> outcomes;  // outlives core, whose end ends what still runs
  EngineCore core;
  RequestId last = 0;

  TinyEngine(TinyModel& t, const EngineOptions& options) : tiny(t), core(*t.model, options) {}

  RequestId submit(Request request) {
    core.check(request);
    auto s = std::make_shared<Submission>();
    s->id = ++last;
    s->submitted = Clock::now();
    s->sink = [this](const Event& e) {
      Outcome& o = outcomes[{e.request, e.index}];
      o.ids.insert(o.ids.end(), e.ids.begin(), e.ids.end());
      o.logprobs.insert(o.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
      o.usage = e.usage;
      if (e.finished) {
        o.finished = true;
        o.reason = e.reason;
        o.error = e.error;
      }
    };
    for (int32_t i = 0; i < request.n; ++i) outcomes[{s->id, i}];
    s->request = std::move(request);
    core.submit(s);
    return s->id;
  }
  void run() {
    int64_t idle_steps = 0;
    while (!core.idle()) {
      if (core.step()) {
        idle_steps = 0;
        continue;
      }
      core.cache().flush();
      if (++idle_steps > 1000) {
        fmt::print(stderr, "the engine does not go on\n");
        std::abort();
      }
    }
  }
  Outcome ask(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    return outcomes.at({id, 0});
  }
};

// The reply's ids, alone.
inline std::vector<int32_t> alone(TinyModel& t, const Request& r, int32_t index = 0) {
  Model& model = *t.model;
  Batch batch(t.stream.device(), model.options().batch);
  auto sequence = Sequence::create(model.memory());
  sequence->append(r.prompt);
  std::vector<int32_t> said;
  const auto reserve = [&] {
    if (!sequence->reserve(static_cast<int64_t>(sequence->ids().size()) + 1)) std::abort();
  };
  reserve();
  Tensor logits;
  for (int64_t at = 0; at < static_cast<int64_t>(r.prompt.size());) {
    const int64_t n =
        std::min<int64_t>(batch.capacity().rows / 64 * 64, static_cast<int64_t>(r.prompt.size()) - at);
    const BatchItem item{sequence.get(), std::span(r.prompt).subspan(at, n), Role::Prefill, 1};
    batch.build(std::span(&item, 1));
    logits = model.forward(batch);
    sequence->commit(static_cast<int32_t>(n));
    at += n;
  }
  while (true) {
    SamplingRow row;
    const SamplingParams& p = r.sampling;
    row.temperature = p.temperature;
    row.top_k = p.top_k;
    row.top_p = p.top_p;
    row.min_p = p.min_p;
    row.repetition = p.repetition_penalty;
    row.presence = p.presence_penalty;
    row.frequency = p.frequency_penalty;
    row.seed = p.seed + static_cast<uint64_t>(index);
    row.position = static_cast<int64_t>(r.prompt.size() + said.size());
    std::map<int32_t, int32_t> counts;
    if (p.repetition_penalty != 1)
      for (const int32_t id : r.prompt) counts[id];
    for (const int32_t id : said) ++counts[id];
    std::vector<int32_t> ids, ns;
    std::vector<OwnedTensor> there;  // what the device reads
    const auto on_device = [&]<typename T>(const std::vector<T>& values) -> const T* {
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
      if (bytes == 0) return nullptr;
      const Tensor& to =
          there.emplace_back(t.stream.device(), DType::U8, std::initializer_list<int64_t>{1, bytes}).tensor;
      t.stream.upload(to.data, values.data(), bytes);
      return reinterpret_cast<const T*>(to.data);
    };
    for (const auto& [id, n] : counts) ids.push_back(id), ns.push_back(n);
    row.seen_ids = on_device(ids), row.seen_counts = on_device(ns);
    row.n_seen = static_cast<int32_t>(ids.size());
    // The grammar from its beginning, each time anew. Ids that the thinking budget dictates may not fit; it goes on
    // behind them.
    std::vector<uint32_t> mask;
    std::optional<GrammarMatcher> matcher;
    if (r.grammar && r.grammar_after_id < 0) matcher.emplace(r.grammar);
    for (const int32_t i : said) {
      if (matcher)
        matcher->accept(i);
      else if (r.grammar && i == r.grammar_after_id)
        matcher.emplace(r.grammar);
    }
    std::map<int32_t, float> biases;
    for (const auto& [id, b] : p.logit_bias) biases[id] += b;
    // No stop while the grammar is still to begin.
    if (r.grammar && !matcher)
      for (const int32_t stop : r.stop_ids) biases[stop] = -std::numeric_limits<float>::infinity();
    std::vector<int32_t> bias_ids;
    std::vector<float> bias;
    for (const auto& [id, b] : biases) bias_ids.push_back(id), bias.push_back(b);
    row.bias_ids = on_device(bias_ids), row.bias = on_device(bias);
    row.n_bias = static_cast<int32_t>(bias.size());
    const auto spoken = static_cast<int64_t>(said.size());
    const bool dictated = r.thinking_budget >= 0 && spoken >= r.thinking_budget &&
                          spoken - r.thinking_budget < static_cast<int64_t>(r.thinking_close.size()) &&
                          std::find(said.begin(), said.begin() + r.thinking_budget, r.thinking_end_id) ==
                              said.begin() + r.thinking_budget;
    if (matcher && !dictated) {
      mask.resize(static_cast<size_t>((model.config().vocab + 31) / 32));
      matcher->fill_mask(mask);
      row.mask = on_device(mask);
    }
    int32_t id = -1;
    const SamplingRow* rows = on_device(std::vector<SamplingRow>{row});
    const OwnedTensor out(t.stream.device(), DType::I32, {1, 1});
    sample(t.stream, out.tensor, logits.slice_rows(logits.shape[0] - 1, logits.shape[0]), rows, 1);
    t.stream.download(&id, out.tensor.data, sizeof(id));
    t.stream.synchronize();
    if (dictated) id = r.thinking_close[spoken - r.thinking_budget];
    said.push_back(id);
    if (std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end() ||
        static_cast<int64_t>(said.size()) >= r.max_tokens)
      return said;
    sequence->append(id);
    reserve();
    const BatchItem item{sequence.get(), std::span(&said.back(), 1), Role::Decode, 1};
    batch.build(std::span(&item, 1));
    logits = model.forward(batch);
    sequence->commit(1);
  }
}

}  // namespace quern

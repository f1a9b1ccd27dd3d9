// Random workloads of two hundred steps and more: arrivals, cancels, preemptions, forks, mixed prefill and decode, all
// draft depths, both kinds of drafts, page pressure. Every reply must say what its request says alone, undrafted, with
// an empty cache; and everything returns to the pool. `--seed=N` replays one seed; `--seeds=N` runs more of them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "engine/tiny_engine.h"

namespace quern {
namespace {

const std::vector<GrammarPtr>& grammars() {
  static const auto list = [] {
    const Tokenizer tokenizer = Tokenizer::from_file(kTiny + "/tokenizer.json");
    const auto vocabulary =
        std::make_shared<const GrammarVocabulary>(tokenizer, std::vector<int32_t>{4002, 4000});
    return std::vector<GrammarPtr>{
        compile_any_json(vocabulary), compile_regex(vocabulary, "(yes|no|[a-f]{2,9} [0-9]+)+"),
        compile_json_schema(vocabulary, parse_json(R"({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99},
            "kind": {"enum": ["left", "right"]}, "list": {"type": "array", "items": {"type": "boolean"}}},
            "required": ["name", "n", "kind"], "additionalProperties": false})"))};
  }();
  return list;
}

uint32_t first_seed = 4, n_seeds = 2;

class Workload {
 public:
  explicit Workload(uint32_t seed) : random_(seed) {}

  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool one_in(uint32_t n) { return below(n) == 0; }

  std::vector<int32_t> some_ids(size_t n) {
    std::vector<int32_t> ids;
    // A short cycle with noise: look-up finds something, and not everything.
    const uint32_t period = 2 + below(12), base = below(3900);
    while (ids.size() < n) {
      if (one_in(60))
        ids.push_back(4000);  // <|endoftext|>
      else if (one_in(6))
        ids.push_back(static_cast<int32_t>(below(4000)));
      else
        ids.push_back(static_cast<int32_t>(base + ids.size() % period));
    }
    return ids;
  }

  Request request(const std::vector<std::vector<int32_t>>& pasts) {
    Request r;
    if (!pasts.empty() && !one_in(3)) {
      // Goes on from, or parts from, what was said before.
      const std::vector<int32_t>& past = pasts[below(static_cast<uint32_t>(pasts.size()))];
      r.prompt.assign(past.begin(), past.begin() + 1 + below(static_cast<uint32_t>(past.size())));
    }
    const auto more = some_ids(1 + (one_in(4) ? below(150) : below(40)));
    r.prompt.insert(r.prompt.end(), more.begin(), more.end());
    if (r.prompt.size() > 320) r.prompt.resize(320);
    r.max_tokens = 1 + below(32);
    r.sampling.temperature = one_in(2) ? 0 : 0.2F + 0.1F * static_cast<float>(below(12));
    r.sampling.seed = below(1000);
    if (one_in(3)) r.sampling.top_k = 1 + static_cast<int32_t>(below(50));
    if (one_in(3)) r.sampling.top_p = 0.3F + 0.1F * static_cast<float>(below(7));
    if (one_in(4)) r.sampling.min_p = 0.05F;
    if (one_in(3)) r.sampling.repetition_penalty = 1.2F;
    if (one_in(4)) r.sampling.presence_penalty = 0.5F;
    if (one_in(4)) r.sampling.frequency_penalty = 0.3F;
    if (one_in(4)) r.sampling.logit_bias = {{static_cast<int32_t>(below(4000)), 3.0F}, {7, -HUGE_VALF}};
    r.n = one_in(5) ? 2 + static_cast<int32_t>(below(3)) : 1;
    r.priority = one_in(6) ? static_cast<int32_t>(below(3)) : 0;
    r.max_drafts = static_cast<int32_t>(below(10)) - 1;
    if (one_in(2)) r.stop_ids = {4002};
    for (uint32_t i = below(4); i > 0; --i)
      r.snapshot_points.push_back(below(static_cast<uint32_t>(r.prompt.size() + 1)));
    if (one_in(6)) {
      r.thinking_budget = below(20);
      r.thinking_end_id = 4009;
      r.thinking_close = {11, 4009, 12};
    }
    if (one_in(4)) {
      r.grammar = grammars()[below(static_cast<uint32_t>(grammars().size()))];
      r.stop_ids = {4002, 4000};
      if (r.thinking_budget >= 0) r.grammar_after_id = 4009;
    }
    return r;
  }

 private:
  std::mt19937 random_;
};

struct Asked {
  Request request;
  int64_t cancelled_at = -1;
};

void run_workload(uint32_t seed) {
  Workload w(seed);
  // Each seed is another machine: a pool that holds one request or all of them, few slots or many.
  const auto slots = static_cast<int32_t>(1 + w.below(6));
  const auto pages = static_cast<int32_t>(8 + w.below(24));
  TinyModel tiny(pages, slots, /*rows=*/128 + 64 * w.below(8));
  EngineOptions options;
  options.max_stall_ms = w.one_in(2) ? 0 : 20;
  options.fixed_drafts = w.one_in(2);
  options.draft_block = !w.one_in(4);
  options.draft_lookup = !w.one_in(4);
  options.prefix_cache = !w.one_in(5);
  options.snapshot_ram = w.one_in(3) ? 12 << 20 : 1LL << 30;
  options.snapshot_interval = w.one_in(2) ? 128 : 16384;

  std::map<RequestId, Asked> asked;
  EngineStats stats;
  {
    TinyEngine engine(tiny, options);
    // Measured times decide depths and chunks: made up, so that a seed is the same run everywhere.
    std::mt19937 ticks(seed + 1000);
    double now = 0;
    engine.core.set_clock([&] { return now += 1e-3 * (1 + static_cast<double>(ticks() % 20)); });
    std::vector<std::vector<int32_t>> pasts;
    for (int64_t step = 0; step < 200 || !engine.core.idle(); ++step) {
      ASSERT_LT(step, 20000) << "the engine does not come to an end";
      if (step < 200 && (w.one_in(5) || engine.core.idle())) {
        Request r = w.request(pasts);
        const RequestId id = engine.submit(r);
        pasts.push_back(r.prompt);
        asked[id].request = std::move(r);
      }
      if (w.one_in(15) && !asked.empty()) {
        const auto n = static_cast<uint32_t>(asked.size());
        const RequestId id = n - w.below(std::min(n, 4U));  // a recent one: likely under way
        engine.core.cancel(id);
        asked[id].cancelled_at = step;
      }
      engine.core.step();
      for (auto& [key, outcome] : engine.outcomes)
        if (outcome.finished && w.one_in(40)) {
          std::vector<int32_t> past = asked[key.first].request.prompt;
          past.insert(past.end(), outcome.ids.begin(), outcome.ids.end());
          pasts.push_back(std::move(past));
        }
      engine.core.cache().index().check();
    }
    stats = engine.core.stats();
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_EQ(stats.pages_used, engine.core.cache().index().n_nodes());
    engine.core.cache().index().clear();
    EXPECT_EQ(tiny.model->memory().pages.used(), 0);

    int64_t drafted = 0, accepted = 0;
    for (const int64_t n : stats.drafted) drafted += n;
    for (const int64_t n : stats.accepted) accepted += n;
    fmt::print(
        "seed {}: {} slots, {} pages: {} requests, {} steps, {} preemptions, {} cancelled, {} of {} prompt "
        "tokens "
        "cached, {} of {} drafts accepted\n",
        seed, slots, pages, stats.requests, stats.steps, stats.preemptions, stats.cancelled,
        stats.cached_tokens, stats.prompt_tokens, accepted, drafted);

    TinyModel oracle(16, 1);
    for (const auto& [key, outcome] : engine.outcomes) {
      ASSERT_TRUE(outcome.finished);
      ASSERT_NE(outcome.reason, FinishReason::Error) << outcome.error;
      const Asked& a = asked.at(key.first);
      std::vector<int32_t> expected = alone(oracle, a.request, key.second);
      if (outcome.reason == FinishReason::Cancelled) {
        ASSERT_GE(a.cancelled_at, 0);
        ASSERT_LE(outcome.ids.size(), expected.size());
        expected.resize(outcome.ids.size());
      }
      ASSERT_EQ(outcome.ids, expected) << "request " << key.first << ", reply " << key.second;
    }
  }
}

TEST(Workload, every_reply_is_what_its_request_says_alone) {
  for (uint32_t seed = first_seed; seed < first_seed + n_seeds; ++seed) {
    SCOPED_TRACE(fmt::format("--seed={}", seed));
    run_workload(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) {
      quern::first_seed = static_cast<uint32_t>(std::atoi(argv[i] + 7));
      quern::n_seeds = 1;
    } else if (std::strncmp(argv[i], "--seeds=", 8) == 0) {
      quern::n_seeds = static_cast<uint32_t>(std::atoi(argv[i] + 8));
    }
  }
  return RUN_ALL_TESTS();
}

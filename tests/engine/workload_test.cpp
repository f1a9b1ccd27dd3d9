// Random workloads of two hundred steps and more: arrivals, cancels, preemptions, forks, mixed prefill and decode, all
// draft depths, both kinds of drafts, grammars, penalties, a pool that is too small, a disk. Every reply must say what its
// request says alone, undrafted, with an empty cache; and everything returns to the pool. `--seed N` replays one seed;
// `--seeds N` runs more of them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string_view>
#include <utility>

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

constexpr uint32_t kSeeds = 6;
uint32_t first_seed = 1, n_seeds = kSeeds;

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

  // Fits a pool of so many pages.
  Request request(const std::vector<std::vector<int32_t>>& pasts, int32_t pages) {
    Request r;
    if (!pasts.empty() && !one_in(3)) {
      // Goes on from, or parts from, what was said before.
      const std::vector<int32_t>& past = pasts[below(static_cast<uint32_t>(pasts.size()))];
      r.prompt.assign(past.begin(), past.begin() + 1 + below(static_cast<uint32_t>(past.size())));
    }
    const auto more = some_ids(1 + (one_in(4) ? below(150) : below(40)));
    r.prompt.insert(r.prompt.end(), more.begin(), more.end());
    if (r.prompt.size() > 280) r.prompt.resize(280);
    r.max_tokens = 1 + below(one_in(3) ? 110 : 30);
    r.max_tokens =
        std::min(r.max_tokens, pages * int64_t{kPageTokens} - static_cast<int64_t>(r.prompt.size()));
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
    r.priority = one_in(4) ? static_cast<int32_t>(below(3)) : 0;
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

// What the runs must have met, or they have shown nothing: taken together, since what one seed meets goes by the ids that are
// sampled, and those by the last bits of the device's arithmetic.
struct Met {
  int64_t preemptions = 0, cancelled = 0, forked = 0, hits = 0, disk_hits = 0;
  int64_t evicted_pages = 0, evicted_snapshots = 0, with_grammar = 0;
  DraftTally block, lookup;
};

void run_workload(uint32_t seed, Met& met) {
  Workload w(seed);
  // A pool that is too small for the slots: sequences grow until one is swapped out, and cached pages are given up. Each
  // seed is another machine.
  const auto slots = static_cast<int32_t>(3 + w.below(4));
  const auto pages = static_cast<int32_t>(7 + w.below(4));
  TinyModel tiny(pages, slots, /*rows=*/128 + 64 * w.below(8));
  EngineOptions options;
  options.max_stall_ms = w.one_in(2) ? 0 : 20;
  options.fixed_drafts = w.one_in(2);
  options.draft_block = seed % 4 != 1;
  options.draft_lookup = seed % 4 != 2;
  options.prefix_cache = seed % 5 != 4;
  // A GPU keeps no state of what was decoded, thus fewer.
  options.snapshot_ram = seed % 2 == 0 ? (on_cpu() ? 12 : 6) << 20 : 1LL << 30;
  options.snapshot_interval = w.one_in(2) ? 128 : 16384;
  const Folder folder;
  if (seed % 3 == 0) options.snapshot_directory = folder.path.string();

  std::map<RequestId, Asked> asked;
  {
    TinyEngine engine(tiny, options);
    // Measured times decide depths and chunks: made up, so that a seed is the same run everywhere.
    std::mt19937 ticks(seed + 1000);
    double now = 0;
    engine.core.set_clock([&] { return now += 1e-3 * (1 + static_cast<double>(ticks() % 20)); });
    std::vector<std::vector<int32_t>> pasts;
    for (int64_t step = 0; step < 200 || !engine.core.idle(); ++step) {
      ASSERT_LT(step, 20000) << "the engine does not come to an end";
      if (step < 200 && (w.one_in(6) || engine.core.idle())) {
        Request r = w.request(pasts, pages);
        const RequestId id = engine.submit(r);
        pasts.push_back(r.prompt);
        asked[id].request = std::move(r);
      }
      if (w.one_in(25) && !asked.empty()) {
        const auto n = static_cast<uint32_t>(asked.size());
        const RequestId id = n - w.below(std::min(n, 4U));  // a recent one: likely under way
        engine.core.cancel(id);
        asked[id].cancelled_at = step;
      }
      engine.core.step();
      engine.core.cache().flush();  // what the disk's thread does is done before the next step, in every run
      for (auto& [key, outcome] : engine.outcomes)
        if (outcome.finished && w.one_in(40)) {
          std::vector<int32_t> past = asked[key.first].request.prompt;
          past.insert(past.end(), outcome.ids.begin(), outcome.ids.end());
          pasts.push_back(std::move(past));
        }
      engine.core.cache().index().check();
    }
    const EngineStats stats = engine.core.stats();
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_EQ(stats.pages_used, engine.core.cache().index().n_nodes());
    engine.core.cache().index().clear();
    EXPECT_EQ(tiny.model->memory().pages.used(), 0);

    int64_t forked = 0;
    for (const auto& [key, outcome] : engine.outcomes) {
      const Request& r = asked.at(key.first).request;
      forked += outcome.usage.cached_tokens == static_cast<int64_t>(r.prompt.size()) ? 1 : 0;
      met.with_grammar += r.grammar && !outcome.ids.empty() ? 1 : 0;
    }
    fmt::print(
        "seed {}: {} slots, {} pages{}: {} requests, {} steps, {} preemptions, {} cancelled, {} forked, {} "
        "of {} prompt "
        "tokens cached, {} hits on disk, {} pages and {} snapshots evicted; accepted {} of {} drafts of the "
        "block, {} of "
        "{} of look-up\n",
        seed, slots, pages, options.snapshot_directory.empty() ? "" : ", disk", stats.requests, stats.steps,
        stats.preemptions, stats.cancelled, forked, stats.cached_tokens, stats.prompt_tokens,
        stats.cache_disk_hits, stats.cache_evicted_pages, stats.cache_evicted_snapshots,
        stats.block_drafts.accepted, stats.block_drafts.drafted, stats.lookup_drafts.accepted,
        stats.lookup_drafts.drafted);
    met.preemptions += stats.preemptions;
    met.cancelled += stats.cancelled;
    met.forked += forked;
    met.hits += stats.cache_hits;
    met.disk_hits += stats.cache_disk_hits;
    met.evicted_pages += stats.cache_evicted_pages;
    met.evicted_snapshots += stats.cache_evicted_snapshots;
    for (const auto& [sum, tally] :
         {std::pair(&met.block, stats.block_drafts), {&met.lookup, stats.lookup_drafts}}) {
      sum->drafted += tally.drafted;
      sum->accepted += tally.accepted;
    }

    TinyModel oracle(pages, 1);
    for (const auto& [key, outcome] : engine.outcomes) {
      ASSERT_TRUE(outcome.finished);
      ASSERT_NE(outcome.reason, FinishReason::Error) << outcome.error;
      const Asked& a = asked.at(key.first);
      const std::string which = fmt::format("request {}, reply {}", key.first, key.second);
      if (outcome.reason != FinishReason::Cancelled) {
        ASSERT_EQ(outcome.ids, alone(oracle, a.request, key.second)) << which;
        continue;
      }
      ASSERT_GE(a.cancelled_at, 0) << which;
      if (outcome.ids.empty()) continue;
      // Of a cancelled reply no more than it said needs to be known.
      Request begun = a.request;
      begun.max_tokens = static_cast<int64_t>(outcome.ids.size());
      ASSERT_EQ(outcome.ids, alone(oracle, begun, key.second)) << which << ", cancelled";
    }
  }
}

TEST(Workload, every_reply_is_what_its_request_says_alone) {
  Met met;
  for (uint32_t seed = first_seed; seed < first_seed + n_seeds; ++seed) {
    SCOPED_TRACE(fmt::format("--seed={}", seed));
    run_workload(seed, met);
    if (HasFatalFailure()) return;
  }
  if (n_seeds < kSeeds) return;
  EXPECT_GT(met.preemptions, 0);
  EXPECT_GT(met.cancelled, 0);
  EXPECT_GT(met.forked, 0);
  EXPECT_GT(met.hits, 0);
  EXPECT_GT(met.disk_hits, 0);
  EXPECT_GT(met.evicted_pages, 0);
  EXPECT_GT(met.evicted_snapshots, 0);
  EXPECT_GT(met.with_grammar, 0);
  EXPECT_GT(met.block.accepted, 0);
  EXPECT_LT(met.block.accepted, met.block.drafted);
  EXPECT_GT(met.lookup.accepted, 0);
  EXPECT_LT(met.lookup.accepted, met.lookup.drafted);
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  std::string_view open;  // a flag whose number is the next argument
  return quern::run_tests(argc, argv, [&](std::string_view a) {
    const auto set = [&](std::string_view flag, std::string_view number) {
      const auto n = static_cast<uint32_t>(std::atoi(number.data()));
      if (flag == "--seed") quern::first_seed = n;
      quern::n_seeds = flag == "--seed" ? 1 : n;
      return true;
    };
    if (!open.empty()) return set(std::exchange(open, {}), a);
    for (const std::string_view flag : {"--seeds", "--seed"}) {
      if (a == flag) open = flag;
      if (a == flag) return true;
      if (a.starts_with(flag) && a[flag.size()] == '=') return set(flag, a.substr(flag.size() + 1));
    }
    return false;
  });
}

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "engine/model_engine.h"
#include "engine/tiny_engine.h"

namespace quern {
namespace {

TEST(Engine, a_row_that_is_not_a_number_ends_its_request_and_no_other) {
  TinyModel tiny(64, 5);
  TinyEngine engine(tiny, {});
  std::vector<Request> sane;
  std::vector<std::vector<int32_t>> expected;
  for (uint32_t i = 0; i < 3; ++i) {
    sane.push_back(ask_for(ids_of(20 + i, i), 30));
    expected.push_back(alone(tiny, sane.back()));
  }
  const Request victim = ask_for(ids_of(150, 99), 30);
  // In the second layer the victim's rows are the last of the step while it prefills.
  bool poison = false;
  tiny.model->set_tap([&](std::string_view name, Tensor value) {
    const float nan = NAN;
    if (poison && name == "layer1")
      tiny.stream.upload(value.row<float>(value.rows() - 1) + 5, &nan, sizeof(nan));
  });
  std::vector<RequestId> ids;
  for (const Request& r : sane) ids.push_back(engine.submit(r));
  for (int i = 0; i < 4; ++i) engine.core.step();
  const RequestId bad = engine.submit(victim);
  poison = true;
  while (!engine.outcomes.at({bad, 0}).finished) engine.core.step();
  poison = false;
  engine.run();
  EXPECT_EQ(engine.outcomes.at({bad, 0}).reason, FinishReason::Error);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine.outcomes.at({ids[i], 0}).ids, expected[i]);
  // Twenty normal ones afterwards, the victim's own prompt among them.
  EXPECT_EQ(engine.ask(victim).ids, alone(tiny, victim));
  for (uint32_t i = 0; i < 20; ++i) {
    const Request r = ask_for(ids_of(1 + 3 * i, 100 + i), 3);
    EXPECT_EQ(engine.ask(r).ids, alone(tiny, r));
  }
}

TEST(Engine, seeds_repeat_replies_differ_and_width_does_not_matter) {
  TinyModel tiny(64, 8);
  TinyEngine engine(tiny, {});
  Request r = ask_for(ids_of(40, 5), 20);
  r.sampling.temperature = 1.5F;
  r.sampling.seed = 42;
  r.n = 4;
  const RequestId a = engine.submit(r), b = engine.submit(r);
  engine.run();
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(engine.outcomes.at({a, i}).ids, engine.outcomes.at({b, i}).ids);
    EXPECT_EQ(engine.outcomes.at({a, i}).ids, alone(tiny, r, i));
    for (int32_t j = 0; j < i; ++j) EXPECT_NE(engine.outcomes.at({a, i}).ids, engine.outcomes.at({a, j}).ids);
  }
}

// Every width of the batch and every depth of drafts, by the draft block and by look-up: as each says alone.
TEST(Engine, any_width_and_any_depth_of_drafts_say_the_same) {
  TinyModel tiny(120, 16), oracle(16, 1);
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> expected;
  for (uint32_t i = 0; i < 16; ++i) {
    // Before, at and beyond the 64 tokens that are selected; the second half repeats, for the look-up.
    auto prompt = ids_of(10 + 7 * i, 300 + i, i % 3 == 0);
    const std::vector<int32_t> once = prompt;
    if (i % 2 == 1) prompt.insert(prompt.end(), once.begin(), once.end());
    requests.push_back(ask_for(std::move(prompt), 14));
    if (i % 4 == 3) {
      requests.back().sampling.temperature = 0.8F;
      requests.back().sampling.seed = i;
    }
    expected.push_back(alone(oracle, requests.back()));
  }
  std::vector<int32_t> widths = {1, 4, 16};  // on the CPU there is one path: these do
  if (!on_cpu()) {
    widths.resize(16);
    std::iota(widths.begin(), widths.end(), 1);
  }
  int64_t accepted = 0;
  for (const int32_t width : widths)
    for (const bool lookup : {false, true}) {
      const int32_t depth = 5 * width % 9;  // 0 … 8 over the widths
      EngineOptions options;
      options.max_drafts = depth;
      options.draft_lookup = lookup;
      options.fixed_drafts = true;
      options.prefix_cache = false;
      TinyEngine engine(tiny, options);
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < width; ++i) ids.push_back(engine.submit(requests[static_cast<size_t>(i)]));
      engine.run();
      for (size_t i = 0; i < ids.size(); ++i)
        ASSERT_EQ(engine.outcomes.at({ids[i], 0}).ids, expected[i])
            << "request " << i << " of " << width << ", " << depth << " drafts"
            << (lookup ? ", look-up too" : "");
      for (const int64_t n : engine.core.stats().accepted) accepted += n;
    }
  EXPECT_GT(accepted, 0);
}

TEST(Engine, the_number_of_threads_does_not_matter) {
  std::vector<std::vector<int32_t>> replies;
  for (const int threads : {1, 2, 3}) {
    TinyModel tiny(64, 3, 640, 4096, threads);
    TinyEngine engine(tiny, {});
    replies.push_back(engine.ask(ask_for(ids_of(130, 17), 24)).ids);
  }
  EXPECT_EQ(replies[0], replies[1]);
  EXPECT_EQ(replies[0], replies[2]);
}

TEST(Engine, logprobs_are_those_of_the_raw_logits) {
  TinyModel tiny(64, 3);
  TinyEngine engine(tiny, {});
  Request r = ask_for(ids_of(40, 5), 8);
  r.sampling.n_logprobs = 3;
  const Outcome o = engine.ask(r);
  ASSERT_EQ(o.logprobs.size(), o.ids.size());
  for (size_t i = 0; i < o.ids.size(); ++i) {
    ASSERT_EQ(o.logprobs[i].top.size(), 3u);
    EXPECT_EQ(o.logprobs[i].top[0].first, o.ids[i]);  // greedy
    EXPECT_EQ(o.logprobs[i].top[0].second, o.logprobs[i].logprob);
    EXPECT_GE(o.logprobs[i].top[0].second, o.logprobs[i].top[1].second);
    EXPECT_LT(o.logprobs[i].logprob, 0);
  }
}

TEST(Engine, stop_ids_are_reported_and_the_thinking_budget_closes) {
  TinyModel tiny(64, 3);
  TinyEngine engine(tiny, {});
  Request r = ask_for(ids_of(40, 5), 30);
  const auto whole = alone(tiny, r);
  r.stop_ids = {whole[4]};
  const Outcome stopped = engine.ask(r);
  EXPECT_EQ(stopped.reason, FinishReason::Stop);
  EXPECT_EQ(stopped.ids.back(), whole[4]);
  r.stop_ids.clear();
  r.thinking_budget = 6;
  r.thinking_end_id = 4009;
  r.thinking_close = {100, 4009, 101};
  const Outcome closed = engine.ask(r);
  EXPECT_EQ(std::vector<int32_t>(closed.ids.begin() + 6, closed.ids.begin() + 9), r.thinking_close);
  EXPECT_EQ(closed.ids, alone(tiny, r));
}

// A request lists biases in any order; the device looks ids up in a sorted list.
TEST(Engine, biases_apply_in_whatever_order_they_are_listed) {
  TinyModel tiny(4, 2);
  TinyEngine engine(tiny, {});
  Request r = ask_for(ids_of(9, 4), 3);
  for (const auto& biases : std::vector<std::vector<std::pair<int32_t, float>>>{
           {{3000, 1}, {17, 1e6F}}, {{17, 1e6F}, {3000, 1}}, {{4, 1}, {17, 1e6F}, {9, 1}, {3, 1}, {2, 1}}}) {
    r.sampling.logit_bias = biases;
    EXPECT_EQ(engine.ask(r).ids, (std::vector<int32_t>{17, 17, 17}));
  }
}

TEST(Engine, what_can_never_run_is_refused_by_field) {
  TinyModel tiny(4, 2, 640, 1024);
  EngineCore core(*tiny.model, {});
  const auto refusal = [&](Request r) -> std::string {
    try {
      core.check(r);
    } catch (const SubmitError& e) {
      EXPECT_EQ(e.kind, SubmitError::Kind::Invalid);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(ask_for(ids_of(40, 1))), "");
  EXPECT_EQ(refusal(ask_for({})), "prompt: expected at least one token");
  EXPECT_EQ(refusal(ask_for({4096})), "prompt: token id 4096 is outside the vocabulary of 4096");
  EXPECT_EQ(refusal(ask_for(ids_of(250, 1), 7)),
            "prompt: 250 tokens and a reply of up to 7 take 5 pages of cache, there are 4");
  EXPECT_EQ(refusal(ask_for(ids_of(1000, 1), 25)),
            "prompt: 1000 tokens and a reply of up to 25 exceed the context of 1024");
  EXPECT_EQ(refusal(ask_for({1}, 0)), "max_tokens: expected at least 1, found 0");
  Request r = ask_for({1});
  r.sampling.temperature = NAN;
  EXPECT_NE(refusal(r).find("temperature"), std::string::npos);
  r = ask_for({1});
  r.sampling.logit_bias = {{3, NAN}};
  EXPECT_NE(refusal(r).find("logit_bias"), std::string::npos);
}

// Threads that submit, cancel and look, all at once; with the thread sanitizer this is the test.
TEST(ModelEngine, many_threads_submit_cancel_and_look) {
  TinyModel tiny(40, 4);
  EngineOptions options;
  options.max_queue = 8;
  Folder folder;
  options.snapshot_directory = folder.path.string();
  ModelEngine engine(*tiny.model, options);
  std::atomic<int64_t> ended{0}, submitted{0}, full{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 8; ++i) {
        Request r = ask_for(ids_of(1 + random() % 150, random() % 3), 1 + random() % 12);
        r.n = 1 + static_cast<int32_t>(random() % 2);
        const int32_t n = r.n;
        try {
          const RequestId id = engine.submit(std::move(r), [&](const Event& e) {
            if (!e.finished) return;
            const std::lock_guard lock(mutex);
            ++ended;
            changed.notify_all();
          });
          submitted += n;
          if (random() % 3 == 0) engine.cancel(id);
        } catch (const SubmitError& e) {
          EXPECT_EQ(e.kind, SubmitError::Kind::Full);
          ++full;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        const EngineStats s = engine.stats();
        EXPECT_LE(s.pages_used, s.pages_total);
        EXPECT_GE(s.waiting, 0);
      }
    });
  for (std::thread& t : threads) t.join();
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == submitted; });
  }
  engine.clear_cache();
  engine.drain();
  EXPECT_THROW(engine.submit(ask_for({1}), [](const Event&) {}), SubmitError);
  engine.stop();
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.pages_used, 0);
  EXPECT_EQ(s.slots_used, 0);
  EXPECT_EQ(s.finished + s.cancelled, submitted);
}

TEST(ModelEngine, stopping_ends_what_runs_and_what_waits) {
  TinyModel tiny(40, 1);
  std::atomic<int> cancelled{0};
  {
    ModelEngine engine(*tiny.model, {});
    for (int i = 0; i < 4; ++i)
      engine.submit(ask_for(ids_of(50, 3), 1000), [&](const Event& e) {
        if (e.finished) cancelled += e.reason == FinishReason::Cancelled ? 1 : 0;
      });
  }
  EXPECT_EQ(cancelled, 4);
  EXPECT_EQ(tiny.model->memory().pages.used(), 0);
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) { return quern::run_tests(argc, argv); }

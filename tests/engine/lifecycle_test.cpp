// What a request may meet on its way: others' long prompts, higher priorities, a cancel in any phase, a row that is not a
// number, a full queue. Whatever it is, what it held comes back and the others say what they say alone.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>

#include "engine/model_engine.h"
#include "engine/tiny_engine.h"

namespace quern {
namespace {

// Slots are free, and all pages but those the prefix cache holds.
void expect_all_returned(TinyEngine& engine) {
  const EngineStats s = engine.core.stats();
  EXPECT_EQ(s.slots_used, 0);
  EXPECT_EQ(s.pages_used, engine.core.cache().index().n_nodes());
  engine.core.cache().index().clear();
  EXPECT_EQ(engine.tiny.model->memory().pages.used(), 0);
}

// A clock that rows move: a step lasts `base` seconds and `row` for each of its rows.
struct RowClock {
  double now = 0, base = 2e-3, row = 1e-4;
  int64_t rows = 0;
  explicit RowClock(TinyEngine& engine) {
    engine.tiny.model->set_tap([this](std::string_view name, Tensor value) {
      if (name == "layer0") rows += value.rows();
    });
    engine.core.set_clock([this] {
      now += rows > 0 ? base + row * static_cast<double>(rows) : 0;
      rows = 0;
      return now;
    });
  }
};

// The longest gap of a running reply while a prompt of 2000 tokens is computed beside it.
double longest_gap(double max_stall_ms) {
  TinyModel tiny(64, 2);
  EngineOptions options;
  options.max_stall_ms = max_stall_ms;
  options.max_drafts = 0;
  TinyEngine engine(tiny, options);
  RowClock clock(engine);
  const RequestId stream = engine.submit(ask_for(ids_of(100, 1, false), 300));
  const auto said = [&] { return engine.outcomes.at({stream, 0}).ids.size(); };
  while (said() < 40) engine.core.step();  // the costs of decode and prefill rows are learnt
  const RequestId other = engine.submit(ask_for(ids_of(2000, 2, false), 1));
  double longest = 0, last = clock.now;
  while (!engine.outcomes.at({other, 0}).finished) {
    const size_t before = said();
    engine.core.step();
    EXPECT_EQ(said(), before + 1) << "a running reply has a row in every step";
    longest = std::max(longest, clock.now - last);
    last = clock.now;
  }
  tiny.model->set_tap({});
  return longest;
}

TEST(Lifecycle, a_long_prompt_stalls_a_running_reply_by_no_more_than_the_bound) {
  EXPECT_LE(longest_gap(20), 20e-3);
  EXPECT_LE(longest_gap(1), 2e-3 + 65 * 1e-4 + 1e-9) << "one step with one chunk of 64 rows";
  EXPECT_GT(longest_gap(1e6), 50e-3) << "without a bound the step is as large as it can be";
}

// Where every row costs as much as a step, a draft that is dropped costs a token: drafts go off. Where a step costs the
// same whatever its rows, they come back. The log says each once.
TEST(Lifecycle, drafts_that_do_not_pay_go_off_and_come_back_with_a_line_in_the_log) {
  TinyModel tiny(64, 1);
  EngineOptions options;
  options.prefix_cache = false;
  TinyEngine engine(tiny, options);
  RowClock clock(engine);
  Request request = ask_for(ids_of(80, 3, false), 400);
  request.sampling.temperature = 1.5F;  // nothing is easily foreseen
  const auto on = [&] {
    return engine.core.stats().block_drafts.on[static_cast<size_t>(RequestKind::Sampled)];
  };
  const auto run_until = [&](bool state) {
    testing::internal::CaptureStderr();
    for (int step = 0; step < 2000 && on() != state; ++step) {
      if (engine.core.idle()) engine.submit(request);
      engine.core.step();
    }
    EXPECT_EQ(on(), state);
    std::string log = testing::internal::GetCapturedStderr();
    return log;
  };
  EXPECT_TRUE(on());
  clock.base = 0, clock.row = 1e-2;
  EXPECT_THAT(run_until(false),
              testing::ContainsRegex("drafts by the draft block are off for sampled replies: "
                                     "[0-9]+ % of first drafts accepted, 1 sequences"));
  clock.base = 1e-1, clock.row = 1e-6;
  const std::string log = run_until(true);
  EXPECT_THAT(log, testing::HasSubstr("drafts by the draft block are on for sampled replies"));
  EXPECT_EQ(log.find("draft block"), log.rfind("draft block")) << log;
  EXPECT_EQ(engine.core.stats().block_drafts.switches[static_cast<size_t>(RequestKind::Sampled)], 2);
  engine.core.end_all();
  tiny.model->set_tap({});
}

TEST(Lifecycle, higher_priority_runs_first_and_takes_the_only_slot) {
  TinyModel tiny(32, 1);
  TinyEngine engine(tiny, {});
  const Request low = ask_for(ids_of(70, 1, false), 40);
  Request high = ask_for(ids_of(70, 2, false), 10);
  high.priority = 1;
  const RequestId a = engine.submit(low);
  while (engine.outcomes.at({a, 0}).ids.size() < 5) engine.core.step();
  const RequestId b = engine.submit(low), c = engine.submit(high);
  std::vector<RequestId> order;
  while (!engine.core.idle()) {
    engine.core.step();
    for (const RequestId id : {a, b, c})
      if (engine.outcomes.at({id, 0}).finished && !std::count(order.begin(), order.end(), id))
        order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{c, a, b}));
  EXPECT_EQ(engine.core.stats().preemptions, 1);
  EXPECT_EQ(engine.outcomes.at({a, 0}).ids, alone(tiny, low));
  EXPECT_EQ(engine.outcomes.at({c, 0}).ids, alone(tiny, high));
  expect_all_returned(engine);
}

// Another reply runs beside the one that is cancelled, and the next request finds everything it needs.
void cancel_when(const char* phase, const EngineOptions& options, Request victim,
                 const std::function<bool(TinyEngine&, const Outcome&)>& reached, int32_t slots = 2,
                 int32_t pages = 16) {
  SCOPED_TRACE(phase);
  TinyModel tiny(pages, slots, /*rows=*/128);
  const Request other = ask_for(ids_of(90, 50, false), 100);
  const auto others_ids = alone(tiny, other), victims_ids = alone(tiny, victim);
  TinyEngine engine(tiny, options);
  const RequestId beside = engine.submit(other);
  while (engine.outcomes.at({beside, 0}).ids.empty()) engine.core.step();
  const RequestId id = engine.submit(victim);
  int steps = 0;
  while (!reached(engine, engine.outcomes.at({id, 0}))) {
    ASSERT_LT(++steps, 500) << "never reached";
    engine.core.step();
  }
  engine.core.cancel(id);
  engine.core.step();
  for (int32_t i = 0; i < victim.n; ++i) {
    const Outcome& o = engine.outcomes.at({id, i});
    ASSERT_TRUE(o.finished) << "within a step";
    EXPECT_EQ(o.reason, FinishReason::Cancelled);
  }
  engine.run();
  EXPECT_EQ(engine.outcomes.at({beside, 0}).ids, others_ids);
  EXPECT_EQ(engine.ask(victim).ids, victims_ids);
  expect_all_returned(engine);
}

TEST(Lifecycle, a_cancel_in_any_phase_frees_everything_within_a_step) {
  const auto said_some = [](TinyEngine&, const Outcome& o) { return o.ids.size() >= 3; };
  EngineOptions plain;
  plain.max_drafts = 0;
  cancel_when(
      "queued", plain, ask_for(ids_of(100, 1, false), 20),
      [](TinyEngine& e, const Outcome&) { return e.core.stats().waiting == 1; }, /*slots=*/1);
  plain.max_stall_ms = 0;
  int chunks = 0;
  cancel_when("in prefill", plain, ask_for(ids_of(400, 2, false), 20), [&](TinyEngine& e, const Outcome& o) {
    chunks += e.core.stats().running == 2 ? 1 : 0;
    return chunks == 2 && o.ids.empty();
  });
  cancel_when("in decode", plain, ask_for(ids_of(100, 3, false), 40), said_some);

  EngineOptions drafting;
  drafting.fixed_drafts = true;
  cancel_when("between drafts", drafting, ask_for(ids_of(100, 4, false), 60), said_some);

  Request forked = ask_for(ids_of(100, 5, false), 40);
  forked.n = 3;
  cancel_when("forked", drafting, forked, said_some, /*slots=*/4);

  // The one beside it grows into the last page, and has come first.
  cancel_when(
      "swapped out", plain, ask_for(ids_of(250, 6, false), 60),
      [](TinyEngine& e, const Outcome&) { return e.core.stats().preempted == 1; }, /*slots=*/2, /*pages=*/7);

  // Two prompts with a common beginning: the second waits until the first has computed it.
  {
    SCOPED_TRACE("waiting for a prefix in flight");
    TinyModel tiny(16, 3, /*rows=*/128 + 64);
    TinyEngine engine(tiny, plain);
    const Request first = ask_for(ids_of(300, 7, false), 8);
    Request second = first;
    second.prompt.back() ^= 1;
    const RequestId a = engine.submit(first), b = engine.submit(second);
    engine.core.step();
    EXPECT_EQ(engine.core.stats().running, 1);
    engine.core.cancel(b);
    engine.core.step();
    EXPECT_EQ(engine.outcomes.at({b, 0}).reason, FinishReason::Cancelled);
    EXPECT_TRUE(engine.outcomes.at({b, 0}).finished);
    engine.run();
    EXPECT_EQ(engine.outcomes.at({a, 0}).ids, alone(tiny, first));
    expect_all_returned(engine);
  }
  {
    SCOPED_TRACE("while its prefix is read from disk");
    const Folder folder;
    EngineOptions disk;
    disk.snapshot_directory = folder.path.string();
    TinyModel tiny(16, 2);
    const Request request = ask_for(ids_of(200, 8, false), 8);
    { TinyEngine(tiny, disk).ask(request); }
    TinyEngine engine(tiny, disk);
    const RequestId id = engine.submit(request);
    EXPECT_FALSE(engine.core.step()) << "nothing to run before the disk has answered";
    engine.core.cancel(id);
    engine.core.step();
    EXPECT_EQ(engine.outcomes.at({id, 0}).reason, FinishReason::Cancelled);
    engine.core.cache().flush();
    engine.core.run_posted();  // the answer comes to nobody
    expect_all_returned(engine);
    EXPECT_EQ(engine.ask(request).ids, alone(tiny, request));
  }
}

TEST(Lifecycle, a_decoded_row_that_is_not_a_number_ends_its_request_and_no_other) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    SCOPED_TRACE(bad);
    TinyModel tiny(64, 3);
    EngineOptions options;
    options.max_drafts = 0;
    TinyEngine engine(tiny, options);
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < 3; ++i) {
      requests.push_back(ask_for(ids_of(60 + 20 * i, i, false), 80));
      ids.push_back(engine.submit(requests.back()));
    }
    while (engine.outcomes.at({ids[2], 0}).ids.size() < 10) engine.core.step();
    // Rows of decoding replies stand in the order of arrival.
    tiny.model->set_tap([&](std::string_view name, Tensor value) {
      if (name == "layer1") value.row<float>(1)[5] = bad;
    });
    engine.core.step();
    tiny.model->set_tap({});
    engine.run();
    const Outcome& victim = engine.outcomes.at({ids[1], 0});
    EXPECT_EQ(victim.reason, FinishReason::Error);
    EXPECT_THAT(victim.error, testing::HasSubstr("not a number"));
    const auto sane = alone(tiny, requests[1]);
    EXPECT_EQ(victim.ids,
              std::vector<int32_t>(sane.begin(), sane.begin() + static_cast<int64_t>(victim.ids.size())));
    for (const size_t i : {0, 2}) EXPECT_EQ(engine.outcomes.at({ids[i], 0}).ids, alone(tiny, requests[i]));
    EXPECT_EQ(engine.ask(requests[1]).ids, sane) << "nothing of it was kept";
    expect_all_returned(engine);
  }
}

TEST(Lifecycle, a_full_queue_refuses_and_says_so) {
  TinyModel tiny(32, 1);
  EngineOptions options;
  options.max_queue = 2;
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;
  ModelEngine engine(*tiny.model, options);
  std::vector<RequestId> ids;
  const auto submit = [&] {
    ids.push_back(engine.submit(ask_for(ids_of(20, 1, false), 1000), [&](const Event& e) {
      if (!e.finished) return;
      const std::lock_guard lock(mutex);
      ++ended;
      changed.notify_all();
    }));
  };
  for (int i = 0; i < 3; ++i) submit();  // one runs, two wait
  try {
    submit();
    FAIL() << "a fourth was taken";
  } catch (const SubmitError& e) {
    EXPECT_EQ(e.kind, SubmitError::Kind::Full);
    EXPECT_THAT(e.what(), testing::HasSubstr("the queue is full"));
  }
  // A cancelled one makes room.
  engine.cancel(ids[2]);
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended == 1; }));
  }
  for (int i = 0; i < 1000 && engine.stats().waiting > 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  submit();
  engine.stop();
  EXPECT_EQ(ended, 4);
  EXPECT_EQ(tiny.model->memory().pages.used(), 0);
}

}  // namespace
}  // namespace quern

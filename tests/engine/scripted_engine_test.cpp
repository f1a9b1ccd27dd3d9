// The scripted engine keeps to its script and to the engine's contract.
#include "engine/scripted_engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

namespace quern {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes are ids: 'a' is 97. 1 ends a turn, 2 closes thinking.
std::vector<int32_t> encode(std::string_view text) {
  std::vector<int32_t> ids;
  for (unsigned char c : text) ids.push_back(c == '|' ? 2 : c);
  return ids;
}

std::unique_ptr<Engine> engine_of(std::string_view script, int32_t max_running = 8, int32_t max_queue = 8) {
  ScriptedEngineOptions o;
  o.vocab = 256, o.end_id = 1, o.max_running = max_running, o.max_queue = max_queue;
  o.decode = [](std::span<const int32_t> ids) {
    std::string text;
    for (int32_t id : ids) text += static_cast<char>(id);
    return text;
  };
  return make_scripted_engine(parse_script(script, encode), std::move(o));
}

Request request_of(std::string_view prompt, int64_t max_tokens = 1000) {
  Request r;
  r.prompt = encode(prompt);
  r.max_tokens = max_tokens;
  r.stop_ids = {1};
  return r;
}

// Collects the events of one request.
struct Listener {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int32_t, std::string> text;
  std::vector<size_t> steps;
  std::vector<Clock::time_point> times;
  std::map<int32_t, Event> ends;

  EventSink sink() {
    return [this](const Event& e) {
      std::lock_guard lock(mutex);
      for (int32_t id : e.ids) text[e.index] += id == 1 ? '.' : static_cast<char>(id);
      if (!e.ids.empty()) steps.push_back(e.ids.size()), times.push_back(Clock::now());
      if (e.finished) ends[e.index] = e;
      changed.notify_all();
    };
  }
  bool wait_end(size_t replies = 1, double seconds = 5) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return ends.size() >= replies; });
  }
  bool wait_tokens(size_t n) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(5), [&] { return text[0].size() >= n; });
  }
};

TEST(ScriptedEngine, the_first_match_answers_in_steps_and_ends_its_turn) {
  auto engine =
      engine_of(R"({"replies":[{"match":"tea","text":"green"},{"match":"","text":"abcdefgh","step":3}]})");
  Listener any, tea;
  engine->submit(request_of("coffee"), any.sink());
  engine->submit(request_of("some tea?"), tea.sink());
  ASSERT_TRUE(any.wait_end());
  ASSERT_TRUE(tea.wait_end());
  EXPECT_EQ(any.text[0], "abcdefgh.");
  EXPECT_EQ(any.steps, (std::vector<size_t>{3, 3, 3}));
  EXPECT_EQ(any.ends[0].reason, FinishReason::Stop);
  EXPECT_EQ(any.ends[0].usage.completion_tokens, 9);
  EXPECT_EQ(any.ends[0].usage.prompt_tokens, 6);
  EXPECT_EQ(tea.text[0], "green.");
}

TEST(ScriptedEngine, delays_and_pauses_are_kept) {
  auto engine = engine_of(
      R"({"replies":[{"match":"","text":"abcdef","step":2,"first_delay_ms":80,"delay_ms":20,"pauses":[{"after":3,"ms":150}]}]})");
  Listener l;
  const auto begin = Clock::now();
  engine->submit(request_of("x"), l.sink());
  ASSERT_TRUE(l.wait_end());
  ASSERT_EQ(l.steps, (std::vector<size_t>{2, 1, 2, 2}));  // the pause falls after exactly three tokens
  const auto ms = [&](size_t i) {
    return std::chrono::duration<double, std::milli>(l.times[i] - begin).count();
  };
  EXPECT_GE(ms(0), 80);
  EXPECT_GE(ms(1), 100);
  EXPECT_GE(ms(2), 270);
  EXPECT_GE(ms(3), 290);
}

TEST(ScriptedEngine, limits_stops_and_cached_tokens_are_honoured) {
  auto engine = engine_of(
      R"({"context":40,"replies":[{"match":"long","text":"ab","end":false},{"match":"","text":"abcdef","cached_tokens":64}]})");
  Listener length, stop, endless;
  engine->submit(request_of("xyz", 4), length.sink());
  Request r = request_of("xyz");
  r.max_tokens = 30, r.stop_ids = {'c'};
  engine->submit(r, stop.sink());
  engine->submit(request_of("long", 7), endless.sink());
  ASSERT_TRUE(length.wait_end() && stop.wait_end() && endless.wait_end());
  EXPECT_EQ(length.text[0], "abcd");
  EXPECT_EQ(length.ends[0].reason, FinishReason::Length);
  EXPECT_EQ(length.ends[0].usage.cached_tokens, 2);  // never the whole prompt
  EXPECT_EQ(stop.text[0], "abc");
  EXPECT_EQ(stop.ends[0].reason, FinishReason::Stop);
  EXPECT_EQ(endless.text[0], "abababa");
  EXPECT_EQ(endless.ends[0].reason, FinishReason::Length);
}

TEST(ScriptedEngine, every_reply_of_n_comes_whole) {
  auto engine = engine_of(R"({"replies":[{"match":"","text":"abc"}]})");
  Listener l;
  Request r = request_of("x");
  r.n = 3;
  engine->submit(r, l.sink());
  ASSERT_TRUE(l.wait_end(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(l.text[i], "abc.");
}

TEST(ScriptedEngine, a_spent_budget_closes_thinking_and_lets_the_answer_come) {
  auto engine = engine_of(R"({"replies":[{"match":"","text":"thinking for long|answer"}]})");
  Listener l;
  Request r = request_of("x");
  r.thinking_budget = 5, r.thinking_end_id = 2, r.thinking_close = {'\n', 2, '\n'};
  engine->submit(r, l.sink());
  ASSERT_TRUE(l.wait_end());
  EXPECT_EQ(l.text[0], "think\n\x02\nanswer.");
  Listener within;
  r.thinking_budget = 100;
  engine->submit(r, within.sink());
  ASSERT_TRUE(within.wait_end());
  EXPECT_EQ(within.text[0],
            "thinking for long\x02"
            "answer.");
}

TEST(ScriptedEngine, errors_and_hangs_come_where_they_are_written) {
  auto engine = engine_of(
      R"({"replies":[{"match":"err","text":"abcdef","error_after":2,"step":4},{"match":"","text":"abcdef","hang_after":3}]})");
  Listener error, hang;
  engine->submit(request_of("err"), error.sink());
  ASSERT_TRUE(error.wait_end());
  EXPECT_EQ(error.text[0], "ab");
  EXPECT_EQ(error.ends[0].reason, FinishReason::Error);
  EXPECT_FALSE(error.ends[0].error.empty());
  EXPECT_EQ(engine->stats().seconds_in_step, 0);
  const RequestId id = engine->submit(request_of("x"), hang.sink());
  ASSERT_TRUE(hang.wait_tokens(3));
  EXPECT_FALSE(hang.wait_end(1, 0.2));
  EXPECT_GT(engine->stats().seconds_in_step, 0.1);
  engine->cancel(id);
  ASSERT_TRUE(hang.wait_end());
  EXPECT_EQ(hang.ends[0].reason, FinishReason::Cancelled);
  EXPECT_EQ(hang.text[0], "abc");
  EXPECT_EQ(engine->stats().seconds_in_step, 0);
}

TEST(ScriptedEngine, what_is_over_the_limits_waits_or_is_refused) {
  auto engine =
      engine_of(R"({"context":100,"replies":[{"match":"","text":"a","end":false,"delay_ms":5}]})", 2, 1);
  Listener a, b, c, d;
  const RequestId first = engine->submit(request_of("x", 90), a.sink());
  engine->submit(request_of("x", 90), b.sink());
  const RequestId waiting = engine->submit(request_of("x", 90), c.sink());
  try {
    engine->submit(request_of("x", 90), d.sink());
    FAIL();
  } catch (const SubmitError& e) {
    EXPECT_EQ(e.kind, SubmitError::Kind::Full);
  }
  ASSERT_TRUE(a.wait_tokens(2));
  EXPECT_EQ(engine->stats().running, 2);
  EXPECT_EQ(engine->stats().waiting, 1);
  engine->cancel(waiting);
  ASSERT_TRUE(c.wait_end());
  EXPECT_EQ(c.text[0], "");
  engine->cancel(first);
  ASSERT_TRUE(a.wait_end());
  engine->drain();
  EXPECT_THROW(engine->submit(request_of("x", 5), d.sink()), SubmitError);
  engine->stop();
  ASSERT_TRUE(b.wait_end());
  EXPECT_EQ(b.ends[0].reason, FinishReason::Cancelled);
  EXPECT_EQ(engine->stats().running, 0);
}

TEST(ScriptedEngine, requests_that_can_never_run_are_invalid) {
  auto engine = engine_of(R"({"context":10,"replies":[{"match":"yes","text":"a"}]})");
  const auto kind = [&](const Request& r) {
    try {
      engine->submit(r, [](const Event&) {});
    } catch (const SubmitError& e) {
      return static_cast<int>(e.kind);
    }
    return -1;
  };
  const int invalid = static_cast<int>(SubmitError::Kind::Invalid);
  EXPECT_EQ(kind(request_of("yes", 7)), -1);
  EXPECT_EQ(kind(request_of("yes", 8)), invalid);
  EXPECT_EQ(kind(request_of("no", 1)), invalid);
  EXPECT_EQ(kind(request_of("", 1)), invalid);
  EXPECT_EQ(kind(request_of("yes", 0)), invalid);
  Request r = request_of("yes", 1);
  r.prompt[0] = 256;
  EXPECT_EQ(kind(r), invalid);
  r.prompt[0] = -1;
  EXPECT_EQ(kind(r), invalid);
}

TEST(ScriptedEngine, scripts_with_faults_name_them) {
  for (const auto& [script, part] : std::vector<std::pair<const char*, const char*>>{
           {R"([])", "expected an object"},
           {R"({})", "replies is missing"},
           {R"({"replies":[{"text":"a"}]})", "replies[0].match"},
           {R"({"replies":[{"match":""}]})", "text or ids"},
           {R"({"replies":[{"match":"","text":"a","ids":[1]}]})", "either"},
           {R"({"replies":[{"match":"","text":"a","step":0}]})", "replies[0].step"},
           {R"({"replies":[{"match":"","text":"a","delay_ms":-1}]})", "delay_ms"},
           {R"({"replies":[{"match":"","text":"a","pauses":[{"after":1}]}]})", "pauses"},
           {R"({"replies":[{"match":"","text":"a","stepp":1}]})", "stepp"},
           {R"({"replies":[{"match":"","text":"","end":false}]})", "endless"},
           {R"({"replies":[{"match":"","ids":[300]}]})", "300"},
           {R"({"contxt":1,"replies":[]})", "contxt"},
       }) {
    try {
      engine_of(script);
      FAIL() << script;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace quern

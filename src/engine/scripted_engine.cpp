#include "engine/scripted_engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "base/json.h"

namespace quern {
namespace {

using Clock = std::chrono::steady_clock;

double number_of(const Json& value, const std::string& where, double max) {
  if (!value.is_number() || !(value.as_double() >= 0) || value.as_double() > max)
    throw Error(
        fmt::format("script: {}: expected a number from 0 to {}, found {}", where, max, write_json(value)));
  return value.as_double();
}

int64_t count_of(const Json& value, const std::string& where, int64_t min) {
  if (!value.is_int() || value.as_int() < min)
    throw Error(fmt::format("script: {}: expected an integer ≥ {}, found {}", where, min, write_json(value)));
  return value.as_int();
}

ScriptedReply parse_reply(const Json& json, const std::string& where,
                          const std::function<std::vector<int32_t>(std::string_view)>& encode) {
  constexpr double kMaxMs = 1e9;
  if (!json.is_object()) throw Error("script: " + where + ": expected an object");
  ScriptedReply reply;
  bool has_match = false, has_text = false;
  for (const auto& [key, value] : json.as_object()) {
    const std::string at = where + "." + key;
    if (key == "match") {
      if (!value.is_string()) throw Error("script: " + at + ": expected a string");
      reply.match = value.as_string(), has_match = true;
    } else if (key == "text" || key == "ids") {
      if (has_text) throw Error("script: " + where + ": expected either text or ids");
      has_text = true;
      if (key == "text") {
        if (!value.is_string()) throw Error("script: " + at + ": expected a string");
        reply.ids = encode(value.as_string());
      } else {
        if (!value.is_array()) throw Error("script: " + at + ": expected an array of ids");
        for (const Json& id : value.as_array()) {
          const int64_t n = count_of(id, at, 0);
          if (n > INT32_MAX) throw Error(fmt::format("script: {}: id {} is too large", at, n));
          reply.ids.push_back(static_cast<int32_t>(n));
        }
      }
    } else if (key == "step") {
      reply.step = count_of(value, at, 1);
    } else if (key == "delay_ms") {
      reply.delay_ms = number_of(value, at, kMaxMs);
    } else if (key == "first_delay_ms") {
      reply.first_delay_ms = number_of(value, at, kMaxMs);
    } else if (key == "pauses") {
      if (!value.is_array()) throw Error("script: " + at + ": expected an array");
      for (const Json& pause : value.as_array()) {
        const Json *after = pause.find("after"), *ms = pause.find("ms");
        if (!after || !ms || pause.size() != 2)
          throw Error("script: " + at + ": expected {\"after\": tokens, \"ms\": milliseconds}");
        reply.pauses.push_back({count_of(*after, at + ".after", 0), number_of(*ms, at + ".ms", kMaxMs)});
      }
      std::sort(reply.pauses.begin(), reply.pauses.end(),
                [](const auto& a, const auto& b) { return a.after < b.after; });
    } else if (key == "error_after") {
      reply.error_after = count_of(value, at, 0);
    } else if (key == "hang_after") {
      reply.hang_after = count_of(value, at, 0);
    } else if (key == "cached_tokens") {
      reply.cached_tokens = count_of(value, at, 0);
    } else if (key == "end") {
      if (!value.is_bool()) throw Error("script: " + at + ": expected true or false");
      reply.end = value.as_bool();
    } else {
      throw Error("script: " + at + ": unknown field");
    }
  }
  if (!has_match) throw Error("script: " + where + ".match is missing");
  if (!has_text) throw Error("script: " + where + ": text or ids is missing");
  if (!reply.end && reply.ids.empty()) throw Error("script: " + where + ": an endless reply needs tokens");
  return reply;
}

// One reply under way.
struct Run {
  RequestId id = 0;
  int32_t index = 0;
  std::shared_ptr<const Request> request;
  EventSink sink;
  const ScriptedReply* reply = nullptr;
  Clock::time_point submitted, started, first_token;
  Clock::time_point next;
  int64_t emitted = 0;  // ids of the reply so far
  int64_t at = 0;       // position in the script
  size_t next_pause = 0;
  bool thinking_ended = false;
  int64_t forced = -1;  // ≥ 0: position in thinking_close
  bool hanging = false, cancelled = false, done = false;
};
using RunPtr = std::shared_ptr<Run>;

struct Later {
  bool operator()(const std::pair<Clock::time_point, RunPtr>& a,
                  const std::pair<Clock::time_point, RunPtr>& b) const {
    return a.first > b.first;
  }
};

class ScriptedEngine : public Engine {
 public:
  ScriptedEngine(Script script, ScriptedEngineOptions options)
      : script_(std::move(script)), options_(std::move(options)), thread_([this] { run(); }) {}
  ~ScriptedEngine() override { stop(); }

  RequestId submit(Request request, EventSink sink) override {
    check(request);
    const ScriptedReply* reply = find_reply(request);
    std::lock_guard lock(mutex_);
    if (draining_) throw SubmitError(SubmitError::Kind::ShuttingDown, "the engine is shutting down");
    if (running_ + static_cast<int64_t>(waiting_.size()) + request.n >
        int64_t{options_.max_running} + options_.max_queue)
      throw SubmitError(SubmitError::Kind::Full,
                        fmt::format("the queue is full: {} running, {} waiting", running_, waiting_.size()));
    const RequestId id = ++last_id_;
    auto shared = std::make_shared<const Request>(std::move(request));
    auto& runs = runs_[id];
    for (int32_t i = 0; i < shared->n; ++i) {
      auto run = std::make_shared<Run>();
      run->id = id, run->index = i, run->request = shared, run->sink = sink, run->reply = reply;
      run->submitted = Clock::now();
      runs.push_back(run);
      waiting_.push_back(run);
    }
    ++stats_.requests;
    changed_.notify_one();
    return id;
  }

  void cancel(RequestId id) override {
    std::lock_guard lock(mutex_);
    const auto found = runs_.find(id);
    if (found == runs_.end()) return;
    for (const RunPtr& run : found->second) run->cancelled = true;
    cancelled_.push_back(id);
    changed_.notify_one();
  }

  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.running = running_;
    stats.waiting = static_cast<int64_t>(waiting_.size());
    stats.slots_total = options_.max_running;
    stats.slots_used = running_;
    if (!hanging_.empty())
      stats.seconds_in_step = std::chrono::duration<double>(Clock::now() - hanging_.begin()->first).count();
    return stats;
  }

  EngineLimits limits() const override {
    return {script_.context, options_.vocab, options_.max_running, options_.max_queue};
  }

  void drain() override {
    std::lock_guard lock(mutex_);
    draining_ = true;
  }

  void stop() override {
    {
      std::lock_guard lock(mutex_);
      draining_ = stopping_ = true;
      changed_.notify_one();
    }
    std::lock_guard once(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  static SubmitError invalid(const std::string& message) { return {SubmitError::Kind::Invalid, message}; }

  void check(const Request& request) const {
    if (request.prompt.empty()) throw invalid("prompt: expected at least one token");
    for (int32_t id : request.prompt)
      if (id < 0 || id >= options_.vocab)
        throw invalid(fmt::format("prompt: token id {} is outside the vocabulary of {}", id, options_.vocab));
    if (request.n < 1 || request.n > options_.max_running)
      throw invalid(fmt::format("n: expected 1 to {}, found {}", options_.max_running, request.n));
    if (request.max_tokens < 1)
      throw invalid(fmt::format("max_tokens: expected at least 1, found {}", request.max_tokens));
    const auto size = static_cast<int64_t>(request.prompt.size());
    if (size >= script_.context || request.max_tokens > script_.context - size)
      throw invalid(fmt::format("prompt: {} tokens and a reply of up to {} exceed the context of {}", size,
                                request.max_tokens, script_.context));
  }

  const ScriptedReply* find_reply(const Request& request) const {
    std::string prompt;
    bool decoded = false;
    for (const ScriptedReply& reply : script_.replies) {
      if (reply.match.empty()) return &reply;
      if (!decoded) prompt = options_.decode(request.prompt), decoded = true;
      if (prompt.find(reply.match) != std::string::npos) return &reply;
    }
    throw invalid("the script has no reply for this prompt");
  }

  static Clock::duration ms(double value) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(value));
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      while (!cancelled_.empty()) {
        const RequestId id = cancelled_.back();
        cancelled_.pop_back();
        if (const auto found = runs_.find(id); found != runs_.end()) {
          const std::vector<RunPtr> runs = found->second;
          for (const RunPtr& run : runs) end(lock, run, FinishReason::Cancelled, "");
        }
      }
      if (stopping_) break;
      while (!waiting_.empty() && running_ < options_.max_running) {
        RunPtr run = waiting_.front();
        waiting_.pop_front();
        start(run);
      }
      if (heap_.empty()) {
        changed_.wait(lock,
                      [&] { return stopping_ || !cancelled_.empty() || can_start() || !heap_.empty(); });
        continue;
      }
      const auto due = heap_.top().first;
      if (due > Clock::now()) {
        changed_.wait_until(lock, std::max(due, awoke_ + kTick));
        awoke_ = Clock::now();
        continue;
      }
      RunPtr run = heap_.top().second;
      heap_.pop();
      if (!run->done) step(lock, run);
    }
    while (!runs_.empty()) {
      const std::vector<RunPtr> runs = runs_.begin()->second;
      for (const RunPtr& run : runs) end(lock, run, FinishReason::Cancelled, "");
    }
  }

  bool can_start() const { return !waiting_.empty() && running_ < options_.max_running; }

  void start(const RunPtr& run) {
    ++running_;
    run->started = Clock::now();
    run->next = run->started + ms(run->reply->first_delay_ms);
    const int64_t cached = cached_tokens(*run);
    stats_.prompt_tokens += static_cast<int64_t>(run->request->prompt.size());
    stats_.cached_tokens += cached;
    ++(cached ? stats_.cache_hits : stats_.cache_misses);
    add_pause(*run);
    heap_.emplace(run->next, run);
  }

  static int64_t cached_tokens(const Run& run) {
    return std::min(run.reply->cached_tokens, static_cast<int64_t>(run.request->prompt.size()) - 1);
  }

  static void add_pause(Run& run) {
    while (run.next_pause < run.reply->pauses.size() &&
           run.reply->pauses[run.next_pause].after <= run.emitted)
      run.next += ms(run.reply->pauses[run.next_pause++].ms);
  }

  // How many of the next ids come in this step: a step ends early where a pause, an error or a hang begins.
  static int64_t step_size(const Run& run) {
    int64_t n = run.reply->step;
    const auto cut = [&](int64_t after) {
      if (after > run.emitted) n = std::min(n, after - run.emitted);
    };
    if (run.next_pause < run.reply->pauses.size()) cut(run.reply->pauses[run.next_pause].after);
    if (run.reply->error_after >= 0) cut(run.reply->error_after);
    if (run.reply->hang_after >= 0) cut(run.reply->hang_after);
    return n;
  }

  int32_t next_id(Run& run) const {
    const Request& request = *run.request;
    if (request.thinking_budget >= 0 && !run.thinking_ended && run.forced < 0 &&
        run.emitted >= request.thinking_budget && !request.thinking_close.empty())
      run.forced = 0;
    if (run.forced >= 0 && run.forced < static_cast<int64_t>(request.thinking_close.size())) {
      const int32_t id = request.thinking_close[static_cast<size_t>(run.forced++)];
      if (id == request.thinking_end_id) run.thinking_ended = true;
      if (run.forced == static_cast<int64_t>(request.thinking_close.size())) {
        // The answer is what the script says after its own end of thinking.
        run.forced = -1, run.thinking_ended = true;
        const auto& ids = run.reply->ids;
        const auto found =
            std::find(ids.begin() + std::min<int64_t>(run.at, static_cast<int64_t>(ids.size())), ids.end(),
                      request.thinking_end_id);
        run.at = found == ids.end() ? static_cast<int64_t>(ids.size()) : found - ids.begin() + 1;
      }
      return id;
    }
    if (run.at >= static_cast<int64_t>(run.reply->ids.size())) {
      run.at = 0;
      if (run.reply->end || run.reply->ids.empty()) return options_.end_id;
    }
    const int32_t id = run.reply->ids[static_cast<size_t>(run.at++)];
    if (id == request.thinking_end_id) run.thinking_ended = true;
    return id;
  }

  void step(std::unique_lock<std::mutex>& lock, const RunPtr& run) {
    const ScriptedReply& reply = *run->reply;
    const Request& request = *run->request;
    if (reply.error_after >= 0 && run->emitted >= reply.error_after)
      return end(lock, run, FinishReason::Error, "the script ends this reply with an error");
    if (reply.hang_after >= 0 && run->emitted >= reply.hang_after) {
      run->hanging = true;
      hanging_.emplace(Clock::now(), run->id);
      return;
    }
    ++stats_.steps;
    Event event;
    event.request = run->id, event.index = run->index;
    bool finished = false;
    for (int64_t n = step_size(*run); n > 0 && !finished; --n) {
      const int32_t id = next_id(*run);
      event.ids.push_back(id);
      ++run->emitted;
      if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
        finished = true, event.reason = FinishReason::Stop;
      } else if (run->emitted >= request.max_tokens) {
        finished = true, event.reason = FinishReason::Length;
      }
    }
    if (request.sampling.n_logprobs >= 0)
      for (int32_t id : event.ids) {
        TokenLogprob logprob;
        if (request.sampling.n_logprobs > 0) logprob.top.emplace_back(id, 0.0f);
        event.logprobs.push_back(std::move(logprob));
      }
    if (run->emitted == static_cast<int64_t>(event.ids.size())) run->first_token = Clock::now();
    stats_.completion_tokens += static_cast<int64_t>(event.ids.size());
    fill_usage(*run, event.usage);
    const EventSink sink = run->sink;
    if (finished) {
      sink_unlocked(lock, sink, event);
      return end(lock, run, event.reason, "");
    }
    run->next = std::max(run->next + ms(reply.delay_ms), Clock::now() - std::chrono::milliseconds(100));
    add_pause(*run);
    heap_.emplace(run->next, run);
    sink_unlocked(lock, sink, event);
  }

  static void sink_unlocked(std::unique_lock<std::mutex>& lock, const EventSink& sink, const Event& event) {
    lock.unlock();
    sink(event);
    lock.lock();
  }

  static void fill_usage(const Run& run, Usage& usage) {
    usage.prompt_tokens = static_cast<int64_t>(run.request->prompt.size());
    usage.cached_tokens = cached_tokens(run);
    usage.completion_tokens = run.emitted;
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const auto now = Clock::now();
    if (run.started == Clock::time_point{}) {
      usage.queue_seconds = seconds(now - run.submitted);
      return;
    }
    usage.queue_seconds = seconds(run.started - run.submitted);
    const auto first = run.emitted ? run.first_token : now;
    usage.prefill_seconds = seconds(first - run.started);
    usage.decode_seconds = seconds(now - first);
  }

  void end(std::unique_lock<std::mutex>& lock, const RunPtr& run, FinishReason reason,
           const std::string& error) {
    if (run->done) return;
    run->done = true;
    if (run->started == Clock::time_point{})
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), run));
    else
      --running_;
    if (run->hanging)
      for (auto it = hanging_.begin(); it != hanging_.end();)
        it = it->second == run->id ? hanging_.erase(it) : std::next(it);
    if (const auto found = runs_.find(run->id); found != runs_.end()) {
      std::erase(found->second, run);
      if (found->second.empty()) runs_.erase(found);
    }
    ++(reason == FinishReason::Cancelled ? stats_.cancelled
       : reason == FinishReason::Error   ? stats_.failed
                                         : stats_.finished);
    Event event;
    event.request = run->id, event.index = run->index;
    event.finished = true, event.reason = reason, event.error = error;
    fill_usage(*run, event.usage);
    const EventSink sink = std::move(run->sink);
    sink_unlocked(lock, sink, event);
  }

  // Like a model's step, a wake-up serves every stream that is due; 64 streams at 500 tokens/s would else cost 32 000 a
  // second. Nothing comes more than this later than written.
  static constexpr auto kTick = std::chrono::microseconds(500);

  const Script script_;
  const ScriptedEngineOptions options_;
  Clock::time_point awoke_{};
  mutable std::mutex mutex_;
  std::mutex join_mutex_;
  std::condition_variable changed_;
  std::deque<RunPtr> waiting_;
  std::map<RequestId, std::vector<RunPtr>> runs_;
  std::vector<RequestId> cancelled_;
  std::priority_queue<std::pair<Clock::time_point, RunPtr>, std::vector<std::pair<Clock::time_point, RunPtr>>,
                      Later>
      heap_;
  std::multimap<Clock::time_point, RequestId> hanging_;
  EngineStats stats_;
  int64_t running_ = 0;
  RequestId last_id_ = 0;
  bool draining_ = false, stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Script parse_script(std::string_view text,
                    const std::function<std::vector<int32_t>(std::string_view)>& encode) {
  const Json json = parse_json(text);
  if (!json.is_object()) throw Error("script: expected an object with \"replies\"");
  Script script;
  bool has_replies = false;
  for (const auto& [key, value] : json.as_object()) {
    if (key == "context") {
      script.context = count_of(value, key, 2);
    } else if (key == "replies") {
      if (!value.is_array()) throw Error("script: replies: expected an array");
      has_replies = true;
      for (size_t i = 0; i < value.as_array().size(); ++i)
        script.replies.push_back(parse_reply(value.as_array()[i], fmt::format("replies[{}]", i), encode));
    } else {
      throw Error("script: " + key + ": unknown field");
    }
  }
  if (!has_replies) throw Error("script: replies is missing");
  return script;
}

std::unique_ptr<Engine> make_scripted_engine(Script script, ScriptedEngineOptions options) {
  QUERN_CHECK(options.vocab > 0 && options.end_id >= 0 && options.decode,
              "the scripted engine needs a tokenizer");
  for (const ScriptedReply& reply : script.replies)
    for (int32_t id : reply.ids)
      if (id >= options.vocab)
        throw Error(fmt::format("script: id {} is outside the vocabulary of {}", id, options.vocab));
  return std::make_unique<ScriptedEngine>(std::move(script), std::move(options));
}

}  // namespace quern

#include "engine/model_engine.h"

#include <fmt/core.h>

#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "base/log.h"

namespace quern {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

ModelEngine::ModelEngine(Model& model, const EngineOptions& options) : core_(model, options) {
  core_.set_wake([this] {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    wake_.notify_one();
  });
  stats_ = core_.stats();
  thread_ = std::thread([this] { run(); });
}

ModelEngine::~ModelEngine() { stop(); }

RequestId ModelEngine::submit(Request request, EventSink sink) {
  core_.check(request);
  auto submission = std::make_shared<Submission>();
  submission->submitted = Clock::now();
  submission->sink = std::move(sink);
  submission->request = std::move(request);
  {
    const std::lock_guard lock(mutex_);
    if (draining_) throw SubmitError(SubmitError::Kind::ShuttingDown, "the engine is shutting down");
    // A free machine takes as many as it can run beyond the queue.
    const int64_t room =
        int64_t{core_.limits().max_queue} + core_.limits().max_running - stats_.running - replies_waiting_;
    if (submission->request.n > room)
      throw SubmitError(SubmitError::Kind::Full, fmt::format("the queue is full: {} running, {} waiting",
                                                             stats_.running, replies_waiting_));
    replies_waiting_ += submission->request.n;
    submitted_ += submission->request.n;
    submission->id = ++last_id_;
  }
  const RequestId id = submission->id;
  core_.post([this, submission = std::move(submission)] { core_.submit(submission); });
  return id;
}

void ModelEngine::cancel(RequestId id) {
  core_.post([this, id] { core_.cancel(id); });
}

EngineStats ModelEngine::stats() const {
  EngineStats s;
  {
    const std::lock_guard lock(mutex_);
    s = stats_;
    s.waiting = replies_waiting_ - s.preempted;
  }
  const int64_t began = step_began_;
  s.seconds_in_step = began == 0 ? 0 : static_cast<double>(now_ns() - began) * 1e-9;
  return s;
}

void ModelEngine::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void ModelEngine::stop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stopping_ = woken_ = true;
    wake_.notify_one();
  }
  const std::lock_guard once(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void ModelEngine::clear_cache() {
  std::promise<void> done;
  core_.post([&] {
    core_.cache().index().clear();
    done.set_value();
  });
  done.get_future().wait();
}

void ModelEngine::publish() {
  EngineStats s = core_.stats();
  const std::lock_guard lock(mutex_);
  replies_waiting_ = submitted_ - core_.n_entered() + core_.n_waiting();
  stats_ = std::move(s);
}

void ModelEngine::run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      woken_ = false;
    }
    step_began_ = now_ns();
    bool ran = false;
    try {
      ran = core_.step();
    } catch (const std::exception& e) {
      // Out of memory for a snapshot, a device fault: whoever runs ends, the engine goes on.
      log(LogLevel::Error, "a step failed: {}", e.what());
      core_.fail_all(e.what());
    }
    step_began_ = 0;
    publish();
    std::unique_lock lock(mutex_);
    const auto woken = [this] { return woken_ || stopping_; };
    if (ran) continue;
    if (core_.idle())
      wake_.wait(lock, woken);
    else
      wake_.wait_for(lock, std::chrono::milliseconds(20), woken);  // the disk, most likely
  }
  core_.run_posted();
  core_.end_all();
  publish();
}

}  // namespace quern

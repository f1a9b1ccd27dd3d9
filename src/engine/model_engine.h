// The engine that runs the model: EngineCore on a thread of its own behind a bounded queue. That thread alone
// touches model, caches and stream.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_core.h"
#include "engine/engine_options.h"

namespace quern {

class ModelEngine : public Engine {
 public:
  // The model, and the stream and pool it uses, must outlive the engine.
  ModelEngine(Model& model, const EngineOptions& options);
  ~ModelEngine() override;

  RequestId submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  EngineLimits limits() const override { return core_.limits(); }
  void drain() override;
  void stop() override;

  // Forgets every cached prefix in memory; files stay. Returns when done.
  void clear_cache();

 private:
  void run();
  void publish();  // stats, for other threads

  EngineCore core_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false, draining_ = false, stopping_ = false;
  int64_t submitted_ = 0;        // replies, ever
  int64_t replies_waiting_ = 0;  // submitted and not yet looked at, or waiting in the core
  RequestId last_id_ = 0;
  EngineStats stats_;
  std::atomic<int64_t> step_began_{0};  // steady clock, ns; 0: no step runs
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace quern

// The engine of a server that answers before its model is loaded: it is loading (EngineStats) and refuses requests until
// the real one takes its place.
#pragma once

#include <atomic>

#include "engine/engine.h"

namespace quern {

class LateEngine : public Engine {
 public:
  // Once, from any thread; `engine` must outlive this.
  void set(Engine& engine);

  RequestId submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  EngineLimits limits() const override;  // nothing fits while loading
  void drain() override;
  void stop() override;

 private:
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
};

}  // namespace quern

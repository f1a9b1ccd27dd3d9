#include "engine/late_engine.h"

namespace quern {

void LateEngine::set(Engine& engine) {
  engine_ = &engine;
  if (draining_) engine.drain();  // whichever of the two came first
}

RequestId LateEngine::submit(Request request, EventSink sink) {
  Engine* engine = engine_;
  if (!engine) throw SubmitError(SubmitError::Kind::ShuttingDown, "the model is being loaded");
  return engine->submit(std::move(request), std::move(sink));
}

void LateEngine::cancel(RequestId id) {
  if (Engine* engine = engine_) engine->cancel(id);
}

EngineStats LateEngine::stats() const {
  if (const Engine* engine = engine_) return engine->stats();
  EngineStats stats;
  stats.loading = true;
  return stats;
}

EngineLimits LateEngine::limits() const {
  const Engine* engine = engine_;
  return engine ? engine->limits() : EngineLimits{};
}

void LateEngine::drain() {
  draining_ = true;
  if (Engine* engine = engine_) engine->drain();
}

void LateEngine::stop() {
  draining_ = true;
  if (Engine* engine = engine_) engine->stop();
}

}  // namespace quern

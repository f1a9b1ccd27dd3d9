// A server in front of quern-tiny itself.
#pragma once

#include <algorithm>
#include <thread>

#include "engine/model_engine.h"
#include "engine/tiny_engine.h"
#include "server/test_server.h"

namespace quern::testing {

class ModelServer : public TestServer {
 public:
  explicit ModelServer(EngineOptions engine_options = {}, ServiceOptions options = {})
      : tiny_(512, 8, 640, 4096, static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4u))) {
    engine = std::make_unique<ModelEngine>(*tiny_.model, engine_options);
    serve(std::move(options));
  }
  // The engine goes before the model it runs.
  ~ModelServer() {
    engine->stop();
    service->stop();
    service.reset();
    engine.reset();
  }

 private:
  TinyModel tiny_;
};

}  // namespace quern::testing

// The options of commands that answer requests, and opening a model with an engine on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine_options.h"
#include "engine/model_engine.h"
#include "model_flags.h"

namespace CLI {
class App;
}

namespace quern {

struct EngineFlags {
  int64_t context = 0;  // 0: the model's limit, or 32768 if that is less
  int slots = 4;
  double cache_gib = 4;  // of KV pages, over all sequences
  int64_t step_rows = 1024;
  EngineOptions options;
  double snapshot_gib = 4, snapshot_disk_gib = 64;
  bool no_draft_block = false, no_draft_lookup = false, no_prefix_cache = false;

  void add_to(CLI::App& app);
};

struct OpenEngine {
  OpenModel open;
  std::unique_ptr<ModelEngine> engine;  // goes first
};

// Throws Error where the cache does not hold one sequence of --ctx tokens, with both numbers.
OpenModel open_model_for(const ModelFlags& flags, EngineFlags& engine);
OpenEngine open_engine(const ModelFlags& flags, EngineFlags engine);

}  // namespace quern

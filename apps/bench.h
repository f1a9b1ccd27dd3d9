// What quern bench measures, one file each.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_flags.h"

namespace quern {

struct BenchOptions {
  ModelFlags model;
  EngineFlags engine;
  bool json = false;
  int64_t tokens = 0;        // of each reply; 0: the measurement's own
  int64_t context = 0;       // tokens before them
  std::vector<int> streams;  // widths
};

// Tokens a step and a second with each kind and depth of drafts, on texts of three kinds.
int bench_drafts(const BenchOptions& options);
// Tokens a second of one stream and of several, whose ids must agree.
int bench_streams(const BenchOptions& options);

}  // namespace quern

// What quern bench measures, one file each.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_flags.h"

namespace quern {

struct StepOptions {
  std::vector<int64_t> contexts = {0, 1024};  // tokens before what is measured
  std::vector<int64_t> widths = {1, 4};       // sequences decoded together
  std::vector<int64_t> drafts = {0};          // drafted rows of each of them
  int64_t prompt = 512;                       // tokens of a measured prefill
  int64_t n = 16;                             // decode steps; the median counts
  int64_t repeats = 2;                        // prefills; the quickest counts
};

struct BenchOptions {
  ModelFlags model;
  EngineFlags engine;
  bool json = false;
  int64_t tokens = 0;        // of each reply; 0: the measurement's own
  int64_t context = 0;       // tokens before them
  std::vector<int> streams;  // widths
  StepOptions steps;
};

// Prefill and decode steps, beside what this machine can read and multiply.
int bench_steps(const BenchOptions& options);
// Tokens a step and a second with each kind and depth of drafts, on texts of three kinds.
int bench_drafts(const BenchOptions& options);
// Tokens a second of one stream and of several, whose ids must agree.
int bench_streams(const BenchOptions& options);

}  // namespace quern

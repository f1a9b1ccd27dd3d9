// What the next step runs: a pure function of who waits, who runs, and what is free. No device, no clock, no
// memory of its own, so a run of ten thousand requests is a unit test.
//
// Rules
// - Every decoding sequence gets a row in every step, so a stream's gap is the length of one step.
// - Prefill fills the step up to `max_stall` seconds of the measured cost model while a stream is decoding, and
//   up to `max_rows` otherwise; at least one 64-row chunk, so that
//     gap ≤ max(max_stall, one step with one 64-row chunk),
//   as far as steps stay below what the model takes for their most (CostModel::at_most).
//   Chunks end at absolute multiples of 64, except a prompt's last piece. The oldest prefill has half of the
//   rows, the rest go to the shortest remaining: neither starves the other. With one chunk to give they take
//   turns.
// - Order is effective priority (priority, plus one for every kAgingSteps steps waited), then arrival. A
//   waiting request that does not fit is not overtaken.
// - Admission takes a slot and all pages of the prompt and one more, or nothing. While others decode it also
//   leaves one page for each of them, so that it is not thrown out at once.
// - A decoding sequence that needs a page and finds none preempts the last in order, itself if it is last.
//   A waiting request preempts only those whose effective priority is below its own priority.
// - Drafts never preempt, and give way where they would break the bound.
// Progress: the first in order can take every page and slot, and no request larger than the pool is admitted
// at all (submit refuses it), so the first in order always runs to its end.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost_model.h"

namespace quern {

inline constexpr int64_t kAgingSteps = 2048;

struct Waiting {
  uint64_t id = 0;
  int32_t priority = 0;
  uint64_t arrival = 0;      // the place in the order of submission; kept through preemption
  int64_t waited_steps = 0;  // steps spent waiting so far, since submission
  int64_t pages = 0;         // new pages it needs to be admitted, the one for its next token included
  bool ready = true;         // false: it waits for something else (a read from disk, a prefix in flight)
  // What it will run once admitted, as in Running.
  int64_t position = 0, chunk_limit = 0, prompt_end = 0;
};

struct Running {
  uint64_t id = 0;
  int32_t priority = 0;
  uint64_t arrival = 0;
  int64_t waited_steps = 0;
  int64_t pages = 0;        // pages it holds: token capacity is 64 · pages
  int64_t pages_freed = 0;  // pages that preempting it would free
  int64_t position = 0;     // tokens run so far = position of its next row
  int64_t chunk_limit = 0;  // prefill stops here this step (a snapshot point or the prompt's end)
  int64_t prompt_end = 0;   // position < prompt_end: prefill; else decode
  int32_t drafts = 0;       // wanted behind the next row

  bool prefilling() const { return position < prompt_end; }
};

struct SchedulerInput {
  std::vector<Waiting> waiting;
  std::vector<Running> running;
  int64_t free_pages = 0, free_slots = 0;
  int64_t max_rows = 0;  // of a step; at least 64 + slots
  double max_stall = 0;  // seconds
  uint64_t step = 0;     // a counter, for taking turns
  CostModel cost;
};

struct PlannedRows {
  uint64_t id = 0;
  int64_t rows = 0;  // prefill: of the chunk; decode: 1 + drafts
};

// To be carried out in this order.
struct Plan {
  std::vector<uint64_t> preempt;
  std::vector<uint64_t> admit;
  std::vector<PlannedRows> decode, prefill;
};

Plan plan_step(const SchedulerInput& in);

}  // namespace quern

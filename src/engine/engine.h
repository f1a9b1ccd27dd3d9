// The engine's public face: submit, cancel, look. Two engines exist: the model's (model_engine.h) and the
// scripted one that stands in for it in server tests (scripted_engine.h). All calls are safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/draft_switch.h"
#include "engine/request.h"

namespace quern {

struct EngineLimits {
  int64_t context = 0;      // tokens of prompt and reply together
  int32_t vocab = 0;        // ids are below this
  int32_t max_running = 0;  // sequences in one step
  int32_t max_queue = 0;
};

// A refused submit. Full: try again later (HTTP 429/503). Invalid: the request can never run (HTTP 400).
class SubmitError : public Error {
 public:
  enum class Kind { Full, Invalid, ShuttingDown };
  SubmitError(Kind kind, const std::string& message) : Error(message), kind(kind) {}
  Kind kind;
};

// Drafts of one source. `on` and `switches` are by RequestKind (engine/draft_switch.h).
struct DraftTally {
  int64_t drafted = 0, accepted = 0;
  std::array<bool, kRequestKinds> on{};
  std::array<int64_t, kRequestKinds> switches{};  // how often they went off or on
};

// Counters since start, and gauges of now; for /metrics, the live panel and tests.
struct EngineStats {
  bool loading = false;
  double seconds_in_step = 0;  // how long the running step has run: a watchdog calls it stuck beyond a bound
  int64_t running = 0, waiting = 0, preempted = 0;
  int64_t pages_total = 0, pages_used = 0, slots_total = 0, slots_used = 0;
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, preemptions = 0, steps = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t cache_hits = 0, cache_misses = 0, cache_bytes = 0, cache_disk_bytes = 0, snapshots = 0;
  int64_t cache_disk_hits = 0;                                   // prefixes taken from disk
  int64_t cache_evicted_pages = 0, cache_evicted_snapshots = 0;  // given up because room was short
  std::vector<int64_t> drafted, accepted;                        // by draft position
  DraftTally block_drafts, lookup_drafts;                        // by where they came from
};

class Engine {
 public:
  virtual ~Engine() = default;
  // Throws SubmitError naming the field. `sink` receives the events until one with `finished` for each of the
  // n replies.
  virtual RequestId submit(Request request, EventSink sink) = 0;
  // The request ends with FinishReason::Cancelled at the end of the running step. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  virtual EngineLimits limits() const = 0;
  // No new requests; running ones go on. `stop` ends them too, and joins.
  virtual void drain() = 0;
  virtual void stop() = 0;
};

}  // namespace quern

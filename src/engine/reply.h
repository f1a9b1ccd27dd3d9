// One reply under way: what was asked, what came so far, and the sequence that holds its state in the model. The
// engine's thread owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/prefix_index.h"
#include "cache/sequence.h"
#include "engine/draft_policy.h"
#include "engine/grammar_place.h"
#include "engine/ngram_draft.h"
#include "engine/request.h"

namespace quern {

using Clock = std::chrono::steady_clock;

// What the n replies of a request share.
struct Submission {
  RequestId id = 0;
  Request request;
  EventSink sink;
  Clock::time_point submitted;
};

struct SnapshotPoint {
  int64_t position = 0;
  SnapshotKind kind = SnapshotKind::Turn;
};

enum class Phase : uint8_t {
  Waiting,  // no state in the model yet
  Swapped,  // preempted: its state lies in host memory
  Running,  // holds a slot; prefilling while length < prompt
  Ended,
};

struct Reply {
  std::shared_ptr<const Submission> submission;
  int32_t index = 0;
  uint64_t key = 0;  // unique; also the order of arrival
  Phase phase = Phase::Waiting;
  int64_t waited_steps = 0;
  bool cancelled = false;
  std::string error;  // not empty: ends with this at the end of the step

  std::vector<int32_t> ids;  // prompt and reply
  std::unique_ptr<Sequence> sequence;
  std::vector<SnapshotPoint> snapshot_points;      // ascending, multiples of 64, within the prompt
  std::shared_ptr<const Snapshot> reply_snapshot;  // the latest within the reply, where replies are shared
  int64_t cached_tokens = 0;
  enum class Disk : uint8_t { Untried, Reading, Done } disk = Disk::Untried;

  // The prefix cache's answer for a waiting reply, and when it was asked.
  int64_t match_tokens = 0, match_shared = 0, match_common = 0;
  uint64_t match_generation = UINT64_MAX;

  // Ids seen, sorted, with how often the reply holds each: what penalties need; empty without penalties.
  std::vector<int32_t> seen_ids, seen_counts;

  GrammarPlace grammar;
  NgramDraft lookup;
  Acceptance acceptance;
  int64_t steps_since_block = 0, steps_since_lookup = 0;
  int64_t drafted = 0, accepted = 0;

  Clock::time_point started, first_token, ended;

  const Request& request() const { return submission->request; }
  int64_t prompt_size() const { return static_cast<int64_t>(request().prompt.size()); }
  int64_t reply_size() const { return static_cast<int64_t>(ids.size()) - prompt_size(); }
  int64_t length() const { return sequence ? sequence->length() : 0; }
  bool prefilling() const { return length() < prompt_size(); }
  uint64_t seed() const { return request().sampling.seed + static_cast<uint64_t>(index); }
};

// The id that must stand at place `at` of the reply because the thinking budget is spent, or -1. A function of
// the reply's ids alone, so drafts cannot change it. `reply` holds at least min(at, budget) ids.
int32_t forced_id(const Request& request, std::span<const int32_t> reply, int64_t at);

// Whether an id at place `at` (counted from 0) ends the reply.
inline bool ends_reply(const Request& request, int32_t id, int64_t at) {
  for (const int32_t stop : request.stop_ids)
    if (stop == id) return true;
  return at + 1 >= request.max_tokens;
}

}  // namespace quern

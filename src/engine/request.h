// What the engine is asked and what it answers. Token ids only: text, templates and protocols live above,
// tensors below.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace quern {

class Grammar;  // text/grammar.h

// How the next id is chosen from a row of logits, in this order: logit bias, penalties, grammar mask,
// temperature, top-k, top-p, min-p, then Gumbel-max keyed by (seed, position, id), so a seed gives the same
// ids whatever else runs and however many tokens were drafted. All cuts break ties to the lower id.
struct SamplingParams {
  float temperature = 1;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off
  float repetition_penalty = 1;  // over prompt and reply: positive logits are divided by it, others multiplied
  float presence_penalty = 0;    // subtracted from ids that the reply holds
  float frequency_penalty = 0;   // subtracted once per occurrence in the reply
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the raw logits; -inf bans
  uint64_t seed = 0;
  // -1: none; k ≥ 0: log-probabilities, of the raw logits, of the chosen id and of the k most likely ones.
  int32_t n_logprobs = -1;
};

struct Request {
  std::vector<int32_t> prompt;  // at least one id
  SamplingParams sampling;
  int64_t max_tokens = 0;                // of each reply, ≥ 1
  std::vector<int32_t> stop_ids;         // an id that ends the reply; it is reported, and counted
  int32_t n = 1;                         // replies to the one prompt; reply i draws with seed + i
  int32_t priority = 0;                  // higher runs first and is preempted last
  std::vector<int64_t> snapshot_points;  // prompt lengths worth a snapshot (end of the system prompt, of each
                                         // message), any order

  std::shared_ptr<const Grammar> grammar;  // null: none
  // The grammar starts after this id was generated; -1: at the first token. Until then no stop id is chosen: a reply
  // that ends before its grammar has begun does not match it.
  int32_t grammar_after_id = -1;

  int64_t thinking_budget = -1;  // ≥ 0: after so many ids without thinking_end_id, the ids below are forced
  int32_t thinking_end_id = -1;
  std::vector<int32_t> thinking_close;  // forced ids, thinking_end_id among them

  int32_t max_drafts = -1;  // draft depth; -1: the engine's, 0: none
};

using RequestId = uint64_t;

enum class FinishReason : uint8_t { Stop, Length, Cancelled, Error };

struct TokenLogprob {
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely first, ties to the lower id
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  int64_t completion_tokens = 0;  // of this reply
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

// One of: tokens of a reply (ids not empty), or its end (finished). Sent in order for each reply.
struct Event {
  RequestId request = 0;
  int32_t index = 0;  // which of the n replies
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;  // one an id where asked for
  bool finished = false;
  FinishReason reason = FinishReason::Stop;
  std::string error;  // of FinishReason::Error: one line for the user
  Usage usage;        // so far
};

// Called on the engine's thread; must return at once and not throw. A sink that cannot take more posts
// elsewhere or cancels.
using EventSink = std::function<void(const Event&)>;

}  // namespace quern

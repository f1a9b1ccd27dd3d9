// An engine that says what a script tells it: it stands in for the model in server tests and needs no
// weights. Limits, stop ids, the thinking budget and cancel are honoured as for a real reply. A grammar is
// not applied: the script is what the model said.
//
//   {"context": 262144, "replies": [{"match": "…", "text": "…" or "ids": […], "step": 3, "delay_ms": 0,
//     "first_delay_ms": 0, "pauses": [{"after": 10, "ms": 5000}], "error_after": 7, "hang_after": 9,
//     "cached_tokens": 64, "end": true}]}
//
// All but `match` and the text are optional. A request gets the first reply whose match occurs in its
// rendered prompt ("" matches all). The first `step` tokens come after first_delay_ms, the next ones delay_ms
// apart; a pause holds back what follows the first `after` tokens. After the last token comes the end-of-turn
// token, unless `end` is false: then the text starts over until a limit. After error_after tokens the reply
// fails; after hang_after it says nothing more and counts as a step that never ends
// (EngineStats::seconds_in_step), until cancelled. Log-probabilities, where asked for, are those of
// certainty: 0 for the scripted id.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace quern {

struct ScriptedReply {
  std::string match;
  std::vector<int32_t> ids;
  int64_t step = 1;
  double delay_ms = 0, first_delay_ms = 0;
  struct Pause {
    int64_t after = 0;
    double ms = 0;
  };
  std::vector<Pause> pauses;                  // by rising `after`
  int64_t error_after = -1, hang_after = -1;  // -1: never
  int64_t cached_tokens = 0;
  bool end = true;
};

struct Script {
  int64_t context = 262144;
  std::vector<ScriptedReply> replies;
};

// `encode` turns a reply's text into ids, control tokens recognised. Throws Error naming the place in the
// file.
Script parse_script(std::string_view json,
                    const std::function<std::vector<int32_t>(std::string_view)>& encode);

struct ScriptedEngineOptions {
  int32_t vocab = 0;
  int32_t end_id = -1;  // the end-of-turn token
  int32_t max_running = 256;
  int32_t max_queue = 1024;
  std::function<std::string(std::span<const int32_t>)> decode;  // the rendered prompt, for `match`
};

std::unique_ptr<Engine> make_scripted_engine(Script script, ScriptedEngineOptions options);

}  // namespace quern

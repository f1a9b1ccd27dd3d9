// What every generating endpoint is turned into before anything is rendered: one conversation (in the shape of
// OpenAI's messages and tools, which the chat templates expect) or one raw prompt, and what is wanted of the reply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"

namespace quern {

enum class ToolUse : uint8_t { Auto, None, Required, Named };

// The shape that the answer is held to.
struct AnswerFormat {
  enum class Kind : uint8_t { Text, JsonObject, JsonSchema, Regex, Ebnf };
  Kind kind = Kind::Text;
  Json schema;         // of JsonSchema
  std::string source;  // of Regex and Ebnf
  std::string path;    // the field it came from, for errors
};

struct ChatRequest {
  // A conversation: not null. Else a raw prompt: text (control tokens spelled in it are meant) or ids.
  Json messages;
  std::string_view prompt_field = "messages";  // what the client calls it, for errors
  Json tools;                                  // array of {"type": "function", "function": …}, or null
  std::string raw_text;
  std::vector<int32_t> raw_ids;

  ToolUse tool_use = ToolUse::Auto;
  std::string tool_name;  // of Named
  bool parallel_tool_calls = true;

  std::optional<bool> thinking;           // absent: the template's default
  std::optional<std::string> effort;      // low, medium, xhigh; absent: the template's default
  std::optional<bool> preserve_thinking;  // absent: the template's default
  int64_t thinking_budget = -1;

  AnswerFormat format;
  SamplingParams sampling;
  bool has_temperature = false, has_top_p = false, has_top_k = false, has_min_p = false;
  std::optional<uint64_t> seed;
  int64_t max_tokens = -1;  // -1: the room left
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  int32_t n = 1;
  int32_t priority = 0;
  int32_t max_drafts = -1;

  bool stream = false;
  bool include_usage = false;
  std::string model;  // as the client named it
};

}  // namespace quern

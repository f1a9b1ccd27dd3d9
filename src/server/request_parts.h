// What the protocols' request bodies have in common: sampling, limits, stops, effort, tools, unsupported content.
#pragma once

#include <string>
#include <string_view>

#include "server/chat_request.h"
#include "server/fields.h"

namespace quern {

// What a request may ask for; the vocabulary is the engine's.
struct RequestLimits {
  int32_t vocab = 0;
  int64_t context = 0;
  size_t messages = 10'000;
  size_t tools = 1'024;
  size_t stops = 16;
  size_t stop_bytes = 4'096;
  int32_t replies = 64;
};

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed, stop_token_ids, ignore_eos, n, priority.
void read_sampling(Fields& fields, ChatRequest& request, const RequestLimits& limits, double max_temperature);
// A string or an array of strings.
void read_stops(Fields& fields, std::string_view name, ChatRequest& request, const RequestLimits& limits);

// The names clients use for effort, mapped to what templates know. Sets thinking and effort:
//   none → thinking off · minimal, low → low · medium → medium · high, xhigh, max → xhigh
// Anything else is a 400 that lists them.
void read_effort(const std::string& path, const Json& value, ChatRequest& request);
// chat_template_kwargs: enable_thinking, preserve_thinking, reasoning_effort, thinking_budget; others are a 400.
void read_template_variables(const Json& value, const std::string& path, ChatRequest& request);

// Refuses images, audio, video and files in message content, naming the part; checks that messages is an array of
// objects with roles.
void check_messages(const Json& messages, const std::string& path, const RequestLimits& limits);
// Tools of type function, checked; others are left out with a log line. Null where none is left.
Json read_function_tools(const Json& tools, const std::string& path, const RequestLimits& limits);
// A required or named tool must be there.
void check_tool_choice(const ChatRequest& request, const std::string& path);
// Fields with which other servers constrain the answer: what would be ignored is not what was asked for.
void refuse_other_formats(Fields& fields);
// {"type": "text" | "json_object" | "json_schema", …} as chat/completions has it.
void read_response_format(const Json& value, const std::string& path, ChatRequest& request);

}  // namespace quern

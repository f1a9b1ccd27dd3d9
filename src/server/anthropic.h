// Anthropic's /v1/messages and /v1/messages/count_tokens: JSON → ChatRequest, and replies → JSON or events.
//
//   system        text blocks, one system message each; a leading block that starts with
//                 "x-anthropic-billing-header:" is left out (it changes with every request and would spoil the cache)
//   content       text, tool_use, tool_result, thinking; redacted_thinking is ignored; images and documents are refused
//   thinking      absent or disabled: off. enabled: on, with its budget. adaptive: on.
//   effort        output_config.effort: low, medium, high, xhigh, max
//   tools         of our own definition; those that Anthropic would run are left out with a log line
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "server/chat_request.h"
#include "server/reply.h"
#include "server/request_parts.h"

namespace quern {

struct AnthropicOptions {
  bool strip_billing_header = true;
  bool counting = false;  // count_tokens: max_tokens may be absent
};

ChatRequest parse_anthropic_messages(const Json& body, const RequestLimits& limits,
                                     const AnthropicOptions& options);
std::unique_ptr<ReplyWriter> make_anthropic_writer(const ChatRequest& request);
// {"type": "error", "error": {"type", "message"}}
std::string anthropic_error(const ApiError& error);

}  // namespace quern

// OpenAI's /v1/chat/completions and /v1/completions: JSON → ChatRequest, and replies → JSON or SSE chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/chat_request.h"
#include "server/reply.h"
#include "server/request_parts.h"

namespace quern {

// Throws ApiError. Fields that are not known are logged and ignored.
ChatRequest parse_chat_completion(const Json& body, const RequestLimits& limits);
ChatRequest parse_completion(const Json& body, const RequestLimits& limits);

// `model` is echoed as the client named it.
std::unique_ptr<ReplyWriter> make_chat_completion_writer(const ChatRequest& request);
std::unique_ptr<ReplyWriter> make_completion_writer(const ChatRequest& request);

// {"error": {"message", "type", "param", "code"}}
std::string openai_error(const ApiError& error);
// One model, of which `root` is the real name; all of them, the real one first.
std::string openai_model(const std::string& name, const std::string& root, int64_t context, int64_t created);
std::string openai_models(const std::vector<std::string>& names, int64_t context, int64_t created);

// Logs the fields of a request that nothing reads.
void log_unknown_fields(std::string_view endpoint, const std::vector<std::string>& names);
// The entries of a "logprobs" array, brackets left to the caller: token, logprob, bytes, top_logprobs.
void append_openai_logprobs(std::string& out, const std::vector<LogprobEntry>& entries);
// "usage" of both endpoints.
void append_openai_usage(std::string& out, const ReplyUsage& usage);

}  // namespace quern

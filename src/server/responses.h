// OpenAI's /v1/responses: items → ChatRequest, and replies → a response object or its events.
//
//   input         a string, or items: messages, function_call, function_call_output, reasoning; items of other kinds
//                 (calls of hosted tools) are left out with a log line, images and files refused; an item_reference
//                 stands for the stored item of that id, or is a 404; a call that a limit cut short is text
//   history       previous_response_id is honoured from the store, or 400 where it is unknown
//   tools         of type function; other kinds (custom, namespace, hosted) are left out with a log line
//   logprobs      with include message.output_text.logprobs, or top_logprobs
//   reasoning     items carry their text as reasoning_text; encrypted_content, where included, is that text in base64
//                 (nothing is secret here), so that clients that send only it back keep their reasoning
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "server/chat_request.h"
#include "server/reply.h"
#include "server/request_parts.h"
#include "server/response_store.h"

namespace quern {

struct ResponsesRequest {
  ChatRequest chat;
  std::string previous_id;
  bool store = true;
  bool include_encrypted = false;
  bool include_logprobs = false;
  Json input_items;  // of this turn
  Json echo;         // the request's fields that the response object repeats
};

// Throws ApiError.
ResponsesRequest parse_responses(const Json& body, const RequestLimits& limits, const ResponseStore& store);
// `store` must outlive the writer.
std::unique_ptr<ReplyWriter> make_responses_writer(ResponsesRequest request, ResponseStore& store);

}  // namespace quern

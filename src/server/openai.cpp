#include "server/openai.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <cmath>

#include "base/log.h"
#include "base/utf8.h"

namespace quern {
namespace {

void append_logprob_number(std::string& out, float value) {
  // JSON has no infinity; clients know -9999 as "never". A whole number stays a float to typed readers.
  std::string number = std::isfinite(value) ? fmt::format("{:.7g}", value) : "-9999";
  if (number.find_first_of(".e") == number.npos) number += ".0";
  out += number;
}

void append_bytes(std::string& out, const std::string& bytes) {
  out += '[';
  for (size_t i = 0; i < bytes.size(); ++i)
    out += (i ? "," : "") + std::to_string(static_cast<unsigned char>(bytes[i]));
  out += ']';
}

void append_candidate(std::string& out, const LogprobEntry::Candidate& candidate) {
  out += R"({"token":)";
  append_json_string(out, candidate.bytes);
  out += R"(,"logprob":)";
  append_logprob_number(out, candidate.logprob);
  out += R"(,"bytes":)";
  append_bytes(out, candidate.bytes);
}

// {"content": [...]} of chat/completions.
void append_chat_logprobs(std::string& out, const std::vector<LogprobEntry>& entries) {
  out += R"({"content":[)";
  append_openai_logprobs(out, entries);
  out += R"(],"refusal":null})";
}

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of completions.
void append_completion_logprobs(std::string& out, const std::vector<LogprobEntry>& entries, int64_t& offset) {
  std::string tokens, logprobs, tops, offsets;
  for (const LogprobEntry& entry : entries) {
    const char* comma = tokens.empty() ? "" : ",";
    tokens += comma, logprobs += comma, tops += comma, offsets += comma;
    append_json_string(tokens, entry.chosen.bytes);
    append_logprob_number(logprobs, entry.chosen.logprob);
    tops += '{';
    for (size_t j = 0; j < entry.top.size(); ++j) {
      if (j) tops += ',';
      append_json_string(tops, entry.top[j].bytes);
      tops += ':';
      append_logprob_number(tops, entry.top[j].logprob);
    }
    tops += '}';
    offsets += std::to_string(offset);
    for (unsigned char c : entry.chosen.bytes) offset += (c & 0xC0) != 0x80;
  }
  out += fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                     tokens, logprobs, tops, offsets);
}

std::string_view finish_name(EndReason reason) {
  switch (reason) {
    case EndReason::Length:
      return "length";
    case EndReason::ToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

void read_max_tokens(Fields& fields, ChatRequest& request) {
  const auto older = fields.integer("max_tokens", 1);
  const auto newer = fields.integer("max_completion_tokens", 1);
  if (newer)
    request.max_tokens = *newer;
  else if (older)
    request.max_tokens = *older;
}

void read_stream(Fields& fields, ChatRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, fields.path_of("stream_options"));
    request.include_usage = inner.boolean("include_usage").value_or(false) && request.stream;
    inner.ignore({"include_obfuscation", "continuous_usage_stats", "chunk_include_usage"});
  }
}

void read_model(Fields& fields, ChatRequest& request) {
  if (const std::string* model = fields.text("model")) request.model = *model;
}

void read_tool_choice(const Json& value, const std::string& path, ChatRequest& request) {
  if (value.is_string()) {
    const std::string& name = value.as_string();
    if (name == "auto")
      request.tool_use = ToolUse::Auto;
    else if (name == "none")
      request.tool_use = ToolUse::None;
    else if (name == "required" || name == "any")
      request.tool_use = ToolUse::Required;
    else
      bad_field(path, "one of none, auto, required, or a named function", value);
    return;
  }
  Fields fields(value, path);
  if (!fields.choice("type", {"function"})) bad_request(path + ".type", "is missing");
  const Json* function = fields.object("function");
  if (function) {
    Fields inner(*function, path + ".function");
    request.tool_name = inner.required_text("name");
  } else {
    request.tool_name = fields.required_text("name");
  }
  request.tool_use = ToolUse::Named;
}

const std::initializer_list<std::string_view> kHarmless = {"user",
                                                           "store",
                                                           "metadata",
                                                           "service_tier",
                                                           "prompt_cache_key",
                                                           "prompt_cache_retention",
                                                           "safety_identifier",
                                                           "verbosity",
                                                           "prediction"};

// What both endpoints share: the head that every chunk repeats, choices, usage, errors. A choice's payload is a JSON
// object under "delta" (chat) or a string under "text" (completions).
class ChoicesWriter : public ReplyWriter {
 public:
  bool is_stream() const override { return stream_; }

  void finish(const ReplyEnd& end, std::string& out) override {
    if (stream_)
      chunk(out, end.reply, empty_, fmt::format("\"{}\"", finish_name(end.reason)));
    else
      replies_[static_cast<size_t>(end.reply)].end = end;
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    if (stream_) {
      if (include_usage_) {
        out += "data: " + head_ + "],\"usage\":";
        append_openai_usage(out, usage);
        out += "}\n\n";
      }
      out += "data: [DONE]\n\n";
      return;
    }
    out += head_;
    for (size_t i = 0; i < replies_.size(); ++i) {
      out += fmt::format(R"({}{{"index":{},)", i ? "," : "", i);
      append_payload(out, i);
      out += R"(,"logprobs":)";
      wants_logprobs_ ? append_logprobs(out, i, replies_[i].logprobs) : void(out += "null");
      out += fmt::format(R"(,"finish_reason":"{}"}})", finish_name(replies_[i].end.reason));
    }
    out += "],\"usage\":";
    append_openai_usage(out, usage);
    out += '}';
  }

  void error(const ApiError& error, std::string& out) override {
    out += "data: " + openai_error(error) + "\n\ndata: [DONE]\n\n";
  }
  std::string error_body(const ApiError& error) const override { return openai_error(error); }

 protected:
  ChoicesWriter(const ChatRequest& request, std::string_view id, std::string_view object,
                std::string_view stream_object, std::string_view key, std::string_view empty)
      : stream_(request.stream),
        include_usage_(request.include_usage),
        wants_logprobs_(request.sampling.n_logprobs >= 0),
        key_(key),
        empty_(empty),
        replies_(static_cast<size_t>(request.n)) {
    head_ = fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":)", random_id(id),
                        stream_ ? stream_object : object, unix_seconds());
    append_json_string(head_, request.model);
    head_ += R"(,"system_fingerprint":null,"choices":[)";
  }

  // "message":… or "text":… of reply i; its log-probabilities.
  virtual void append_payload(std::string& out, size_t i) = 0;
  virtual void append_logprobs(std::string& out, size_t i, const std::vector<LogprobEntry>& entries) = 0;

  void chunk(std::string& out, int32_t reply, std::string_view payload, std::string_view reason = "null",
             std::string_view logprobs = "null") {
    out += "data: ";
    out += head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"{}":{},"logprobs":{},"finish_reason":{}}}])",
                   reply, key_, payload, logprobs, reason);
    out += include_usage_ ? ",\"usage\":null}\n\n" : "}\n\n";
  }
  // A chunk of the answer's text with the log-probabilities of its tokens.
  void content_chunk(std::string& out, const Piece& piece, std::string_view payload) {
    std::string logprobs = "null";
    if (!piece.logprobs.empty()) {
      logprobs.clear();
      append_logprobs(logprobs, static_cast<size_t>(piece.reply), piece.logprobs);
    }
    chunk(out, piece.reply, payload, "null", logprobs);
  }

  const bool stream_, include_usage_, wants_logprobs_;
  const std::string_view key_, empty_;
  std::string head_;
  std::vector<WholeReply> replies_;
};

class ChatWriter : public ChoicesWriter {
 public:
  explicit ChatWriter(const ChatRequest& request)
      : ChoicesWriter(request, "chatcmpl-", "chat.completion", "chat.completion.chunk", "delta", "{}") {}

  void begin(const ReplyUsage&, std::string& out) override {
    if (!stream_) return;
    for (size_t i = 0; i < replies_.size(); ++i)
      chunk(out, static_cast<int32_t>(i), R"({"role":"assistant","content":""})");
  }

  void piece(const Piece& piece, std::string& out) override {
    if (!stream_) return replies_[static_cast<size_t>(piece.reply)].add(piece);
    delta_.clear();
    switch (piece.kind) {
      case Piece::Kind::Reasoning:
        delta_ += R"({"reasoning_content":)";
        append_json_string(delta_, piece.text);
        delta_ += '}';
        break;
      case Piece::Kind::Content:
        delta_ += R"({"content":)";
        append_json_string(delta_, piece.text);
        delta_ += '}';
        return content_chunk(out, piece, delta_);
      case Piece::Kind::CallBegin:
        delta_ +=
            fmt::format(R"({{"tool_calls":[{{"index":{},"id":"{}","type":"function","function":{{"name":)",
                        piece.call, piece.id);
        append_json_string(delta_, piece.name);
        delta_ += R"(,"arguments":""}}]})";
        break;
      case Piece::Kind::CallArguments:
        delta_ += fmt::format(R"({{"tool_calls":[{{"index":{},"function":{{"arguments":)", piece.call);
        append_json_string(delta_, piece.text);
        delta_ += "}}]}";
        break;
      case Piece::Kind::CallEnd:
        return;
    }
    chunk(out, piece.reply, delta_);
  }

 private:
  void append_payload(std::string& out, size_t i) override {
    const WholeReply& reply = replies_[i];
    out += R"("message":{"role":"assistant","content":)";
    if (reply.content.empty() && !reply.calls.empty())
      out += "null";
    else
      append_json_string(out, reply.content);
    out += R"(,"refusal":null)";
    if (!reply.reasoning.empty()) {
      out += R"(,"reasoning_content":)";
      append_json_string(out, reply.reasoning);
    }
    if (!reply.calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (size_t j = 0; j < reply.calls.size(); ++j) {
        out += fmt::format(R"({}{{"id":"{}","type":"function","function":{{"name":)", j ? "," : "",
                           reply.calls[j].id);
        append_json_string(out, reply.calls[j].name);
        out += R"(,"arguments":)";
        append_json_string(out, reply.calls[j].arguments);
        out += "}}";
      }
      out += ']';
    }
    out += '}';
  }
  void append_logprobs(std::string& out, size_t, const std::vector<LogprobEntry>& entries) override {
    append_chat_logprobs(out, entries);
  }

  std::string delta_;
};

class CompletionWriter : public ChoicesWriter {
 public:
  explicit CompletionWriter(const ChatRequest& request)
      : ChoicesWriter(request, "cmpl-", "text_completion", "text_completion", "text", "\"\""),
        offsets_(static_cast<size_t>(request.n)) {}

  void begin(const ReplyUsage&, std::string&) override {}

  void piece(const Piece& piece, std::string& out) override {
    if (!stream_) return replies_[static_cast<size_t>(piece.reply)].add(piece);
    if (piece.kind != Piece::Kind::Content) return;
    std::string text;
    append_json_string(text, piece.text);
    content_chunk(out, piece, text);
  }

 private:
  void append_payload(std::string& out, size_t i) override {
    out += R"("text":)";
    append_json_string(out, replies_[i].content);
  }
  void append_logprobs(std::string& out, size_t i, const std::vector<LogprobEntry>& entries) override {
    append_completion_logprobs(out, entries, offsets_[i]);
  }

  std::vector<int64_t> offsets_;  // of the text said so far, in characters
};

}  // namespace

void log_unknown_fields(std::string_view endpoint, const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::string list;
  for (size_t i = 0; i < names.size() && i < 16; ++i) list += (i ? ", " : "") + names[i].substr(0, 64);
  if (names.size() > 16) list += fmt::format(" and {} more", names.size() - 16);
  log(LogLevel::Warn, "{}: ignored unknown fields: {}", endpoint, list);
}

ChatRequest parse_chat_completion(const Json& body, const RequestLimits& limits) {
  Fields fields(body, "");
  ChatRequest request;
  read_model(fields, request);
  read_stream(fields, request);
  read_max_tokens(fields, request);
  read_sampling(fields, request, limits, 2);
  read_stops(fields, "stop", request, limits);

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top.value_or(0) > 0 && !logprobs) bad_request("top_logprobs", "needs logprobs to be true");
  if (logprobs) request.sampling.n_logprobs = static_cast<int32_t>(top.value_or(0));

  const Json* messages = fields.get("messages");
  if (!messages) bad_request("messages", "is missing");
  check_messages(*messages, "messages", limits);
  request.messages = *messages;

  if (const Json* tools = fields.array("tools")) request.tools = read_function_tools(*tools, "tools", limits);
  if (const Json* choice = fields.get("tool_choice")) {
    read_tool_choice(*choice, "tool_choice", request);
    check_tool_choice(request, "tool_choice");
  }
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* format = fields.get("response_format"))
    read_response_format(*format, "response_format", request);

  if (const Json* variables = fields.get("chat_template_kwargs"))
    read_template_variables(*variables, "chat_template_kwargs", request);
  if (auto v = fields.boolean("enable_thinking")) request.thinking = *v;
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    if (const std::string* type = inner.choice("type", {"enabled", "disabled", "adaptive", "auto"}))
      request.thinking = *type != "disabled";
    if (auto v = inner.integer("budget_tokens", 0)) request.thinking_budget = *v;
  }
  if (const Json* effort = fields.get("reasoning_effort")) read_effort("reasoning_effort", *effort, request);
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (const Json* effort = inner.get("effort")) read_effort("reasoning.effort", *effort, request);
    if (auto v = inner.boolean("enabled")) request.thinking = *v;
    if (auto v = inner.integer("max_tokens", 0)) request.thinking_budget = *v;
    inner.ignore({"exclude", "summary"});
  }
  if (auto v = fields.integer("thinking_budget", 0)) request.thinking_budget = *v;

  if (const Json* modalities = fields.array("modalities"))
    for (const Json& m : modalities->as_array())
      if (!(m.is_string() && m.as_string() == "text")) bad_field("modalities", "only text", m);
  fields.refuse("audio", "audio is not supported");
  fields.refuse("functions", "not supported; expected tools");
  fields.refuse("function_call", "not supported; expected tool_choice");
  fields.refuse("web_search_options", "web search is not supported");
  fields.refuse("chat_template", "templates are not taken from requests");
  refuse_other_formats(fields);
  fields.ignore(kHarmless);
  log_unknown_fields("chat/completions", fields.unknown());
  return request;
}

ChatRequest parse_completion(const Json& body, const RequestLimits& limits) {
  Fields fields(body, "");
  ChatRequest request;
  read_model(fields, request);
  read_stream(fields, request);
  read_max_tokens(fields, request);
  read_sampling(fields, request, limits, 2);
  read_stops(fields, "stop", request, limits);
  if (request.max_tokens < 0) request.max_tokens = 16;
  if (auto logprobs = fields.integer("logprobs", 0, 20))
    request.sampling.n_logprobs = static_cast<int32_t>(*logprobs);

  const Json* prompt = fields.get("prompt");
  request.prompt_field = "prompt";
  if (!prompt) bad_request("prompt", "is missing");
  const Json* one = prompt;
  std::string path = "prompt";
  if (prompt->is_array() && prompt->size() && !prompt->as_array()[0].is_number()) {
    if (prompt->size() != 1) bad_field("prompt", "one prompt a request", *prompt);
    one = &prompt->as_array()[0];
    path = "prompt[0]";
  }
  if (one->is_string()) {
    request.raw_text = one->as_string();
  } else if (one->is_array()) {
    if (static_cast<int64_t>(one->size()) > limits.context)
      throw ApiError(
          400,
          fmt::format("prompt is too long: {} tokens > {} maximum; the maximum context length is {} tokens",
                      one->size(), limits.context - 1, limits.context),
          "prompt", "context_length_exceeded");
    for (size_t i = 0; i < one->size(); ++i) {
      const Json& id = one->as_array()[i];
      if (!id.is_int() || id.as_int() < 0 || id.as_int() >= limits.vocab)
        bad_field(fmt::format("{}[{}]", path, i), fmt::format("a token id from 0 to {}", limits.vocab - 1),
                  id);
      request.raw_ids.push_back(static_cast<int32_t>(id.as_int()));
    }
  } else {
    bad_field(path, "a string or an array of token ids", *one);
  }
  if (request.raw_text.empty() && request.raw_ids.empty())
    bad_request("prompt", "expected at least one token");

  if (fields.boolean("echo").value_or(false)) bad_request("echo", "not supported");
  if (const Json* suffix = fields.get("suffix");
      suffix && !(suffix->is_string() && suffix->as_string().empty()))
    bad_request("suffix", "not supported");
  if (auto best = fields.integer("best_of", 1); best && *best != request.n)
    bad_request("best_of", "not supported beyond n");
  if (const Json* format = fields.get("response_format"))
    read_response_format(*format, "response_format", request);
  fields.refuse("tools", "tools need /v1/chat/completions");
  fields.refuse("chat_template", "templates are not taken from requests");
  refuse_other_formats(fields);
  fields.ignore(kHarmless);
  log_unknown_fields("completions", fields.unknown());
  return request;
}

std::unique_ptr<ReplyWriter> make_chat_completion_writer(const ChatRequest& request) {
  return std::make_unique<ChatWriter>(request);
}
std::unique_ptr<ReplyWriter> make_completion_writer(const ChatRequest& request) {
  return std::make_unique<CompletionWriter>(request);
}

std::string openai_error(const ApiError& error) {
  std::string_view type = "invalid_request_error";
  if (error.status == 401) type = "authentication_error";
  if (error.status == 403) type = "permission_error";
  if (error.status == 429) type = "rate_limit_error";
  if (error.status >= 500) type = error.status == 503 ? "service_unavailable" : "server_error";
  std::string out = R"({"error":{"message":)";
  append_json_string(out, error.what());
  out += fmt::format(R"(,"type":"{}","param":)", type);
  error.param.empty() ? void(out += "null") : append_json_string(out, error.param);
  out += R"(,"code":)";
  error.code.empty() ? void(out += "null") : append_json_string(out, error.code);
  return out + "}}";
}

std::string openai_model(const std::string& name, const std::string& root, int64_t context, int64_t created) {
  std::string out = R"({"id":)";
  append_json_string(out, name);
  out += fmt::format(R"(,"object":"model","created":{},"owned_by":"quern","root":)", created);
  append_json_string(out, root);
  return out +
         fmt::format(R"(,"max_model_len":{},"context_length":{},"capabilities":["completion","chat","tools",)"
                     R"("thinking","structured_output"],"input_modalities":["text"]}})",
                     context, context);
}

std::string openai_models(const std::vector<std::string>& names, int64_t context, int64_t created) {
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i) out += ',';
    out += openai_model(names[i], names[0], context, created);
  }
  return out + "]}";
}

void append_openai_logprobs(std::string& out, const std::vector<LogprobEntry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i) out += ',';
    append_candidate(out, entries[i].chosen);
    out += R"(,"top_logprobs":[)";
    for (size_t j = 0; j < entries[i].top.size(); ++j) {
      if (j) out += ',';
      append_candidate(out, entries[i].top[j]);
      out += '}';
    }
    out += "]}";
  }
}

void append_openai_usage(std::string& out, const ReplyUsage& u) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":)"
                 R"({{"cached_tokens":{}}},"completion_tokens_details":{{"reasoning_tokens":{},)"
                 R"("accepted_prediction_tokens":{},"rejected_prediction_tokens":{}}}}})",
                 u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens,
                 u.reasoning_tokens, u.accepted_tokens,
                 std::max<int64_t>(0, u.drafted_tokens - u.accepted_tokens));
}

}  // namespace quern

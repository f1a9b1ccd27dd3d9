#include "server/anthropic.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <iterator>

#include "base/log.h"
#include "server/openai.h"

namespace quern {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

Json message_of(std::string_view role, std::string content) {
  Json message;
  message.set("role", role);
  message.set("content", std::move(content));
  return message;
}

// The text of a string or of text blocks, joined; other kinds are refused by their place.
std::string text_of(const Json& content, const std::string& path) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) bad_field(path, "a string or an array of blocks", content);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields block(content.as_array()[i], at);
    const std::string& type = block.required_text("type");
    if (type != "text")
      bad_request(
          at, "content of type " + write_json(Json(type.substr(0, 40))) + " is not supported; expected text");
    text += block.required_text("text");
  }
  return text;
}

void add_system(const Json& system, bool strip, Json& messages) {
  if (system.is_string()) {
    if (!system.as_string().empty()) messages.push_back(message_of("system", system.as_string()));
    return;
  }
  if (!system.is_array()) bad_field("system", "a string or an array of text blocks", system);
  for (size_t i = 0; i < system.size(); ++i) {
    const std::string at = fmt::format("system[{}]", i);
    Fields block(system.as_array()[i], at);
    if (!block.choice("type", {"text"})) bad_request(at + ".type", "is missing");
    const std::string& text = block.required_text("text");
    if (strip && i == 0 && text.starts_with(kBillingHeader)) continue;
    if (!text.empty()) messages.push_back(message_of("system", text));
  }
}

// A user's message: text joins, each tool_result is a message of its own, in order.
void add_user(const Json& content, const std::string& path, Json& messages) {
  if (content.is_string()) return messages.push_back(message_of("user", content.as_string()));
  if (!content.is_array()) bad_field(path, "a string or an array of blocks", content);
  std::string text;
  bool has_text = false;
  const auto flush = [&] {
    if (has_text) messages.push_back(message_of("user", std::move(text)));
    text.clear(), has_text = false;
  };
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields block(content.as_array()[i], at);
    const std::string& type = block.required_text("type");
    if (type == "text") {
      if (has_text && !text.empty()) text += "\n";
      text += block.required_text("text");
      has_text = true;
    } else if (type == "tool_result") {
      flush();
      const Json* inner = block.get("content");
      std::string result = inner ? text_of(*inner, at + ".content") : std::string();
      if (result.empty() && block.boolean("is_error").value_or(false)) result = "error";
      Json message = message_of("tool", std::move(result));
      message.set("tool_call_id", block.required_text("tool_use_id"));
      messages.push_back(std::move(message));
    } else {
      bad_request(at, "content of type " + write_json(Json(type.substr(0, 40))) +
                          " is not supported; expected text or tool_result");
    }
  }
  flush();
  if (content.size() == 0) messages.push_back(message_of("user", ""));
}

void add_assistant(const Json& content, const std::string& path, Json& messages) {
  if (content.is_string()) return messages.push_back(message_of("assistant", content.as_string()));
  if (!content.is_array()) bad_field(path, "a string or an array of blocks", content);
  std::string text, reasoning;
  Json calls{Json::Array{}};
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields block(content.as_array()[i], at);
    const std::string& type = block.required_text("type");
    if (type == "text") {
      text += block.required_text("text");
    } else if (type == "thinking") {
      if (const std::string* thinking = block.text("thinking")) reasoning += *thinking;
    } else if (type == "tool_use") {
      Json function;
      function.set("name", block.required_text("name"));
      const Json* input = block.object("input");
      function.set("arguments", input ? *input : Json(Json::Object{}));
      Json call;
      call.set("id", block.required_text("id"));
      call.set("type", "function");
      call.set("function", std::move(function));
      calls.push_back(std::move(call));
    } else if (type != "redacted_thinking") {
      bad_request(at, "content of type " + write_json(Json(type.substr(0, 40))) +
                          " is not supported; expected text, thinking or tool_use");
    }
  }
  Json message = message_of("assistant", std::move(text));
  if (!reasoning.empty()) message.set("reasoning_content", std::move(reasoning));
  if (calls.size()) message.set("tool_calls", std::move(calls));
  messages.push_back(std::move(message));
}

void read_messages(const Json& messages, ChatRequest& request, const RequestLimits& limits) {
  if (!messages.is_array()) bad_field("messages", "an array of messages", messages);
  if (messages.size() == 0) bad_request("messages", "expected at least one message");
  if (messages.size() > limits.messages)
    bad_field("messages", fmt::format("at most {} messages", limits.messages), messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string at = fmt::format("messages[{}]", i);
    Fields message(messages.as_array()[i], at);
    const std::string* role = message.choice("role", {"user", "assistant", "system"});
    if (!role) bad_request(at + ".role", "is missing");
    const Json* content = message.get("content");
    if (!content) bad_request(at + ".content", "is missing");
    if (*role == "user")
      add_user(*content, at + ".content", request.messages);
    else if (*role == "assistant")
      add_assistant(*content, at + ".content", request.messages);
    else
      request.messages.push_back(message_of("system", text_of(*content, at + ".content")));
  }
}

void read_tools(const Json& tools, ChatRequest& request, const RequestLimits& limits) {
  Json functions{Json::Array{}};
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    Fields tool(tools.as_array()[i], at);
    const std::string* type = tool.text("type");
    if (type && *type != "custom") {
      log(LogLevel::Warn, "{}: tools of type {} are not supported: left out", at, *type);
      continue;
    }
    Json function;
    function.set("name", tool.required_text("name"));
    if (const std::string* description = tool.text("description")) function.set("description", *description);
    if (const Json* schema = tool.object("input_schema")) function.set("parameters", *schema);
    Json out;
    out.set("type", "function");
    out.set("function", std::move(function));
    functions.push_back(std::move(out));
  }
  request.tools = read_function_tools(functions, "tools", limits);
}

void read_tool_choice(const Json& value, ChatRequest& request) {
  Fields choice(value, "tool_choice");
  const std::string* type = choice.choice("type", {"auto", "any", "tool", "none"});
  if (!type) bad_request("tool_choice.type", "is missing");
  if (*type == "any") request.tool_use = ToolUse::Required;
  if (*type == "none") request.tool_use = ToolUse::None;
  if (*type == "tool") {
    request.tool_use = ToolUse::Named;
    request.tool_name = choice.required_text("name");
  }
  request.parallel_tool_calls = !choice.boolean("disable_parallel_tool_use").value_or(false);
  check_tool_choice(request, "tool_choice");
}

class AnthropicWriter : public ReplyWriter {
 public:
  explicit AnthropicWriter(const ChatRequest& request)
      : id_(random_id("msg_")), model_(write_json(Json(request.model))), stream_(request.stream) {}

  bool is_stream() const override { return stream_; }
  bool begins_with_first_event() const override { return true; }
  std::string ping() override { return stream_ ? "event: ping\ndata: {\"type\":\"ping\"}\n\n" : ""; }

  void begin(const ReplyUsage& usage, std::string& out) override {
    if (!stream_) return;
    event(out, "message_start",
          fmt::format(R"("message":{{"id":"{}","type":"message","role":"assistant","model":{},"content":[],)"
                      R"("stop_reason":null,"stop_sequence":null,"usage":{}}})",
                      id_, model_, usage_text(usage, 0)));
  }

  void piece(const Piece& piece, std::string& out) override {
    switch (piece.kind) {
      case Piece::Kind::Reasoning:
        open(Block::Thinking, out);
        break;
      case Piece::Kind::Content:
        open(Block::Text, out);
        break;
      case Piece::Kind::CallBegin:
        close(out);
        block_ = Block::ToolUse;
        tool_id_ = piece.id, tool_name_ = write_json(Json(piece.name));
        start(out);
        return;
      case Piece::Kind::CallEnd:
        // An input is an object, which half a call has not: it is told as the text it is. In a stream its deltas have
        // gone out, and stop_reason says that there is no more of them.
        if (!piece.complete && !stream_) {
          block_ = Block::Text;
          text_ = piece.text;
        }
        return close(out);
      case Piece::Kind::CallArguments:
        break;
    }
    if (!stream_) {
      text_ += piece.text;
      return;
    }
    std::string text;
    append_json_string(text, piece.text);
    static constexpr std::string_view kDelta[] = {"", R"({"type":"thinking_delta","thinking":)",
                                                  R"({"type":"text_delta","text":)",
                                                  R"({"type":"input_json_delta","partial_json":)"};
    event(out, "content_block_delta",
          fmt::format(R"("index":{},"delta":{}{}}})", index_, kDelta[static_cast<int>(block_)], text));
  }

  void finish(const ReplyEnd& end, std::string& out) override {
    close(out);
    end_ = end;
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    const std::string stop_string =
        end_.reason == EndReason::StopString ? write_json(Json(end_.stop_string)) : "null";
    if (stream_) {
      event(out, "message_delta",
            fmt::format(R"("delta":{{"stop_reason":"{}","stop_sequence":{}}},"usage":{})", stop_reason(),
                        stop_string, usage_text(usage, usage.completion_tokens)));
      event(out, "message_stop", "");
      return;
    }
    out += fmt::format(R"({{"id":"{}","type":"message","role":"assistant","model":{},"content":[{}],)"
                       R"("stop_reason":"{}","stop_sequence":{},"usage":{}}})",
                       id_, model_, blocks_, stop_reason(), stop_string,
                       usage_text(usage, usage.completion_tokens));
  }

  void error(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + anthropic_error(error) + "\n\n";
  }
  std::string error_body(const ApiError& error) const override { return anthropic_error(error); }

 private:
  enum class Block { None, Thinking, Text, ToolUse };
  // Reasoning is not encrypted, so there is nothing to sign; clients want the field and send it back.
  static constexpr std::string_view kSignature = "cXVlcm4=";

  static std::string usage_text(const ReplyUsage& usage, int64_t output) {
    return fmt::format(
        R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{}}})",
        usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, output);
  }

  static void event(std::string& out, std::string_view name, std::string_view fields) {
    fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\"{1}{2}}}\n\n", name,
                   fields.empty() ? "" : ",", fields);
  }

  std::string_view stop_reason() const {
    switch (end_.reason) {
      case EndReason::Length:
        return "max_tokens";
      case EndReason::ToolCalls:
        return "tool_use";
      case EndReason::StopString:
        return "stop_sequence";
      default:
        return "end_turn";
    }
  }

  void open(Block block, std::string& out) {
    if (block_ == block) return;
    close(out);
    block_ = block;
    start(out);
  }

  void start(std::string& out) {
    text_.clear();
    if (!stream_) return;
    std::string block =
        block_ == Block::Thinking ? R"({"type":"thinking","thinking":"","signature":""})"
        : block_ == Block::Text
            ? R"({"type":"text","text":""})"
            : fmt::format(R"({{"type":"tool_use","id":"{}","name":{},"input":{{}}}})", tool_id_, tool_name_);
    event(out, "content_block_start", fmt::format(R"("index":{},"content_block":{})", index_, block));
  }

  void close(std::string& out) {
    if (block_ == Block::None) return;
    if (stream_) {
      if (block_ == Block::Thinking)
        event(out, "content_block_delta",
              fmt::format(R"("index":{},"delta":{{"type":"signature_delta","signature":"{}"}})", index_,
                          kSignature));
      event(out, "content_block_stop", fmt::format(R"("index":{})", index_));
    } else {
      if (!blocks_.empty()) blocks_ += ',';
      if (block_ == Block::Thinking) {
        blocks_ += R"({"type":"thinking","thinking":)";
        append_json_string(blocks_, text_);
        blocks_ += fmt::format(R"(,"signature":"{}"}})", kSignature);
      } else if (block_ == Block::Text) {
        blocks_ += R"({"type":"text","text":)";
        append_json_string(blocks_, text_);
        blocks_ += '}';
      } else {
        blocks_ += fmt::format(R"({{"type":"tool_use","id":"{}","name":{},"input":{}}})", tool_id_,
                               tool_name_, text_);
      }
    }
    ++index_;
    block_ = Block::None;
  }

  const std::string id_, model_;
  const bool stream_;
  Block block_ = Block::None;
  int index_ = 0;
  std::string tool_id_, tool_name_, text_, blocks_;
  ReplyEnd end_;
};

}  // namespace

ChatRequest parse_anthropic_messages(const Json& body, const RequestLimits& limits,
                                     const AnthropicOptions& options) {
  Fields fields(body, "");
  ChatRequest request;
  request.messages = Json(Json::Array{});
  if (const std::string* model = fields.text("model")) request.model = *model;
  request.stream = fields.boolean("stream").value_or(false);
  if (auto v = fields.integer("max_tokens", 1))
    request.max_tokens = *v;
  else if (!options.counting)
    bad_request("max_tokens", "is missing");
  read_sampling(fields, request, limits, 2);
  if (request.n != 1) bad_request("n", "one reply a request");
  read_stops(fields, "stop_sequences", request, limits);

  if (const Json* system = fields.get("system"))
    add_system(*system, options.strip_billing_header, request.messages);
  const Json* messages = fields.get("messages");
  if (!messages) bad_request("messages", "is missing");
  read_messages(*messages, request, limits);
  if (const Json* tools = fields.array("tools")) read_tools(*tools, request, limits);
  if (const Json* choice = fields.get("tool_choice")) read_tool_choice(*choice, request);

  request.thinking = false;
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking");
    const std::string* type = inner.choice("type", {"enabled", "disabled", "adaptive"});
    if (!type) bad_request("thinking.type", "is missing");
    request.thinking = *type != "disabled";
    const auto budget = inner.integer("budget_tokens", 1);
    if (*type == "enabled" && budget) request.thinking_budget = *budget;
    inner.ignore({"display"});
  }
  const auto read_format = [&](const Json& format, const std::string& path) {
    Fields inner(format, path);
    if (!inner.choice("type", {"json_schema"})) bad_request(path + ".type", "is missing");
    const Json* schema = inner.get("schema");
    if (!schema) bad_request(path + ".schema", "is missing");
    request.format.kind = AnswerFormat::Kind::JsonSchema;
    request.format.schema = *schema;
    request.format.path = path + ".schema";
  };
  if (const Json* config = fields.object("output_config")) {
    Fields inner(*config, "output_config");
    if (const Json* effort = inner.get("effort")) read_effort("output_config.effort", *effort, request);
    if (const Json* format = inner.get("format")) read_format(*format, "output_config.format");
    inner.ignore({"task_budget"});
  }
  if (const Json* format = fields.get("output_format")) read_format(*format, "output_format");
  if (const Json* variables = fields.get("chat_template_kwargs"))
    read_template_variables(*variables, "chat_template_kwargs", request);
  if (const Json* servers = fields.array("mcp_servers"); servers && servers->size())
    bad_request("mcp_servers", "not supported");
  fields.ignore({"metadata", "service_tier", "context_management", "betas", "cache_control", "container",
                 "user", "inference_geo", "speed"});
  log_unknown_fields("messages", fields.unknown());
  return request;
}

std::unique_ptr<ReplyWriter> make_anthropic_writer(const ChatRequest& request) {
  return std::make_unique<AnthropicWriter>(request);
}

std::string anthropic_error(const ApiError& error) {
  std::string_view type = "invalid_request_error";
  switch (error.status) {
    case 401:
      type = "authentication_error";
      break;
    case 403:
      type = "permission_error";
      break;
    case 404:
      type = "not_found_error";
      break;
    case 413:
      type = "request_too_large";
      break;
    case 429:
      type = "rate_limit_error";
      break;
    case 503:
    case 529:
      type = "overloaded_error";
      break;
    default:
      if (error.status >= 500) type = "api_error";
  }
  std::string out = fmt::format(R"({{"type":"error","error":{{"type":"{}","message":)", type);
  append_json_string(out, error.what());
  return out + "}}";
}

}  // namespace quern

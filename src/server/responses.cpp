#include "server/responses.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <iterator>

#include "base/log.h"
#include "base/utf8.h"
#include "server/openai.h"
#include "text/chat_messages.h"

namespace quern {
namespace {

std::string to_base64(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

// Empty where it is no base64 of UTF-8 text.
std::string from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 || text.size() > (64u << 20)) return {};
  std::string out(text.size() / 4 * 3, '\0');
  const int n =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (n < 0) return {};
  out.resize(static_cast<size_t>(n) - (text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0));
  return is_valid_utf8(out) ? out : std::string();
}

// The text of a string or of text parts; images and files are refused by their place.
std::string part_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) bad_field(path, "a string or an array of parts", content);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields part(content.as_array()[i], at);
    const std::string& type = part.required_text("type");
    if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
        type == "summary_text")
      text += part.required_text("text");
    else if (type == "refusal")
      text += part.required_text("refusal");
    else
      bad_request(
          at, "content of type " + write_json(Json(type.substr(0, 40))) + " is not supported; expected text");
  }
  return text;
}

// Collects items into messages: reasoning, a message and calls of the assistant that follow each other are one.
class MessageBuilder {
 public:
  explicit MessageBuilder(Json& messages) : messages_(messages) {}

  void add(const Json& item, const std::string& at) {
    Fields fields(item, at);
    const std::string* type = fields.text("type");
    const std::string kind = type ? *type : fields.get("role") ? "message" : "";
    if (kind == "message") {
      const std::string* role = fields.choice("role", {"user", "assistant", "system", "developer"});
      if (!role) bad_request(at + ".role", "is missing");
      const Json* content = fields.get("content");
      std::string text = content ? part_text(*content, at + ".content") : std::string();
      if (*role == "assistant") {
        if (has_content_ || has_calls()) flush();
        content_ = std::move(text);
        has_content_ = true;
      } else {
        flush();
        Json message;
        message.set("role", *role);
        message.set("content", std::move(text));
        messages_.push_back(std::move(message));
      }
    } else if (kind == "reasoning") {
      if (has_content_ || has_calls() || !reasoning_.empty()) flush();
      if (const Json* content = fields.get("content"); content && content->size())
        reasoning_ = part_text(*content, at + ".content");
      if (const std::string* sealed = fields.text("encrypted_content"); sealed && reasoning_.empty())
        reasoning_ = from_base64(*sealed);
      if (const Json* summary = fields.get("summary"); summary && reasoning_.empty() && summary->size())
        reasoning_ = part_text(*summary, at + ".summary");
    } else if (kind == "function_call" && is_cut(fields)) {
      // Nobody can answer half a call; the model wrote it, so it stays as text.
      const std::string* arguments = fields.text("arguments");
      content_ += fields.required_text("name") + (arguments ? *arguments : "");
      has_content_ = true;
      log(LogLevel::Debug, "{}: a call that a limit cut short is told as text", at);
    } else if (kind == "function_call") {
      Json function, call;
      function.set("name", fields.required_text("name"));
      const std::string* arguments = fields.text("arguments");
      function.set("arguments",
                   arguments ? read_arguments(*arguments, at + ".arguments") : Json(Json::Object{}));
      call.set("id", call_id(fields));
      call.set("type", "function");
      call.set("function", std::move(function));
      calls_.push_back(std::move(call));
    } else if (kind == "function_call_output") {
      flush();
      const Json* output = fields.get("output");
      Json message;
      message.set("role", "tool");
      message.set("content", output ? part_text(*output, at + ".output") : std::string());
      message.set("tool_call_id", fields.required_text("call_id"));
      messages_.push_back(std::move(message));
    } else if (kind.empty()) {
      bad_request(at + ".type", "is missing");
    } else {
      log(LogLevel::Warn, "{}: items of type {} are not supported: left out", at, kind.substr(0, 40));
    }
  }

  void flush() {
    if (has_content_ || has_calls() || !reasoning_.empty()) {
      Json message;
      message.set("role", "assistant");
      message.set("content", std::move(content_));
      if (!reasoning_.empty()) message.set("reasoning_content", std::move(reasoning_));
      if (has_calls()) message.set("tool_calls", std::move(calls_));
      messages_.push_back(std::move(message));
    }
    content_.clear(), reasoning_.clear();
    has_content_ = false;
    calls_ = Json(Json::Array{});
  }

 private:
  bool has_calls() const { return calls_.size() > 0; }
  static Json read_arguments(const std::string& text, const std::string& path) {
    try {
      return call_arguments(text, path);
    } catch (const Error& error) {
      throw ApiError(400, error.what(), path);
    }
  }
  static bool is_cut(Fields& fields) {
    const std::string* status = fields.text("status");
    return status && *status == "incomplete";
  }
  static std::string call_id(Fields& fields) {
    if (const std::string* id = fields.text("call_id")) return *id;
    if (const std::string* id = fields.text("id")) return *id;
    return random_id("call_");
  }

  Json& messages_;
  std::string content_, reasoning_;
  bool has_content_ = false;
  Json calls_{Json::Array{}};
};

Json read_tools(const Json& tools, const RequestLimits& limits) {
  Json functions{Json::Array{}};
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    Fields tool(tools.as_array()[i], at);
    const std::string& type = tool.required_text("type");
    if (type != "function") {
      log(LogLevel::Warn, "{}: tools of type {} are not supported: left out", at, type.substr(0, 40));
      continue;
    }
    Json function, out;
    function.set("name", tool.required_text("name"));
    if (const std::string* description = tool.text("description")) function.set("description", *description);
    if (const Json* parameters = tool.object("parameters")) function.set("parameters", *parameters);
    if (auto strict = tool.boolean("strict")) function.set("strict", *strict);
    out.set("type", "function");
    out.set("function", std::move(function));
    functions.push_back(std::move(out));
  }
  return read_function_tools(functions, "tools", limits);
}

void read_tool_choice(const Json& value, ChatRequest& request) {
  if (value.is_string()) {
    const std::string& name = value.as_string();
    if (name == "none")
      request.tool_use = ToolUse::None;
    else if (name == "required")
      request.tool_use = ToolUse::Required;
    else if (name != "auto")
      bad_field("tool_choice", "one of none, auto, required, or a named function", value);
  } else {
    Fields choice(value, "tool_choice");
    if (!choice.choice("type", {"function"})) bad_request("tool_choice.type", "is missing");
    request.tool_use = ToolUse::Named;
    request.tool_name = choice.required_text("name");
  }
  check_tool_choice(request, "tool_choice");
}

void read_text_format(const Json& value, ChatRequest& request) {
  Fields format(value, "text.format");
  const std::string* type = format.choice("type", {"text", "json_object", "json_schema"});
  if (!type) bad_request("text.format.type", "is missing");
  if (*type == "json_object") {
    request.format.kind = AnswerFormat::Kind::JsonObject;
    request.format.path = "text.format";
  } else if (*type == "json_schema") {
    const Json* schema = format.get("schema");
    if (!schema) bad_request("text.format.schema", "is missing");
    request.format.kind = AnswerFormat::Kind::JsonSchema;
    request.format.schema = *schema;
    request.format.path = "text.format.schema";
  }
}

class ResponsesWriter : public ReplyWriter {
 public:
  ResponsesWriter(ResponsesRequest request, ResponseStore& store)
      : request_(std::move(request)), store_(store), id_(random_id("resp_")), created_(unix_seconds()) {}

  bool is_stream() const override { return request_.chat.stream; }

  void begin(const ReplyUsage&, std::string& out) override {
    if (!is_stream()) return;
    event(out, "response.created", R"("response":)" + response("in_progress", "null", "null", "null"));
    event(out, "response.in_progress", R"("response":)" + response("in_progress", "null", "null", "null"));
  }

  void piece(const Piece& piece, std::string& out) override {
    switch (piece.kind) {
      case Piece::Kind::Reasoning:
        open(Item::Reasoning, out);
        break;
      case Piece::Kind::Content:
        open(Item::Message, out);
        break;
      case Piece::Kind::CallBegin:
        close("completed", out);
        call_id_ = piece.id, name_ = write_json(Json(piece.name));
        open(Item::Call, out);
        return;
      case Piece::Kind::CallEnd:
        return close(piece.complete ? "completed" : "incomplete", out);
      case Piece::Kind::CallArguments:
        break;
    }
    text_ += piece.text;
    std::string logprobs;
    append_openai_logprobs(logprobs, piece.logprobs);
    if (!logprobs.empty()) logprobs_ += (logprobs_.empty() ? "" : ",") + logprobs;
    if (!is_stream()) return;
    std::string delta;
    append_json_string(delta, piece.text);
    const std::string where = fmt::format(R"("item_id":"{}","output_index":{})", item_id_, index_);
    if (item_ == Item::Reasoning)
      event(out, "response.reasoning_text.delta",
            fmt::format(R"({},"content_index":0,"delta":{})", where, delta));
    else if (item_ == Item::Message)
      event(out, "response.output_text.delta",
            fmt::format(R"({},"content_index":0,"delta":{},"logprobs":[{}])", where, delta, logprobs));
    else
      event(out, "response.function_call_arguments.delta", fmt::format(R"({},"delta":{})", where, delta));
  }

  void finish(const ReplyEnd& end, std::string& out) override {
    end_ = end;
    close(end.reason == EndReason::Length ? "incomplete" : "completed", out);
  }

  void end(const ReplyUsage& usage, std::string& out) override {
    const bool cut = end_.reason == EndReason::Length;
    const std::string body = response(cut ? "incomplete" : "completed", "null",
                                      cut ? R"({"reason":"max_output_tokens"})" : "null", usage_text(usage));
    if (request_.store) save(body);
    if (is_stream())
      event(out, cut ? "response.incomplete" : "response.completed", R"("response":)" + body);
    else
      out += body;
  }

  void error(const ApiError& error, std::string& out) override {
    std::string fault = R"({"code":"server_error","message":)";
    append_json_string(fault, error.what());
    fault += '}';
    event(out, "response.failed", R"("response":)" + response("failed", fault, "null", "null"));
  }
  std::string error_body(const ApiError& error) const override { return openai_error(error); }

 private:
  enum class Item { None, Reasoning, Message, Call };

  void event(std::string& out, std::string_view name, const std::string& fields) {
    fmt::format_to(std::back_inserter(out),
                   "event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},{2}}}\n\n", name,
                   sequence_++, fields);
  }

  static std::string usage_text(const ReplyUsage& u) {
    return fmt::format(
        R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},)"
        R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
        u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens,
        u.prompt_tokens + u.completion_tokens);
  }

  std::string response(std::string_view status, std::string_view error, std::string_view incomplete,
                       std::string_view usage) const {
    std::string out = fmt::format(
        R"({{"id":"{}","object":"response","created_at":{},"status":"{}","background":false,"error":{},)"
        R"("incomplete_details":{},"output":[{}],"usage":{},"previous_response_id":{},"store":{})",
        id_, created_, status, error, incomplete, items_, usage,
        request_.previous_id.empty() ? "null" : write_json(Json(request_.previous_id)), request_.store);
    for (const auto& [key, value] : request_.echo.as_object()) {
      out += ',';
      append_json_string(out, key);
      out += ':';
      out += write_json(value);
    }
    return out + '}';
  }

  // The open item as JSON with the text it has.
  std::string item(std::string_view status, bool empty) const {
    std::string text;
    append_json_string(text, empty ? std::string_view() : std::string_view(text_));
    switch (item_) {
      case Item::Reasoning: {
        std::string sealed;
        if (request_.include_encrypted)
          sealed = R"(,"encrypted_content":")" + to_base64(empty ? "" : text_) + '"';
        return fmt::format(R"({{"id":"{}","type":"reasoning","summary":[],"content":[{}],"status":"{}"{}}})",
                           item_id_, empty ? "" : R"({"type":"reasoning_text","text":)" + text + "}", status,
                           sealed);
      }
      case Item::Message:
        return fmt::format(
            R"({{"id":"{}","type":"message","status":"{}","role":"assistant","content":[{}]}})", item_id_,
            status, empty ? "" : part(text, logprobs_));
      default:
        return fmt::format(
            R"({{"id":"{}","type":"function_call","status":"{}","call_id":"{}","name":{},"arguments":{}}})",
            item_id_, status, call_id_, name_, text);
    }
  }
  static std::string part(const std::string& text, const std::string& logprobs) {
    return R"({"type":"output_text","text":)" + text + R"(,"annotations":[],"logprobs":[)" + logprobs + "]}";
  }

  void open(Item item_kind, std::string& out) {
    if (item_ == item_kind) return;
    close("completed", out);
    item_ = item_kind;
    text_.clear(), logprobs_.clear();
    item_id_ = random_id(item_ == Item::Reasoning ? "rs_" : item_ == Item::Message ? "msg_" : "fc_");
    if (!is_stream()) return;
    event(out, "response.output_item.added",
          fmt::format(R"("output_index":{},"item":{})", index_, item("in_progress", true)));
    if (item_ != Item::Call)
      event(
          out, "response.content_part.added",
          fmt::format(R"("item_id":"{}","output_index":{},"content_index":0,"part":{})", item_id_, index_,
                      item_ == Item::Message ? part("\"\"", "") : R"({"type":"reasoning_text","text":""})"));
  }

  void close(std::string_view status, std::string& out) {
    if (item_ == Item::None) return;
    const std::string whole = item(status, false);
    if (!items_.empty()) items_ += ',';
    items_ += whole;
    if (is_stream()) {
      const std::string where = fmt::format(R"("item_id":"{}","output_index":{})", item_id_, index_);
      std::string text;
      append_json_string(text, text_);
      if (item_ == Item::Reasoning) {
        event(out, "response.reasoning_text.done",
              fmt::format(R"({},"content_index":0,"text":{})", where, text));
        event(
            out, "response.content_part.done",
            fmt::format(R"({},"content_index":0,"part":{{"type":"reasoning_text","text":{}}})", where, text));
      } else if (item_ == Item::Message) {
        event(out, "response.output_text.done",
              fmt::format(R"({},"content_index":0,"text":{},"logprobs":[{}])", where, text, logprobs_));
        event(out, "response.content_part.done",
              fmt::format(R"({},"content_index":0,"part":{})", where, part(text, logprobs_)));
      } else {
        event(out, "response.function_call_arguments.done",
              fmt::format(R"({},"name":{},"arguments":{})", where, name_, text));
      }
      event(out, "response.output_item.done", fmt::format(R"("output_index":{},"item":{})", index_, whole));
    }
    ++index_;
    item_ = Item::None;
  }

  void save(const std::string& body) {
    StoredResponse stored;
    stored.id = id_, stored.previous = request_.previous_id, stored.created = created_;
    stored.items = write_json(request_.input_items);
    stored.items.pop_back();  // the closing bracket
    if (!items_.empty()) stored.items += (request_.input_items.size() ? "," : "") + items_;
    stored.items += ']';
    stored.response = body;
    try {
      store_.put(stored);
    } catch (const Error& error) {
      log(LogLevel::Error, "response {} was not stored: {}", id_, error.what());
    }
  }

  const ResponsesRequest request_;
  ResponseStore& store_;
  const std::string id_;
  const int64_t created_;
  int64_t sequence_ = 0;
  int index_ = 0;
  Item item_ = Item::None;
  std::string item_id_, call_id_, name_, text_, logprobs_, items_;
  ReplyEnd end_;
};

}  // namespace

ResponsesRequest parse_responses(const Json& body, const RequestLimits& limits, const ResponseStore& store) {
  Fields fields(body, "");
  ResponsesRequest out;
  ChatRequest& request = out.chat;
  if (const std::string* model = fields.text("model")) request.model = *model;
  request.stream = fields.boolean("stream").value_or(false);
  out.store = fields.boolean("store").value_or(true);
  const auto max_tokens = fields.integer("max_output_tokens", 1);
  if (max_tokens) request.max_tokens = *max_tokens;
  read_sampling(fields, request, limits, 2);
  if (request.n != 1) bad_request("n", "one reply a request");

  request.messages = Json(Json::Array{});
  const std::string* instructions = fields.text("instructions");
  if (instructions && !instructions->empty()) {
    Json message;
    message.set("role", "system");
    message.set("content", *instructions);
    request.messages.push_back(std::move(message));
  }
  MessageBuilder builder(request.messages);
  if (const std::string* previous = fields.text("previous_response_id"); previous && !previous->empty()) {
    out.previous_id = *previous;
    const auto history = store.history(*previous);
    if (!history)
      throw ApiError(
          400, "previous_response_id: " + write_json(Json(previous->substr(0, 80))) + " is not stored here",
          "previous_response_id", "previous_response_not_found");
    for (size_t i = 0; i < history->size(); ++i)
      builder.add(history->as_array()[i], fmt::format("previous[{}]", i));
  }
  const Json* input = fields.get("input");
  if (!input && out.previous_id.empty()) bad_request("input", "is missing");
  out.input_items = Json(Json::Array{});
  if (input && input->is_string()) {
    Json item;
    item.set("type", "message");
    item.set("role", "user");
    item.set("content", *input);
    out.input_items.push_back(std::move(item));
  } else if (input) {
    if (!input->is_array()) bad_field("input", "a string or an array of items", *input);
    if (input->size() > limits.messages)
      bad_field("input", fmt::format("at most {} items", limits.messages), *input);
    out.input_items = *input;
    // Stored as what they stand for: the next turn must not hang on an older one that is deleted meanwhile.
    for (size_t i = 0; i < out.input_items.size(); ++i) {
      Json& item = out.input_items.as_array()[i];
      const Json* type = item.find("type");
      const Json* role = item.find("role");
      const Json* id = item.find("id");
      const bool bare = !type && !role && id && item.size() == 1;  // the type may be left out
      if (!bare && !(type && *type == Json("item_reference"))) continue;
      const std::string at = fmt::format("input[{}]", i);
      const std::string wanted = Fields(item, at).required_text("id");
      std::optional<Json> stored = store.item(wanted);
      if (!stored)
        throw ApiError(404,
                       at + ": the item " + write_json(Json(wanted.substr(0, 80))) + " is not stored here",
                       at, "item_not_found");
      item = std::move(*stored);
    }
  }
  for (size_t i = 0; i < out.input_items.size(); ++i)
    builder.add(out.input_items.as_array()[i], fmt::format("input[{}]", i));
  builder.flush();
  request.prompt_field = "input";
  if (request.messages.size() == 0) bad_request("input", "expected at least one message");

  if (const Json* tools = fields.array("tools")) request.tools = read_tools(*tools, limits);
  if (const Json* choice = fields.get("tool_choice")) read_tool_choice(*choice, request);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (const Json* reasoning = fields.object("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (const Json* effort = inner.get("effort")) read_effort("reasoning.effort", *effort, request);
    if (auto v = inner.integer("max_tokens", 0)) request.thinking_budget = *v;
    inner.ignore({"summary", "generate_summary"});
  }
  if (const Json* text = fields.object("text")) {
    Fields inner(*text, "text");
    if (const Json* format = inner.get("format")) read_text_format(*format, request);
    inner.ignore({"verbosity"});
  }
  if (const Json* variables = fields.get("chat_template_kwargs"))
    read_template_variables(*variables, "chat_template_kwargs", request);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (const Json* include = fields.array("include"))
    for (const Json& name : include->as_array()) {
      if (!name.is_string()) bad_field("include", "an array of strings", name);
      if (name.as_string() == "reasoning.encrypted_content")
        out.include_encrypted = true;
      else if (name.as_string() == "message.output_text.logprobs")
        out.include_logprobs = true;
      else
        log(LogLevel::Warn, "responses: nothing to include for {}",
            write_json(Json(name.as_string().substr(0, 64))));
    }
  out.include_logprobs |= top.value_or(0) > 0;
  if (out.include_logprobs) request.sampling.n_logprobs = static_cast<int32_t>(top.value_or(0));
  if (fields.boolean("background").value_or(false)) bad_request("background", "not supported");
  if (const std::string* truncation = fields.choice("truncation", {"auto", "disabled"});
      truncation && *truncation == "auto")
    bad_request("truncation", "auto is not supported; expected disabled");
  fields.refuse("conversation", "not supported; expected previous_response_id");
  fields.refuse("prompt", "stored prompts are not supported");
  fields.ignore({"metadata", "user", "service_tier", "prompt_cache_key", "prompt_cache_retention",
                 "safety_identifier", "client_metadata", "max_tool_calls", "stream_options"});
  log_unknown_fields("responses", fields.unknown());

  const auto repeat = [&](std::string_view name, Json otherwise) {
    const Json* value = body.find(name);
    out.echo.set(name, value && !value->is_null() ? *value : std::move(otherwise));
  };
  out.echo = Json(Json::Object{});
  repeat("model", Json(request.model));
  repeat("instructions", Json());
  repeat("max_output_tokens", Json());
  repeat("metadata", Json(Json::Object{}));
  repeat("parallel_tool_calls", true);
  repeat("reasoning", parse_json(R"({"effort":null,"summary":null})"));
  repeat("temperature", 1.0);
  repeat("text", parse_json(R"({"format":{"type":"text"}})"));
  repeat("tool_choice", "auto");
  repeat("tools", Json(Json::Array{}));
  repeat("top_p", 1.0);
  out.echo.set("truncation", "disabled");
  repeat("user", Json());
  return out;
}

std::unique_ptr<ReplyWriter> make_responses_writer(ResponsesRequest request, ResponseStore& store) {
  return std::make_unique<ResponsesWriter>(std::move(request), store);
}

}  // namespace quern

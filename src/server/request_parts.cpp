#include "server/request_parts.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <set>

#include "base/log.h"

namespace quern {

void read_sampling(Fields& fields, ChatRequest& request, const RequestLimits& limits,
                   double max_temperature) {
  SamplingParams& s = request.sampling;
  if (auto v = fields.number("temperature", 0, max_temperature))
    s.temperature = static_cast<float>(*v), request.has_temperature = true;
  if (auto v = fields.number("top_p", 0, 1)) s.top_p = static_cast<float>(*v), request.has_top_p = true;
  if (auto v = fields.integer("top_k", -1, INT32_MAX))
    s.top_k = static_cast<int32_t>(std::max<int64_t>(*v, 0)), request.has_top_k = true;
  if (auto v = fields.number("min_p", 0, 1)) s.min_p = static_cast<float>(*v), request.has_min_p = true;
  if (auto v = fields.number("presence_penalty", -2, 2)) s.presence_penalty = static_cast<float>(*v);
  if (auto v = fields.number("frequency_penalty", -2, 2)) s.frequency_penalty = static_cast<float>(*v);
  if (auto v = fields.number("repetition_penalty", 0.01, 100)) s.repetition_penalty = static_cast<float>(*v);
  if (auto v = fields.integer("seed", std::numeric_limits<int64_t>::min()))
    request.seed = static_cast<uint64_t>(*v);
  if (auto v = fields.integer("n", 1, limits.replies)) request.n = static_cast<int32_t>(*v);
  if (auto v = fields.integer("priority", -1000, 1000)) request.priority = static_cast<int32_t>(*v);
  if (auto v = fields.boolean("ignore_eos")) request.ignore_eos = *v;
  if (const Json* bias = fields.object("logit_bias")) {
    if (bias->size() > 4096) bad_field(fields.path_of("logit_bias"), "at most 4096 entries", *bias);
    std::set<int32_t> seen;
    for (const auto& [key, value] : bias->as_object()) {
      const std::string path = fields.path_of("logit_bias") + "[" + write_json(Json(key)) + "]";
      int32_t id = -1;
      const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (ec != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab)
        throw ApiError(400, fmt::format("{}: expected a token id from 0 to {}", path, limits.vocab - 1),
                       fields.path_of("logit_bias"));
      const double v = value.is_number() ? value.as_double() : std::nan("");
      if (!(v >= -100 && v <= 100)) bad_field(path, "a number from -100 to 100", value);
      if (!seen.insert(id).second) bad_request(path, "the token id is given twice");
      s.logit_bias.emplace_back(id, static_cast<float>(v));
    }
  }
  if (const Json* ids = fields.array("stop_token_ids")) {
    if (ids->size() > 256) bad_field(fields.path_of("stop_token_ids"), "at most 256 ids", *ids);
    for (size_t i = 0; i < ids->size(); ++i) {
      const Json& id = ids->as_array()[i];
      if (!id.is_int() || id.as_int() < 0 || id.as_int() >= limits.vocab)
        bad_field(fmt::format("{}[{}]", fields.path_of("stop_token_ids"), i),
                  fmt::format("a token id from 0 to {}", limits.vocab - 1), id);
      request.stop_ids.push_back(static_cast<int32_t>(id.as_int()));
    }
  }
}

void read_stops(Fields& fields, std::string_view name, ChatRequest& request, const RequestLimits& limits) {
  const Json* value = fields.get(name);
  if (!value) return;
  const std::string path = fields.path_of(name);
  const auto add = [&](const Json& stop, const std::string& at) {
    if (!stop.is_string() || stop.as_string().empty() || stop.as_string().size() > limits.stop_bytes)
      bad_field(at, fmt::format("a string of 1 to {} bytes", limits.stop_bytes), stop);
    request.stop.push_back(stop.as_string());
  };
  if (value->is_string()) return add(*value, path);
  if (!value->is_array()) bad_field(path, "a string or an array of strings", *value);
  if (value->size() > limits.stops) bad_field(path, fmt::format("at most {} strings", limits.stops), *value);
  for (size_t i = 0; i < value->size(); ++i) add(value->as_array()[i], fmt::format("{}[{}]", path, i));
}

void read_effort(const std::string& path, const Json& value, ChatRequest& request) {
  const std::string* name = value.is_string() ? &value.as_string() : nullptr;
  if (name && *name == "none") {
    request.thinking = false;
    return;
  }
  if (name && (*name == "minimal" || *name == "low"))
    request.effort = "low";
  else if (name && *name == "medium")
    request.effort = "medium";
  else if (name && (*name == "high" || *name == "xhigh" || *name == "max"))
    request.effort = "xhigh";
  else
    bad_field(path, "one of none, minimal, low, medium, high, xhigh, max", value);
  if (!request.thinking) request.thinking = true;
}

void read_template_variables(const Json& value, const std::string& path, ChatRequest& request) {
  Fields fields(value, path);
  if (auto v = fields.boolean("enable_thinking")) request.thinking = *v;
  if (auto v = fields.boolean("preserve_thinking")) request.preserve_thinking = *v;
  if (const Json* v = fields.get("reasoning_effort"))
    read_effort(fields.path_of("reasoning_effort"), *v, request);
  if (auto v = fields.integer("thinking_budget", 0)) request.thinking_budget = *v;
  for (const std::string& name : fields.unknown())
    bad_request(name,
                "not allowed here; expected enable_thinking, preserve_thinking, reasoning_effort or "
                "thinking_budget");
}

void check_messages(const Json& messages, const std::string& path, const RequestLimits& limits) {
  if (!messages.is_array()) bad_field(path, "an array of messages", messages);
  if (messages.size() == 0) bad_request(path, "expected at least one message");
  if (messages.size() > limits.messages)
    bad_field(path, fmt::format("at most {} messages", limits.messages), messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages.as_array()[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!message.is_object()) bad_field(at, "an object", message);
    const Json* role = message.find("role");
    if (!role || !role->is_string())
      bad_field(at + ".role", "one of system, developer, user, assistant, tool", role ? *role : Json());
    const Json* content = message.find("content");
    if (!content || content->is_null() || content->is_string()) continue;
    if (!content->is_array()) bad_field(at + ".content", "a string or an array of parts", *content);
    for (size_t j = 0; j < content->size(); ++j) {
      const Json& part = content->as_array()[j];
      const Json* type = part.find("type");
      const std::string where = fmt::format("{}.content[{}]", at, j);
      if (!part.is_object() || !type || !type->is_string())
        bad_field(where, "a content part with a type", part);
      const std::string& name = type->as_string();
      if (name != "text" && name != "refusal" && name != "thinking" && name != "reasoning")
        bad_request(where, fmt::format("content of type {} is not supported; expected text",
                                       write_json(Json(name.substr(0, 40)))));
    }
  }
}

Json read_function_tools(const Json& tools, const std::string& path, const RequestLimits& limits) {
  if (!tools.is_array()) bad_field(path, "an array of tools", tools);
  if (tools.size() > limits.tools) bad_field(path, fmt::format("at most {} tools", limits.tools), tools);
  Json kept{Json::Array{}};
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools.as_array()[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields fields(tool, at);
    const std::string& type = fields.required_text("type");
    if (type != "function") {
      log(LogLevel::Warn, "{}: tools of type {} are not supported: left out", at, type);
      continue;
    }
    const Json* function = fields.object("function");
    if (!function) bad_request(at + ".function", "is missing");
    Fields inner(*function, at + ".function");
    const std::string& name = inner.required_text("name");
    if (name.empty() || name.size() > 256 || name.find_first_of("<>=\"\n\r") != std::string::npos)
      bad_field(at + ".function.name", "a name of 1 to 256 bytes without <, >, = or quotes", Json(name));
    if (!names.insert(name).second)
      bad_request(at + ".function.name", "the name " + name + " is given twice");
    inner.text("description");
    inner.object("parameters");
    inner.boolean("strict");
    kept.push_back(tool);
  }
  return kept.size() ? kept : Json();
}

void check_tool_choice(const ChatRequest& request, const std::string& path) {
  const bool has_tools = request.tools.is_array() && request.tools.size();
  if (request.tool_use == ToolUse::Required && !has_tools)
    bad_request(path, "a call is required but there are no tools");
  if (request.tool_use != ToolUse::Named) return;
  if (has_tools)
    for (const Json& tool : request.tools.as_array())
      if (tool.find("function")->find("name")->as_string() == request.tool_name) return;
  bad_request(path,
              "names the tool " + write_json(Json(request.tool_name)) + ", which tools does not declare");
}

void refuse_other_formats(Fields& fields) {
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "structured_outputs", "json_schema", "grammar", "regex", "ebnf"})
    fields.refuse(name, "not supported; expected response_format");
}

void read_response_format(const Json& value, const std::string& path, ChatRequest& request) {
  Fields fields(value, path);
  const std::string* type = fields.choice("type", {"text", "json_object", "json_schema", "regex", "ebnf"});
  if (!type) bad_request(path + ".type", "is missing");
  AnswerFormat& format = request.format;
  if (*type == "json_object") {
    format.kind = AnswerFormat::Kind::JsonObject;
    format.path = path;
    if (const Json* schema = fields.get("schema")) {  // as some servers have it
      format.kind = AnswerFormat::Kind::JsonSchema;
      format.schema = *schema;
      format.path = path + ".schema";
    }
  } else if (*type == "json_schema") {
    format.kind = AnswerFormat::Kind::JsonSchema;
    const Json* wrapper = fields.object("json_schema");
    if (!wrapper) bad_request(path + ".json_schema", "is missing");
    Fields inner(*wrapper, path + ".json_schema");
    const Json* schema = inner.get("schema");
    if (!schema) bad_request(path + ".json_schema.schema", "is missing");
    if (!schema->is_object() && !schema->is_bool())
      bad_field(path + ".json_schema.schema", "a JSON schema", *schema);
    format.schema = *schema;
    format.path = path + ".json_schema.schema";
  } else if (*type == "regex" || *type == "ebnf") {
    const std::string name = *type == "regex" ? "pattern" : "grammar";
    format.kind = *type == "regex" ? AnswerFormat::Kind::Regex : AnswerFormat::Kind::Ebnf;
    format.source = fields.required_text(name);
    format.path = path + "." + name;
  }
}

}  // namespace quern

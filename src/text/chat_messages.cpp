#include "text/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/json_repair.h"

namespace quern {

namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& expected, const Json& found) {
  throw Error(fmt::format("{}: expected {}, found {}", place, expected, kind_name(found.kind())));
}

std::string text_content(const Json& content, const std::string& place) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.as_string();
  if (content.is_number()) return write_json(content);
  if (!content.is_array()) refuse(place, "a string or an array of parts", content);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content.as_array()[i];
    const std::string at = fmt::format("{}[{}]", place, i);
    if (part.is_string()) {
      text += part.as_string();
      continue;
    }
    if (!part.is_object()) refuse(at, "an object", part);
    const Json* type = part.find("type");
    const std::string kind = type != nullptr && type->is_string() ? type->as_string() : "text";
    const bool is_text = kind == "text" || kind == "input_text" || kind == "output_text";
    if (!is_text && kind != "refusal") {
      throw Error(fmt::format("{}: content of type '{}' is not supported", at, kind));
    }
    const Json* value = part.find(is_text ? "text" : "refusal");
    if (value == nullptr) throw Error(fmt::format("{}: the text is missing", at));
    if (value->is_number())
      text += write_json(*value);
    else if (value->is_string())
      text += value->as_string();
    else if (!value->is_null())
      refuse(at + ".text", "a string", *value);
  }
  return text;
}

Json prepare_calls(const Json& calls, const std::string& place) {
  if (!calls.is_array()) refuse(place, "an array", calls);
  Json out(Json::Array{});
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    Json call = calls.as_array()[i];
    if (!call.is_object()) refuse(at, "an object", call);
    const Json* given = call.find("function");
    Json function = given != nullptr ? *given : call;
    if (!function.is_object()) refuse(at + ".function", "an object", function);
    const Json* name = function.find("name");
    if (name == nullptr || !name->is_string() || name->as_string().empty()) {
      throw Error(fmt::format("{}.function.name: expected a name", at));
    }
    const Json* arguments = function.find("arguments");
    function.set("arguments", arguments != nullptr ? call_arguments(*arguments, at + ".function.arguments")
                                                   : Json(Json::Object{}));
    if (given == nullptr) {
      call = Json(Json::Object{});
      if (const Json* id = calls.as_array()[i].find("id")) call.set("id", *id);
    }
    if (call.find("type") == nullptr) call.set("type", "function");
    call.set("function", std::move(function));
    out.push_back(std::move(call));
  }
  return out;
}

void erase_member(Json& object, std::string_view key) {
  std::erase_if(object.as_object(), [&](const Json::Member& member) { return member.first == key; });
}

Json prepare_message(const Json& message, const std::string& place) {
  if (!message.is_object()) refuse(place, "an object", message);
  const Json* role = message.find("role");
  if (role == nullptr || !role->is_string()) throw Error(fmt::format("{}.role: expected a string", place));
  std::string name = role->as_string();
  if (name == "developer") name = "system";
  if (name == "function") name = "tool";
  if (name != "system" && name != "user" && name != "assistant" && name != "tool") {
    throw Error(
        fmt::format("{}.role: expected system, developer, user, assistant or tool, found '{}'", place, name));
  }
  Json out = message;
  out.set("role", name);
  const Json* content = message.find("content");
  out.set("content", content != nullptr ? text_content(*content, place + ".content") : std::string());

  const Json* reasoning = message.find("reasoning_content");
  if (reasoning == nullptr || reasoning->is_null()) reasoning = message.find("reasoning");
  std::string thought;
  if (reasoning != nullptr && !reasoning->is_object())
    thought = text_content(*reasoning, place + ".reasoning_content");
  erase_member(out, "reasoning");
  erase_member(out, "reasoning_content");
  if (name == "assistant" && !thought.empty()) out.set("reasoning_content", thought);

  const Json* calls = message.find("tool_calls");
  Json prepared;
  if (calls != nullptr && !calls->is_null()) prepared = prepare_calls(*calls, place + ".tool_calls");
  erase_member(out, "tool_calls");
  // The one call of clients from before tool_calls.
  const Json* call = message.find("function_call");
  if (call != nullptr && !call->is_null() && prepared.size() == 0)
    prepared = prepare_calls(Json(Json::Array{*call}), place + ".function_call");
  erase_member(out, "function_call");
  if (prepared.size() > 0) {
    if (name != "assistant")
      throw Error(fmt::format("{}.tool_calls: only an assistant message has them", place));
    out.set("tool_calls", std::move(prepared));
  }
  return out;
}

const std::string& role_of(const Json& message) { return message.find("role")->as_string(); }

}  // namespace

Json call_arguments(const Json& arguments, const std::string& place) {
  if (arguments.is_null()) return Json(Json::Object{});
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) refuse(place, "a JSON object, or a string that holds one", arguments);
  const std::string& text = arguments.as_string();
  if (text.find_first_not_of(" \t\r\n") == text.npos) return Json(Json::Object{});
  Json parsed;
  try {
    parsed = parse_repaired_json(text);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: expected a JSON object in the string: {}", place, e.what()));
  }
  if (parsed.is_null()) return Json(Json::Object{});
  if (!parsed.is_object()) refuse(place, "a JSON object in the string", parsed);
  return parsed;
}

ChatMessages prepare_messages(const Json& messages, bool late_system, bool take_prefill) {
  if (!messages.is_array()) refuse("messages", "an array", messages);
  if (messages.size() == 0) throw Error("messages: expected at least one message, found none");
  ChatMessages out;
  std::string system;
  bool has_system = false;
  Json::Array rest;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json message = prepare_message(messages.as_array()[i], fmt::format("messages[{}]", i));
    if (role_of(message) == "system" && (rest.empty() || !late_system)) {
      const std::string& content = message.find("content")->as_string();
      if (!system.empty() && !content.empty()) system += "\n\n";
      system += content;
      has_system = true;
    } else {
      rest.push_back(std::move(message));
    }
  }
  if (take_prefill && !rest.empty() && role_of(rest.back()) == "assistant" &&
      rest.back().find("tool_calls") == nullptr) {
    out.prefill_content = rest.back().find("content")->as_string();
    if (const Json* reasoning = rest.back().find("reasoning_content"))
      out.prefill_reasoning = reasoning->as_string();
    out.has_prefill = !out.prefill_content.empty() || !out.prefill_reasoning.empty();
    rest.pop_back();
  }
  Json::Array all;
  if (has_system) all.push_back(Json(Json::Object{{"role", "system"}, {"content", system}}));
  for (Json& message : rest) all.push_back(std::move(message));
  if (all.empty())
    throw Error("messages: expected a message before the assistant's text to continue, found none");
  out.messages = Json(std::move(all));
  return out;
}

ChatPrompt render_chat(const ChatTemplate& chat_template, const Json& messages, const Json& tools,
                       const Json& variables) {
  Json values = variables.is_null() ? Json(Json::Object{}) : variables;
  const Json* asked = values.find("add_generation_prompt");
  const bool generate = asked == nullptr || (asked->is_bool() && asked->as_bool());
  if (asked == nullptr) values.set("add_generation_prompt", true);
  const ChatMessages prepared = prepare_messages(messages, chat_template.takes_late_system(), generate);
  const Json* thinking = values.find("enable_thinking");
  const Json* effort = values.find("reasoning_effort");
  const bool wants_thinking = !(thinking != nullptr && thinking->is_bool() && !thinking->as_bool()) &&
                              !(effort != nullptr && effort->is_string() && effort->as_string() == "none");
  const bool keeps_reasoning = prepared.has_prefill && !prepared.prefill_reasoning.empty() && wants_thinking;
  if (prepared.has_prefill && !keeps_reasoning) values.set("enable_thinking", false);

  ChatPrompt out;
  out.prompt = chat_template.render(prepared.messages, tools, values);
  out.thinking = generate && out.prompt.opens_thinking();
  if (!prepared.has_prefill) return out;

  if (keeps_reasoning) {
    if (!out.thinking) out.prompt.append("<think>\n", true);
    out.prompt.append(prepared.prefill_reasoning, false);
    out.thinking = true;
    if (prepared.prefill_content.empty()) return out;
    out.prompt.append("\n</think>\n\n", true);
  } else if (out.thinking) {
    out.prompt.append("\n</think>\n\n", true);
  }
  out.thinking = false;
  out.prompt.append(prepared.prefill_content, false);
  out.prefill = prepared.prefill_content;
  return out;
}

std::string_view canonical_effort(std::string_view name) {
  if (name == "none") return "none";
  if (name == "minimal" || name == "low") return "low";
  if (name == "medium") return "medium";
  if (name == "high" || name == "xhigh" || name == "max") return "xhigh";
  throw Error(fmt::format(
      "reasoning_effort: expected none, minimal, low, medium, high, xhigh or max, found '{}'", name));
}

}  // namespace quern

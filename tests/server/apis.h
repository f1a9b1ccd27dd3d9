// One question asked of the three APIs that know tools, streamed or not, and what they answered in common terms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/test_server.h"

namespace quern::testing {

enum class Api { Chat, Responses, Messages };
inline constexpr Api kApis[] = {Api::Chat, Api::Responses, Api::Messages};
inline const char* name_of(Api api) {
  return api == Api::Chat ? "chat" : api == Api::Responses ? "responses" : "messages";
}

struct Said {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning, content;
  std::vector<Call> calls;
  std::string finish;  // stop, length or tool_calls
  bool operator==(const Said& o) const {
    if (calls.size() != o.calls.size()) return false;
    for (size_t i = 0; i < calls.size(); ++i)
      if (calls[i].name != o.calls[i].name || calls[i].arguments != o.calls[i].arguments) return false;
    return reasoning == o.reasoning && content == o.content && finish == o.finish;
  }
};
inline void PrintTo(const Said& s, std::ostream* out) {
  *out << s.finish << ": [" << s.reasoning << "] " << s.content;
  for (const Said::Call& c : s.calls) *out << " " << c.name << c.arguments;
}

struct Turn {
  std::string role, text;         // user, assistant or tool
  std::vector<Said::Call> calls;  // of an assistant
  std::string call_id;            // of a tool
};

struct Question {
  std::vector<Turn> turns;
  std::string tools;        // [{"name", "description", "parameters"}]
  std::string tool_choice;  // auto, none, required or a tool's name; empty: not said
  bool parallel = true;
  std::string schema;        // of the answer
  bool json_object = false;  // chat and responses alone have it
  std::optional<bool> thinking;
  int64_t thinking_budget = -1, max_tokens = 400;
  double temperature = 0;
  std::optional<int64_t> seed;
};
inline Question question(const std::string& user) {
  Question q;
  q.turns.push_back({"user", user, {}, ""});
  return q;
}

inline Json object_of(std::initializer_list<std::pair<const char*, Json>> members) {
  Json out{Json::Object{}};
  for (const auto& [key, value] : members) out.set(key, value);
  return out;
}
inline Json object_or_text(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const Error&) {
    return Json(text);
  }
}

// ---- asking

inline Json tools_for(Api api, const std::string& tools) {
  Json out{Json::Array{}};
  const Json declared = parse_json(tools);
  for (const Json& tool : declared.as_array()) {
    Json t = tool;
    if (api == Api::Chat) {
      t = object_of({{"type", "function"}, {"function", tool}});
    } else if (api == Api::Responses) {
      t.set("type", "function");
    } else {
      t = object_of({{"name", at(tool, "name")}, {"input_schema", at(tool, "parameters")}});
    }
    out.push_back(t);
  }
  return out;
}

inline Json turns_for(Api api, const std::vector<Turn>& turns) {
  Json out{Json::Array{}};
  for (const Turn& turn : turns) {
    if (turn.role == "user") {
      out.push_back(object_of({{"role", "user"}, {"content", turn.text}}));
    } else if (turn.role == "tool") {
      out.push_back(
          api == Api::Chat
              ? object_of({{"role", "tool"}, {"tool_call_id", turn.call_id}, {"content", turn.text}})
          : api == Api::Responses
              ? object_of(
                    {{"type", "function_call_output"}, {"call_id", turn.call_id}, {"output", turn.text}})
              : object_of({{"role", "user"},
                           {"content", Json::Array{object_of({{"type", "tool_result"},
                                                              {"tool_use_id", turn.call_id},
                                                              {"content", turn.text}})}}}));
    } else if (api == Api::Responses) {
      if (!turn.text.empty()) out.push_back(object_of({{"role", "assistant"}, {"content", turn.text}}));
      for (const Said::Call& c : turn.calls)
        out.push_back(object_of(
            {{"type", "function_call"}, {"call_id", c.id}, {"name", c.name}, {"arguments", c.arguments}}));
    } else if (api == Api::Chat) {
      Json message = object_of({{"role", "assistant"}, {"content", turn.text}});
      Json calls{Json::Array{}};
      for (const Said::Call& c : turn.calls)
        calls.push_back(object_of({{"id", c.id},
                                   {"type", "function"},
                                   {"function", object_of({{"name", c.name}, {"arguments", c.arguments}})}}));
      if (calls.size()) message.set("tool_calls", calls);
      out.push_back(message);
    } else {
      Json blocks{Json::Array{}};
      if (!turn.text.empty()) blocks.push_back(object_of({{"type", "text"}, {"text", turn.text}}));
      for (const Said::Call& c : turn.calls)
        blocks.push_back(object_of(
            {{"type", "tool_use"}, {"id", c.id}, {"name", c.name}, {"input", parse_json(c.arguments)}}));
      out.push_back(object_of({{"role", "assistant"}, {"content", blocks}}));
    }
  }
  return out;
}

inline std::string body_for(Api api, const Question& q, bool stream) {
  Json body{Json::Object{}};
  body.set(api == Api::Responses ? "input" : "messages", turns_for(api, q.turns));
  body.set(api == Api::Responses ? "max_output_tokens" : "max_tokens", q.max_tokens);
  body.set("temperature", q.temperature);
  if (stream) body.set("stream", true);
  if (q.seed) body.set("seed", *q.seed);
  if (!q.tools.empty()) body.set("tools", tools_for(api, q.tools));
  const bool named = !q.tool_choice.empty() && q.tool_choice != "auto" && q.tool_choice != "none" &&
                     q.tool_choice != "required";
  if (api == Api::Messages) {
    Json choice = object_of({{"type", named                         ? "tool"
                                      : q.tool_choice == "required" ? "any"
                                      : q.tool_choice.empty()       ? "auto"
                                                                    : q.tool_choice.c_str()}});
    if (named) choice.set("name", q.tool_choice);
    if (!q.parallel) choice.set("disable_parallel_tool_use", true);
    if (!q.tools.empty()) body.set("tool_choice", choice);
    if (!q.schema.empty())
      body.set(
          "output_config",
          object_of({{"format", object_of({{"type", "json_schema"}, {"schema", parse_json(q.schema)}})}}));
    if (q.thinking) {
      Json thinking = object_of({{"type", *q.thinking ? "enabled" : "disabled"}});
      if (*q.thinking && q.thinking_budget > 0) thinking.set("budget_tokens", q.thinking_budget);
      body.set("thinking", thinking);
    }
    return write_json(body);
  }
  if (named)
    body.set("tool_choice", api == Api::Chat ? object_of({{"type", "function"},
                                                          {"function", object_of({{"name", q.tool_choice}})}})
                                             : object_of({{"type", "function"}, {"name", q.tool_choice}}));
  else if (!q.tool_choice.empty())
    body.set("tool_choice", q.tool_choice);
  if (!q.parallel) body.set("parallel_tool_calls", false);
  Json format;
  if (!q.schema.empty() && api == Api::Chat)
    format = object_of({{"type", "json_schema"},
                        {"json_schema", object_of({{"name", "answer"}, {"schema", parse_json(q.schema)}})}});
  else if (!q.schema.empty())
    format = object_of({{"type", "json_schema"}, {"name", "answer"}, {"schema", parse_json(q.schema)}});
  else if (q.json_object)
    format = object_of({{"type", "json_object"}});
  if (!format.is_null())
    api == Api::Chat ? body.set("response_format", format)
                     : body.set("text", object_of({{"format", format}}));
  Json variables{Json::Object{}};
  if (q.thinking) variables.set("enable_thinking", *q.thinking);
  if (q.thinking_budget > 0) variables.set("thinking_budget", q.thinking_budget);
  if (variables.size()) body.set("chat_template_kwargs", variables);
  return write_json(body);
}

// ---- reading

// The events of a stream of /v1/messages joined back into the message that a whole answer would be, their order
// checked. The input of a call that was cut short is the text that came.
inline Json read_message_stream(Client& client) {
  Json message;
  int64_t open = -1;
  std::string partial;
  bool stopped = false;
  while (auto event = client.next_event()) {
    EXPECT_FALSE(stopped);
    const Json data = parse_json(event->data);
    EXPECT_EQ(at(data, "type").as_string(), event->event);
    if (event->event == "ping") continue;
    if (event->event == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = at(data, "message");
    } else if (event->event == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = at(data, "index").as_int();
      Json content = at(message, "content");
      EXPECT_EQ(open, static_cast<int64_t>(content.size()));
      content.push_back(at(data, "content_block"));
      message.set("content", content);
      partial.clear();
    } else if (event->event == "content_block_delta") {
      EXPECT_EQ(at(data, "index").as_int(), open);
      Json content = at(message, "content");
      Json& block = content.as_array().back();
      const Json& delta = at(data, "delta");
      const std::string& type = at(delta, "type").as_string();
      if (type == "text_delta")
        block.set("text", at(block, "text").as_string() + at(delta, "text").as_string());
      if (type == "thinking_delta")
        block.set("thinking", at(block, "thinking").as_string() + at(delta, "thinking").as_string());
      if (type == "signature_delta") block.set("signature", at(delta, "signature"));
      if (type == "input_json_delta") partial += at(delta, "partial_json").as_string();
      message.set("content", content);
    } else if (event->event == "content_block_stop") {
      EXPECT_EQ(at(data, "index").as_int(), open);
      open = -1;
      if (!partial.empty()) {
        Json content = at(message, "content");
        content.as_array().back().set("input", object_or_text(partial));
        message.set("content", content);
      }
    } else if (event->event == "message_delta") {
      message.set("stop_reason", at(data, "delta", "stop_reason"));
      message.set("stop_sequence", at(data, "delta", "stop_sequence"));
      message.set("usage", at(data, "usage"));
    } else if (event->event == "message_stop") {
      stopped = true;
    } else {
      ADD_FAILURE() << event->event;
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

inline Said said_in_message(const Json& message) {
  Said out;
  for (const Json& block : at(message, "content").as_array()) {
    const std::string& type = at(block, "type").as_string();
    if (type == "thinking") out.reasoning += at(block, "thinking").as_string();
    if (type == "text") out.content += at(block, "text").as_string();
    if (type == "tool_use") {
      const Json& input = at(block, "input");
      out.calls.push_back({at(block, "id").as_string(), at(block, "name").as_string(),
                           input.is_string() ? input.as_string() : write_json(input)});
    }
  }
  const std::string& reason = at(message, "stop_reason").as_string();
  out.finish = reason == "end_turn"     ? "stop"
               : reason == "max_tokens" ? "length"
               : reason == "tool_use"   ? "tool_calls"
                                        : reason;
  return out;
}

// A call of an incomplete response is one whose item is complete, or half of one.
inline Said said_in_response(const Json& response) {
  Said out;
  for (const Json& item : at(response, "output").as_array()) {
    const std::string& type = at(item, "type").as_string();
    if (type == "reasoning")
      for (const Json& part : at(item, "content").as_array()) out.reasoning += at(part, "text").as_string();
    if (type == "message")
      for (const Json& part : at(item, "content").as_array()) out.content += at(part, "text").as_string();
    if (type == "function_call") {
      out.calls.push_back(
          {at(item, "call_id").as_string(), at(item, "name").as_string(), at(item, "arguments").as_string()});
      EXPECT_EQ(at(item, "status").as_string() == "completed",
                object_or_text(out.calls.back().arguments).is_object());
    }
  }
  const std::string& status = at(response, "status").as_string();
  out.finish = status == "incomplete" ? "length" : out.calls.empty() ? "stop" : "tool_calls";
  return out;
}

inline Said ask(const TestServer& server, Api api, const Question& q, bool stream) {
  const std::string path = api == Api::Chat        ? "/v1/chat/completions"
                           : api == Api::Responses ? "/v1/responses"
                                                   : "/v1/messages";
  const std::string body = body_for(api, q, stream);
  Client client(server.port(), 120);
  client.send(Client::request_text("POST", path, body));
  if (!stream) {
    const Reply reply = client.read();
    if (reply.status != 200)
      throw std::runtime_error("status " + std::to_string(reply.status) + " " + reply.body + " to " + body);
    const Json json = reply.json();
    if (api == Api::Messages) return said_in_message(json);
    if (api == Api::Responses) return said_in_response(json);
    const StreamedChat chat = chat_in(json);
    Said out{chat.reasoning, chat.content, {}, chat.finish};
    for (const auto& c : chat.calls) out.calls.push_back({c.id, c.name, c.arguments});
    return out;
  }
  Reply head;
  if (!client.read_head(head) || head.status != 200)
    throw std::runtime_error("status " + std::to_string(head.status) + " to " + body);
  if (api == Api::Messages) return said_in_message(read_message_stream(client));
  if (api == Api::Chat) {
    const StreamedChat chat = read_chat_stream(client);
    EXPECT_TRUE(chat.done);
    Said out{chat.reasoning, chat.content, {}, chat.finish};
    for (const auto& c : chat.calls) out.calls.push_back({c.id, c.name, c.arguments});
    return out;
  }
  Json last;
  std::vector<std::string> deltas;
  for (const SseEvent& event : client.read_events()) {
    if (!event.comment.empty()) continue;
    last = parse_json(event.data);
    if (!event.event.ends_with(".delta")) continue;
    deltas.resize(std::max(deltas.size(), static_cast<size_t>(at(last, "output_index").as_int()) + 1));
    deltas[static_cast<size_t>(at(last, "output_index").as_int())] += at(last, "delta").as_string();
  }
  const Json& response = at(last, "response");
  for (size_t i = 0; i < deltas.size(); ++i) {  // what was streamed is what the end says
    const Json& item = at(response, "output", i);
    EXPECT_EQ(deltas[i], item.find("arguments") ? at(item, "arguments").as_string()
                                                : at(item, "content", size_t{0}, "text").as_string());
  }
  return said_in_response(response);
}

}  // namespace quern::testing

// A server in this process on a free port with quern-tiny's tokenizer and template, and readers of its answers. What
// engine is behind it: scripted_server.h, model_server.h.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "engine/engine.h"
#include "server/client.h"
#include "server/service.h"

namespace quern::testing {

inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::from_file(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny/tokenizer.json");
  return tokenizer;
}
inline const ChatTemplate& tiny_template() {
  static const ChatTemplate source =
      ChatTemplate::from_model(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny");
  return source;
}

class TestServer {
 public:
  ~TestServer() {
    if (!engine) return;
    engine->stop();
    service->stop();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  uint16_t port() const { return service->port(); }
  Reply post(std::string_view path, const std::string& body, std::string_view headers = {}) const {
    return Client(port()).post(path, body, headers);
  }
  // Waits until nothing runs or waits; false after a second.
  bool becomes_idle() const {
    for (int i = 0; i < 1000; ++i) {
      const EngineStats stats = engine->stats();
      if (stats.running == 0 && stats.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<Service> service;

 protected:
  TestServer() { set_log_level(LogLevel::Off); }
  void serve(ServiceOptions options) {
    ChatDefaults defaults;
    defaults.end_ids = {*tiny_tokenizer().find_special("<|im_end|>")};
    options.http.port = 0;
    if (options.model_names.empty()) options.model_names = {"quern-tiny", "tiny"};
    service =
        std::make_unique<Service>(std::move(options), *engine, tiny_tokenizer(), tiny_template(), defaults);
    service->start();
  }
};

inline const Json& at(const Json& value, std::string_view key) {
  const Json* found = value.find(key);
  if (!found) throw std::runtime_error("no " + std::string(key) + " in " + write_json(value));
  return *found;
}
inline const Json& at(const Json& value, size_t index) { return value.as_array().at(index); }
template <class A, class B, class... More>
const Json& at(const Json& value, A a, B b, More... more) {
  return at(at(value, a), b, more...);
}

// One reply of chat/completions joined from a stream; the shape of every chunk is checked on the way.
struct StreamedChat {
  std::string reasoning, content, finish;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> calls;
  Json usage;
  Json error;
  bool done = false;
  int chunks = 0, pings = 0, usage_chunks = 0;
};

inline StreamedChat read_chat_stream(Client& client, int64_t reply = 0) {
  StreamedChat out;
  while (auto event = client.next_event()) {
    if (!event->comment.empty()) {
      ++out.pings;
      continue;
    }
    EXPECT_FALSE(out.done) << "after [DONE]: " << event->data;
    if (event->data == "[DONE]") {
      out.done = true;
      continue;
    }
    const Json chunk = parse_json(event->data);
    if (const Json* error = chunk.find("error")) {
      out.error = *error;
      continue;
    }
    ++out.chunks;
    EXPECT_EQ(at(chunk, "object").as_string(), "chat.completion.chunk");
    if (const Json* usage = chunk.find("usage"); usage && !usage->is_null()) {
      EXPECT_EQ(at(chunk, "choices").size(), 0u);
      out.usage = *usage;
      ++out.usage_chunks;
      continue;
    }
    const Json& choice = at(chunk, "choices", 0);
    if (at(choice, "index").as_int() != reply) continue;
    const Json& delta = at(choice, "delta");
    if (const Json* text = delta.find("reasoning_content")) out.reasoning += text->as_string();
    if (const Json* text = delta.find("content")) out.content += text->as_string();
    if (const Json* calls = delta.find("tool_calls")) {
      for (const Json& call : calls->as_array()) {
        const auto index = static_cast<size_t>(at(call, "index").as_int());
        if (index == out.calls.size()) {
          EXPECT_EQ(at(call, "type").as_string(), "function");
          out.calls.push_back({at(call, "id").as_string(), at(call, "function", "name").as_string(), ""});
        }
        out.calls.at(index).arguments += at(call, "function", "arguments").as_string();
      }
    }
    if (const Json& finish = at(choice, "finish_reason"); !finish.is_null()) {
      EXPECT_TRUE(out.finish.empty());
      out.finish = finish.as_string();
    }
  }
  return out;
}

inline StreamedChat stream_chat(const TestServer& server, const std::string& body) {
  Client client(server.port());
  client.send(Client::request_text("POST", "/v1/chat/completions", body));
  Reply reply;
  if (!client.read_head(reply)) throw std::runtime_error("no head");
  if (reply.status != 200) throw std::runtime_error("status " + std::to_string(reply.status));
  return read_chat_stream(client);
}

// The same from one JSON value.
inline StreamedChat chat_in(const Json& json) {
  StreamedChat out;
  const Json& choice = at(json, "choices", 0);
  const Json& message = at(choice, "message");
  if (const Json* text = message.find("reasoning_content")) out.reasoning = text->as_string();
  if (const Json& content = at(message, "content"); content.is_string()) out.content = content.as_string();
  if (const Json* calls = message.find("tool_calls"))
    for (const Json& call : calls->as_array())
      out.calls.push_back({at(call, "id").as_string(), at(call, "function", "name").as_string(),
                           at(call, "function", "arguments").as_string()});
  out.finish = at(choice, "finish_reason").as_string();
  out.usage = at(json, "usage");
  out.done = true;
  return out;
}
inline StreamedChat whole_chat(const TestServer& server, const std::string& body) {
  const Reply reply = server.post("/v1/chat/completions", body);
  if (reply.status != 200)
    throw std::runtime_error("status " + std::to_string(reply.status) + " " + reply.body);
  return chat_in(reply.json());
}

inline std::string chat_body(const std::string& user, const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":)" + write_json(Json(user)) + "}]" +
         (more.empty() ? "" : "," + more) + "}";
}

}  // namespace quern::testing

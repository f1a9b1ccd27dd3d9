// OpenAI's responses: items and events, the store, faults.
#include <gtest/gtest.h>

#include <filesystem>

#include "server/scripted_server.h"

namespace quern {
namespace {

using namespace testing;

const std::string kTools =
    R"("tools":[{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}},{"type":"web_search"},{"type":"custom","name":"c"},{"type":"namespace","name":"n"}])";
const std::string kReply =
    "Let me see.</think>\n\nI "
    "ask.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</"
    "tool_call>\n"
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>";

// R38
TEST(Responses, events_are_ordered_and_end_with_what_the_whole_says) {
  for (int step : {1, 4, 200}) {
    ScriptedServer server(script_of(kReply, R"("cached_tokens":3,"step":)" + std::to_string(step)));
    const Json whole = server.post("/v1/responses", R"({"input":"hi",)" + kTools + "}").json();
    Client c(server.port());
    c.send(Client::request_text("POST", "/v1/responses", R"({"input":"hi","stream":true,)" + kTools + "}"));
    Reply head;
    ASSERT_TRUE(c.read_head(head));
    std::vector<std::string> order;
    std::map<int64_t, std::string> deltas, ids;
    Json last;
    int64_t sequence = 0;
    for (const SseEvent& event : c.read_events()) {
      if (!event.comment.empty()) continue;
      const Json data = parse_json(event.data);
      EXPECT_EQ(at(data, "type").as_string(), event.event);
      EXPECT_EQ(at(data, "sequence_number").as_int(), sequence++);
      if (event.event == "response.output_item.added")
        ids[at(data, "output_index").as_int()] = at(data, "item", "id").as_string();
      if (event.event.ends_with(".delta")) {
        EXPECT_EQ(at(data, "item_id").as_string(), ids[at(data, "output_index").as_int()]);
        deltas[at(data, "output_index").as_int()] += at(data, "delta").as_string();
        if (!order.empty() && order.back() == event.event) continue;
      }
      order.push_back(event.event);
      last = data;
    }
    const std::vector<std::string> call = {
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done"};
    std::vector<std::string> expected = {"response.created",
                                         "response.in_progress",
                                         "response.output_item.added",
                                         "response.content_part.added",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.done",
                                         "response.content_part.done",
                                         "response.output_item.done",
                                         "response.output_item.added",
                                         "response.content_part.added",
                                         "response.output_text.delta",
                                         "response.output_text.done",
                                         "response.content_part.done",
                                         "response.output_item.done"};
    expected.insert(expected.end(), call.begin(), call.end());
    expected.insert(expected.end(), call.begin(), call.end());
    expected.push_back("response.completed");
    EXPECT_EQ(order, expected);
    for (const Json* r : {&whole, &at(last, "response")}) {
      EXPECT_EQ(at(*r, "status").as_string(), "completed");
      ASSERT_EQ(at(*r, "output").size(), 4u);
      EXPECT_EQ(at(*r, "output", 0, "content", 0, "text").as_string(), "Let me see.");
      EXPECT_EQ(at(*r, "output", 1, "content", 0, "text").as_string(), "I ask.");
      EXPECT_EQ(parse_json(at(*r, "output", 3, "arguments").as_string()), parse_json(R"({"city":"Rome"})"));
      EXPECT_EQ(at(*r, "usage", "input_tokens_details", "cached_tokens").as_int(), 3);
    }
    EXPECT_EQ(deltas[1], "I ask.");
    EXPECT_EQ(parse_json(deltas[2]), parse_json(R"({"city":"Oslo"})"));
    EXPECT_EQ(write_json(at(whole, "usage")), write_json(at(last, "response", "usage")));
  }
}

TEST(Responses, a_conversation_goes_on_from_what_is_stored) {
  ScriptedServer server(
      R"({"replies":[{"match":"21 degrees","text":"t</think>It is mild."},{"match":"","text":)" +
      write_json(Json(kReply)) + "}]}");
  Client c(server.port());
  const Json first =
      c.post("/v1/responses", R"({"input":"weather?","instructions":"Be brief.",)" + kTools + "}").json();
  const std::string id = at(first, "id").as_string();
  EXPECT_EQ(at(c.get("/v1/responses/" + id).json(), "id").as_string(), id);
  const std::string output = R"({"type":"function_call_output","call_id":)" +
                             write_json(at(first, "output", 2, "call_id")) + R"(,"output":"21 degrees"})";
  const Json second = c.post("/v1/responses", R"({"previous_response_id":")" + id + R"(","input":[)" +
                                                  output + "]," + kTools + "}")
                          .json();
  EXPECT_EQ(at(second, "output", 1, "content", 0, "text").as_string(), "It is mild.");
  EXPECT_EQ(at(second, "previous_response_id").as_string(), id);
  const Json third = c.post("/v1/responses", R"({"previous_response_id":")" + at(second, "id").as_string() +
                                                 R"(","input":"and?"})")
                         .json();
  EXPECT_EQ(at(third, "status").as_string(), "completed");
  EXPECT_GT(at(third, "usage", "input_tokens").as_int(), at(second, "usage", "input_tokens").as_int() / 2);

  const Json unstored = c.post("/v1/responses", R"({"input":"x","store":false})").json();
  EXPECT_EQ(c.get("/v1/responses/" + at(unstored, "id").as_string()).status, 404);
  const Reply unknown = c.post("/v1/responses", R"({"previous_response_id":"resp_none","input":"x"})");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_EQ(at(unknown.json(), "error", "code").as_string(), "previous_response_not_found");
  EXPECT_EQ(c.request("DELETE", "/v1/responses/" + id).status, 200);
  EXPECT_EQ(c.get("/v1/responses/" + id).status, 404);
}

TEST(Responses, a_cut_reply_is_incomplete) {
  ScriptedServer server(script_of(kReply));
  const Json r = server.post("/v1/responses", R"({"input":"x","max_output_tokens":4})").json();
  EXPECT_EQ(at(r, "status").as_string(), "incomplete");
  EXPECT_EQ(at(r, "incomplete_details", "reason").as_string(), "max_output_tokens");
  EXPECT_EQ(at(r, "output", 0, "status").as_string(), "incomplete");
}

TEST(Responses, what_codex_sends_is_taken) {
  ScriptedServer server(script_of("t</think>ok"));
  const std::string body =
      R"({"model":"m","instructions":"You are an agent.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"rules"}]},
       {"type":"message","role":"user","content":[{"type":"input_text","text":"do it"}]},
       {"type":"reasoning","summary":[],"content":null,"encrypted_content":"SSB0aGluaw=="},
       {"type":"function_call","name":"get_weather","arguments":"{\"city\":\"Oslo\"}","call_id":"c1"},
       {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"ok"}]},
       {"type":"web_search_call","id":"ws"},{"role":"assistant","content":[{"type":"output_text","text":"done"}]},{"role":"user","content":"more"}],)" +
      kTools +
      R"(,"tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"medium","summary":"auto"},"store":false,"stream":false,
       "include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{"a":"b"},"text":{"verbosity":"low"}})";
  const Reply r = server.post("/v1/responses", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(at(r.json(), "output", 0, "encrypted_content").as_string(), "dA==");
  EXPECT_EQ(at(r.json(), "store").as_bool(), false);
}

TEST(Responses, faults_are_named) {
  ScriptedServer server(script_of("x"));
  for (const auto& [body, name] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "input"},
           {R"({"input":5})", "input"},
           {R"({"input":[5]})", "input[0]"},
           {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})",
            "input[0].content[0]"},
           {R"({"input":"x","background":true})", "background"},
           {R"({"input":"x","truncation":"auto"})", "truncation"},
           {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
           {R"({"input":"x","tool_choice":"required"})", "tool_choice"},
           {R"({"input":"x","text":{"format":{"type":"yaml"}}})", "text.format.type"},
           {R"({"input":"x","conversation":"c"})", "conversation"}}) {
    const Reply r = server.post("/v1/responses", body);
    EXPECT_EQ(r.status, 400) << body;
    EXPECT_TRUE(at(r.json(), "error", "message").as_string().starts_with(name)) << r.body;
  }
}

TEST(ResponseStore, survives_a_restart_keeps_the_newest_and_joins_turns) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("quern-store-" + random_id(""))).string();
  {
    ResponseStore store(path, 3);
    for (int i = 0; i < 5; ++i)
      store.put({"r" + std::to_string(i), i ? "r" + std::to_string(i - 1) : "", i,
                 "[" + std::to_string(i) + "]", "{}"});
    EXPECT_EQ(store.size(), 3);
    EXPECT_FALSE(store.history("r4"));  // its beginning was dropped
  }
  ResponseStore store(path, 10);
  EXPECT_EQ(store.size(), 3);
  EXPECT_TRUE(store.get("r4"));
  store.put({"a", "", 1, "[1,2]", "{}"});
  store.put({"b", "a", 2, "[3]", "{}"});
  EXPECT_EQ(write_json(*store.history("b")), "[1,2,3]");
  EXPECT_FALSE(store.history("none"));
  EXPECT_TRUE(store.remove("a"));
  EXPECT_FALSE(store.remove("a"));
  EXPECT_FALSE(store.history("b"));
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(path + end);
  EXPECT_THROW(ResponseStore("/nonexistent/folder/x.db"), Error);
}

}  // namespace
}  // namespace quern

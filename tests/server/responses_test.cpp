// OpenAI's responses: items and events, the store, faults.
#include <gtest/gtest.h>
#include <sqlite3.h>

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
  EXPECT_EQ(c.get("/v1/responses/" + id + "?stream=true").status, 400);
  EXPECT_EQ(c.request("DELETE", "/v1/responses/" + id).status, 200);
  EXPECT_EQ(c.get("/v1/responses/" + id).status, 404);
}

// The OpenAI provider of the ai SDK sends what the assistant said as references, with each turn.
TEST(Responses, a_reference_stands_for_the_stored_item) {
  ScriptedServer server(
      R"({"replies":[{"match":"PLUM","text":"t</think>I see the word."},{"match":"","text":"Why PLUM.</think>A fig."}]})");
  Client c(server.port());
  const Json first = c.post("/v1/responses", R"({"input":"name a fruit"})").json();
  const std::string reasoning = write_json(at(first, "output", 0, "id")),
                    message = write_json(at(first, "output", 1, "id"));
  const auto ask = [&](const std::string& items) {
    return c.post("/v1/responses", R"({"input":[{"role":"user","content":"name a fruit"},)" + items +
                                       R"({"role":"user","content":"and?"}]})");
  };
  const Json second = ask(R"({"type":"item_reference","id":)" + reasoning +
                          R"(},{"type":"item_reference","id":)" + message + "},")
                          .json();
  EXPECT_EQ(at(second, "output", 1, "content", 0, "text").as_string(), "I see the word.");
  // Spelled out, the prompt is the same; without what was said, it is another.
  const std::string out = write_json(at(first, "output"));
  const Json spelled = ask(out.substr(1, out.size() - 2) + ",").json();
  EXPECT_EQ(write_json(at(second, "usage")), write_json(at(spelled, "usage")));
  EXPECT_LT(at(ask("").json(), "usage", "input_tokens").as_int(),
            at(second, "usage", "input_tokens").as_int());
  EXPECT_EQ(ask(R"({"id":)" + message + "},").status, 200);  // the type may be left out

  // The second turn keeps what it referred to, also where the first is deleted.
  EXPECT_EQ(c.request("DELETE", "/v1/responses/" + at(first, "id").as_string()).status, 200);
  const Reply third = c.post(
      "/v1/responses", R"({"previous_response_id":)" + write_json(at(second, "id")) + R"(,"input":"so?"})");
  EXPECT_EQ(at(third.json(), "output", 1, "content", 0, "text").as_string(), "I see the word.");

  const Reply gone = ask(R"({"type":"item_reference","id":"msg_none"},)");
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(at(gone.json(), "error", "param").as_string(), "input[1]");
  EXPECT_EQ(ask(R"({"type":"item_reference"},)").status, 400);
}

TEST(Responses, log_probabilities_come_where_asked_for) {
  ScriptedServer server(script_of("t</think>\n\none two", R"("step":2)"));
  for (const char* wish : {R"("include":["message.output_text.logprobs"])", R"("top_logprobs":1)"}) {
    const Json whole = server.post("/v1/responses", std::string(R"({"input":"x",)") + wish + "}").json();
    std::string joined, streamed;
    for (const Json& entry : at(whole, "output", 1, "content", 0, "logprobs").as_array())
      joined += at(entry, "token").as_string();
    EXPECT_EQ(joined, "one two") << wish;
    Client c(server.port());
    c.send(Client::request_text("POST", "/v1/responses",
                                std::string(R"({"input":"x","stream":true,)") + wish + "}"));
    Reply head;
    ASSERT_TRUE(c.read_head(head));
    for (const SseEvent& event : c.read_events())
      if (event.event == "response.output_text.delta") {
        const Json data = parse_json(event.data);
        for (const Json& entry : at(data, "logprobs").as_array()) streamed += at(entry, "token").as_string();
      }
    EXPECT_EQ(streamed, "one two") << wish;
  }
  const Json none = server.post("/v1/responses", R"({"input":"x"})").json();
  EXPECT_EQ(at(none, "output", 1, "content", 0, "logprobs").size(), 0u);
}

TEST(Responses, a_conversation_goes_on_after_a_call_that_was_cut) {
  ScriptedServer server(script_of(kReply));
  Client c(server.port());
  for (int limit = 1; limit < 60; ++limit) {
    const Json cut = c.post("/v1/responses", R"({"input":"x","max_output_tokens":)" + std::to_string(limit) +
                                                 "," + kTools + "}")
                         .json();
    const Reply next = c.post("/v1/responses", R"({"previous_response_id":)" + write_json(at(cut, "id")) +
                                                   R"(,"input":"go on",)" + kTools + "}");
    EXPECT_EQ(next.status, 200) << limit << ": " << next.body;
  }
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
  for (
      const auto& [body, name] : std::vector<std::pair<std::string, std::string>>{
          {"{}", "input"},
          {R"({"input":5})", "input"},
          {R"({"input":[5]})", "input[0]"},
          {R"({"input":["x"]})", "input[0]"},
          {R"({"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":"f","arguments":"{"}]})",
           "input[1].arguments"},
          {R"({"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"[1]"}]})",
           "input[0].arguments"},
          {R"({"input":"x","model":")" + std::string(2000, 'm') + R"("})", "model"},
          {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})",
           "input[0].content[0]"},
          {R"({"input":"x","background":true})", "background"},
          {R"({"input":"x","truncation":"auto"})", "truncation"},
          {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
          {R"({"input":"x","tool_choice":"required"})", "tool_choice"},
          {R"({"input":"x","text":{"format":{"type":"yaml"}}})", "text.format.type"},
          {R"({"input":"x","top_logprobs":21})", "top_logprobs"},
          {R"({"input":"x","include":[5]})", "include"},
          {R"({"input":"x","conversation":"c"})", "conversation"}}) {
    const Reply r = server.post("/v1/responses", body);
    EXPECT_EQ(r.status, 400) << body;
    EXPECT_TRUE(at(r.json(), "error", "message").as_string().starts_with(name)) << r.body;
  }
  ScriptedServer small(R"({"context":40,"replies":[{"match":"","text":"x"}]})");
  const Reply over = small.post("/v1/responses", R"({"input":")" + std::string(200, 'x') + R"( y z"})");
  EXPECT_EQ(at(over.json(), "error", "code").as_string(), "context_length_exceeded");
  EXPECT_EQ(at(over.json(), "error", "param").as_string(), "input");
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
  store.put({"c", "", 3, R"([{"role":"user"},"text",5,{"id":7},{"id":"i","n":1}])", "{}"});
  EXPECT_EQ(write_json(*store.item("i")), R"({"id":"i","n":1})");
  EXPECT_FALSE(store.item("7"));
  // A file from before items had a table.
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "DROP TRIGGER drop_items; DROP TABLE items", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  {
    ResponseStore older(path, 10);
    EXPECT_TRUE(older.item("i"));
    EXPECT_TRUE(older.remove("c"));
    EXPECT_FALSE(older.item("i"));
  }
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(path + end);
  EXPECT_THROW(ResponseStore("/nonexistent/folder/x.db"), Error);
}

TEST(ResponseStore, keeps_what_fits_its_bytes) {
  ResponseStore store("", 1000, 1 << 20);
  const std::string items = R"([{"id":"i","text":")" + std::string(100'000, 'x') + R"("}])";
  for (int i = 0; i < 40; ++i) store.put({"r" + std::to_string(i), "", i, items, "{}"});
  EXPECT_GE(store.size(), 8);
  EXPECT_LE(store.size(), 10);
  EXPECT_TRUE(store.get("r39"));
  EXPECT_FALSE(store.get("r20"));
  const std::string huge = R"([{"text":")" + std::string(3'000'000, 'x') + R"("}])";
  store.put({"huge", "", 1, huge, "{}"});
  EXPECT_EQ(store.size(), 1);  // the newest stays, whatever its size
  store.put({"after", "", 1, "[]", "{}"});
  EXPECT_TRUE(store.get("after"));
  EXPECT_FALSE(store.get("huge"));
}

}  // namespace
}  // namespace quern

// Anthropic's messages: the order of events, blocks, usage, faults.
#include <gtest/gtest.h>

#include "server/apis.h"
#include "server/scripted_server.h"

namespace quern {
namespace {

using namespace testing;

const std::string kTool =
    R"("tools":[{"name":"get_weather","description":"d","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}},{"type":"web_search_20250305","name":"web_search"}])";
const std::string kReply =
    "Let me see.</think>\n\nI "
    "ask.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</"
    "tool_call>";

std::string body_of(const std::string& more,
                    const std::string& messages = R"([{"role":"user","content":"x"}])") {
  return R"({"model":"claude-x","max_tokens":1000,"messages":)" + messages +
         (more.empty() ? "" : "," + more) + "}";
}

Json stream(const TestServer& server, const std::string& body) {
  Client client(server.port());
  client.send(Client::request_text("POST", "/v1/messages", body));
  Reply head;
  EXPECT_TRUE(client.read_head(head));
  EXPECT_EQ(head.status, 200);
  return read_message_stream(client);
}

TEST(Messages, events_join_to_what_the_whole_says) {
  for (int step : {1, 3, 100}) {
    ScriptedServer server(script_of(kReply, R"("cached_tokens":5,"step":)" + std::to_string(step)));
    const std::string thinking = R"("thinking":{"type":"enabled","budget_tokens":2000},)";
    Json whole = server.post("/v1/messages?beta=true", body_of(thinking + kTool)).json();
    Json streamed = stream(server, body_of(thinking + kTool + R"(,"stream":true)"));
    for (Json* m : {&whole, &streamed}) {
      m->set("id", "");
      Json content = at(*m, "content");
      ASSERT_EQ(content.size(), 3u) << write_json(*m);
      content.as_array()[2].set("id", "");
      m->set("content", content);
    }
    EXPECT_EQ(write_json(whole), write_json(streamed));
    EXPECT_EQ(at(whole, "content", 0, "thinking").as_string(), "Let me see.");
    EXPECT_FALSE(at(whole, "content", 0, "signature").as_string().empty());
    EXPECT_EQ(at(whole, "content", 1, "text").as_string(), "I ask.");
    EXPECT_EQ(at(whole, "content", 2, "input", "city").as_string(), "Oslo");
    EXPECT_EQ(at(whole, "stop_reason").as_string(), "tool_use");
    EXPECT_EQ(at(whole, "usage", "cache_read_input_tokens").as_int(), 5);
    const int64_t counted =
        at(server.post("/v1/messages/count_tokens", body_of(thinking + kTool)).json(), "input_tokens")
            .as_int();
    EXPECT_EQ(counted, at(whole, "usage", "input_tokens").as_int() + 5);
  }
}

TEST(Messages, the_first_event_knows_the_input_tokens) {
  ScriptedServer server(script_of("hello", R"("cached_tokens":2)"));
  Client c(server.port());
  c.send(Client::request_text("POST", "/v1/messages", body_of(R"("stream":true)")));
  Reply head;
  ASSERT_TRUE(c.read_head(head));
  const Json start = parse_json(c.next_event()->data);
  EXPECT_GT(at(start, "message", "usage", "input_tokens").as_int(), 0);
  EXPECT_EQ(at(start, "message", "usage", "cache_read_input_tokens").as_int(), 2);
}

TEST(Messages, stop_reasons_and_sequences) {
  ScriptedServer server(script_of("red green blue"));
  Json m = server.post("/v1/messages", body_of(R"("stop_sequences":["en bl","zz"])")).json();
  EXPECT_EQ(at(m, "content", 0, "text").as_string(), "red gre");
  EXPECT_EQ(at(m, "stop_reason").as_string(), "stop_sequence");
  EXPECT_EQ(at(m, "stop_sequence").as_string(), "en bl");
  m = stream(server, body_of(R"("stream":true,"stop_sequences":["en bl"])"));
  EXPECT_EQ(at(m, "stop_sequence").as_string(), "en bl");
  m = server.post("/v1/messages", body_of("")).json();
  EXPECT_EQ(at(m, "stop_reason").as_string(), "end_turn");
  EXPECT_TRUE(at(m, "stop_sequence").is_null());
  m = server.post("/v1/messages", R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}]})").json();
  EXPECT_EQ(at(m, "stop_reason").as_string(), "max_tokens");
  EXPECT_EQ(at(m, "model").as_string(), "quern-tiny");
}

// R37
TEST(Messages, an_agents_session_is_taken_as_it_comes) {
  ScriptedServer server(script_of("done</think>ok"));
  const std::string messages =
      R"([{"role":"user","content":[{"type":"text","text":"first"},{"type":"text","text":"second","cache_control":{"type":"ephemeral"}}]},
          {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"z"},{"type":"text","text":"calling"},{"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"Oslo"}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"21 degrees"}],"is_error":false},{"type":"text","text":"and now?"}]},
          {"role":"system","content":"mid system"},{"role":"user","content":"go"}])";
  const std::string more =
      kTool +
      R"(,"system":[{"type":"text","text":"x-anthropic-billing-header: v=1; cch=00aa1;"},{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
        "thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"context_management":{"edits":[]},"metadata":{"user_id":"u"},"new_beta_field":{"a":[1]})";
  const Reply r = server.post("/v1/messages?beta=true", body_of(more, messages),
                              "anthropic-beta: a,b\r\nanthropic-version: 2023-06-01\r\n");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(at(r.json(), "content", 1, "text").as_string(), "ok");
}

// R23
TEST(Messages, a_changing_billing_header_does_not_change_the_prompt) {
  ScriptedServer server(script_of("x"));
  const auto count = [&](const std::string& system, const std::string& user = "u") {
    return at(server
                  .post("/v1/messages/count_tokens",
                        body_of(R"("system":)" + system, R"([{"role":"user","content":")" + user + "\"}]"))
                  .json(),
              "input_tokens")
        .as_int();
  };
  const std::string rest = R"({"type":"text","text":"Be brief."}])";
  const int64_t plain = count("[" + rest);
  EXPECT_EQ(count(R"([{"type":"text","text":"x-anthropic-billing-header: v=1; cch=00aa1;"},)" + rest), plain);
  EXPECT_EQ(count(R"([{"type":"text","text":"x-anthropic-billing-header: v=1; cch=00bb2ff;"},)" + rest),
            plain);
  EXPECT_GT(count(R"([{"type":"text","text":"see x-anthropic-billing-header: v=1"},)" + rest), plain);
  EXPECT_GT(count("[" + rest, "x-anthropic-billing-header: v=1; cch=00aa1;"), plain);
}

TEST(Messages, faults_come_in_their_own_shape) {
  ScriptedServer server(script_of("x"));
  for (
      const auto& [body, name] : std::vector<std::pair<std::string, std::string>>{
          {R"({"messages":[{"role":"user","content":"x"}]})", "max_tokens"},
          {R"({"max_tokens":5})", "messages"},
          {body_of("", R"([{"role":"wizard","content":"x"}])"), "messages[0].role"},
          {body_of("", R"([{"role":"user","content":[{"type":"image","source":{}}]}])"),
           "messages[0].content[0]"},
          {body_of(
               "",
               R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}]}])"),
           "messages[0].content[0].content[0]"},
          {body_of(R"("tool_choice":{"type":"any"})"), "tool_choice"},
          {body_of(R"("tool_choice":{"type":"tool","name":"zz"},)" + kTool), "tool_choice"},
          {body_of(R"("thinking":{"type":"enabled","budget_tokens":"x"})"), "thinking.budget_tokens"},
          {body_of(R"("output_config":{"effort":"banana"})"), "output_config.effort"},
          {body_of(R"("temperature":"hot")"), "temperature"}}) {
    const Reply r = server.post("/v1/messages", body);
    EXPECT_EQ(r.status, 400) << body;
    EXPECT_EQ(at(r.json(), "type").as_string(), "error");
    EXPECT_EQ(at(r.json(), "error", "type").as_string(), "invalid_request_error");
    EXPECT_TRUE(at(r.json(), "error", "message").as_string().starts_with(name)) << r.body;
  }
  EXPECT_EQ(Client(server.port()).get("/v1/messages").status, 405);
}

TEST(Messages, prefill_is_continued) {
  ScriptedServer server(script_of(" Pear"));
  const Json m =
      server
          .post(
              "/v1/messages",
              body_of(
                  "",
                  R"([{"role":"user","content":"Two fruits."},{"role":"assistant","content":"1. Apple 2."}])"))
          .json();
  EXPECT_EQ(at(m, "content", 0, "text").as_string(), " Pear");
}

}  // namespace
}  // namespace quern

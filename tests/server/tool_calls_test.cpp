// Tool calls over the three APIs that know them, streamed and not: the loop in which a client answers a call, and calls
// that a limit cuts short.
#include <gtest/gtest.h>

#include "server/apis.h"
#include "server/scripted_server.h"

namespace quern {
namespace {

using namespace testing;

const char* const kWeather =
    R"([{"name":"get_weather","description":"The weather of a city","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}])";

std::string call_text(const std::string& city) {
  return "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + city +
         "\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
}

TEST(ToolCalls, a_call_is_answered_and_the_answer_is_used) {
  for (const int step : {1, 7}) {
    const std::string more = R"(,"step":)" + std::to_string(step) + "}";
    ScriptedServer server(
        R"({"replies":[{"match":"21 degrees","text":"The tool knows.</think>\n\nIt is 21 degrees in Oslo.")" +
        more + R"(,{"match":"weather in Oslo","text":)" +
        write_json(Json("I need the tool.</think>\n\nLet me look.\n" + call_text("Oslo"))) + more + "]}");
    for (const Api api : kApis)
      for (const bool stream : {false, true}) {
        SCOPED_TRACE(std::string(name_of(api)) + (stream ? ", streamed" : ", whole"));
        Question q = question("What is the weather in Oslo?");
        q.tools = kWeather;
        q.thinking = true;
        const Said first = ask(server, api, q, stream);
        EXPECT_EQ(first.reasoning, "I need the tool.");
        EXPECT_EQ(first.content, "Let me look.");
        EXPECT_EQ(first.finish, "tool_calls");
        ASSERT_EQ(first.calls.size(), 1u);
        EXPECT_EQ(first.calls[0].name, "get_weather");
        EXPECT_EQ(parse_json(first.calls[0].arguments), parse_json(R"({"city":"Oslo","days":3})"));
        q.turns.push_back({"assistant", first.content, first.calls, ""});
        q.turns.push_back({"tool", "21 degrees", {}, first.calls[0].id});
        const Said second = ask(server, api, q, stream);
        EXPECT_EQ(second.content, "It is 21 degrees in Oslo.");
        EXPECT_EQ(second.finish, "stop");
        EXPECT_TRUE(second.calls.empty());
      }
  }
}

// A limit anywhere in a reply with calls. A call that is whole is a call; of one that is not no reader takes the
// beginning for the whole: it is the text that came (chat, responses, and the deltas of messages), or content, where
// only an object could be a call's input. Streams and whole replies say the same but for that.
TEST(ToolCalls, a_call_that_a_limit_cuts_is_never_taken_for_whole) {
  const std::string reply =
      "Fine.</think>\n\nBoth:\n" + call_text("Oslo") + "\n" + call_text("Rome \u00e9\U0001F600 \"q\"");
  ScriptedServer server(script_of(reply));
  int halves = 0, wholes = 0;
  for (int64_t limit = 1; limit < 400; ++limit) {
    Question q = question("x");
    q.tools = kWeather;
    q.thinking = true;
    q.max_tokens = limit;
    bool ended = false;
    for (const Api api : kApis) {
      SCOPED_TRACE(std::string(name_of(api)) + ", limit " + std::to_string(limit));
      const Said whole = ask(server, api, q, false), stream = ask(server, api, q, true);
      ended = whole.finish == "tool_calls";
      EXPECT_TRUE(ended || whole.finish == "length") << whole.finish;
      EXPECT_EQ(whole.finish, stream.finish);
      EXPECT_EQ(whole.reasoning, stream.reasoning);
      size_t complete = 0;
      for (size_t i = 0; i < stream.calls.size(); ++i) {
        const Json arguments = object_or_text(stream.calls[i].arguments);
        if (arguments.is_object()) {
          EXPECT_EQ(arguments.size(), 2u) << stream.calls[i].arguments;
          ++complete;
        } else {
          EXPECT_EQ(i + 1, stream.calls.size());
          EXPECT_FALSE(stream.calls[i].arguments.empty());
          EXPECT_EQ(stream.finish, "length");
          ++halves;
        }
      }
      wholes += complete == 2;
      EXPECT_TRUE(!ended || complete == 2) << complete;
      if (api != Api::Messages) {
        EXPECT_EQ(whole, stream);
        continue;
      }
      ASSERT_EQ(whole.calls.size(), complete);
      for (const auto& call : whole.calls) EXPECT_TRUE(parse_json(call.arguments).is_object());
      if (complete == stream.calls.size()) {
        EXPECT_EQ(whole, stream);
      } else {
        EXPECT_TRUE(whole.content.starts_with("Both:<tool_call>\n<function=get_weather>")) << whole.content;
        std::string written = whole.content.substr(5);
        if (written.ends_with("\uFFFD")) written.resize(written.size() - 3);  // half a character
        EXPECT_NE(reply.find(written), std::string::npos) << whole.content;
      }
    }
    if (ended) break;
  }
  EXPECT_GT(halves, 50);
  EXPECT_GE(wholes, 3);
}

}  // namespace
}  // namespace quern

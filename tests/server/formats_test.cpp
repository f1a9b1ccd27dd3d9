// Answer formats as requests name them: hostile ones are refused by their path, and what would be ignored is refused too.
#include <gtest/gtest.h>

#include <chrono>

#include "server/apis.h"
#include "server/scripted_server.h"

namespace quern {
namespace {

using namespace testing;

std::string deep_object(int levels) {
  std::string schema = R"({"type":"integer"})";
  for (int i = 0; i < levels; ++i) schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
  return schema;
}

// R18. The same schema as an answer's format and as a tool's parameters, on every API that has them. Only a tool that
// the model is free not to call may have a schema that nothing can be held to.
TEST(Formats, hostile_schemas_are_refused_by_their_path_and_harm_no_free_choice) {
  ScriptedServer server(script_of("t</think>ok"));
  const std::string hostile[] = {
      R"({"type":"object","properties":{"x":{"type":"string","pattern":"^*x$"}}})",
      R"({"type":"object","properties":{"x":{"type":"string","pattern":")" + std::string(50'000, '(') +
          R"("}}})",
      R"({"type":"object","properties":{"x":{"type":"string","pattern":"(a+)+\\1"}}})",
      R"({"type":"object","properties":{"x":{"type":"string","pattern":"[a-"}}})",
      R"({"type":"object","properties":{"x":{"type":"string","pattern":"a{99999999}"}}})",
      R"({"type":"object","properties":{"x":{"$ref":"http://127.0.0.1:1/s.json"}}})",
      R"({"type":"object","properties":{"x":{"$ref":"file:///etc/passwd"}}})",
      R"({"type":"object","properties":{"x":{"$ref":"#/nowhere"}}})",
      R"({"type":"object","properties":{"x":{"type":"array","items":{"type":"integer"},"minItems":100000000}}})",
      R"({"type":"object","properties":{"x":{"not":{}}}})",
      R"({"type":"object","properties":{"x":{"type":"wizard"}}})",
      deep_object(80),
  };
  for (const std::string& schema : hostile)
    for (const Api api : kApis) {
      SCOPED_TRACE(std::string(name_of(api)) + " " + schema.substr(0, 90));
      const std::string path = api == Api::Chat        ? "/v1/chat/completions"
                               : api == Api::Responses ? "/v1/responses"
                                                       : "/v1/messages";
      const auto begin = std::chrono::steady_clock::now();
      Question format = question("x");
      format.schema = schema;
      const Reply refused = server.post(path, body_for(api, format, false));
      EXPECT_EQ(refused.status, 400) << refused.body;
      const std::string message = at(refused.json(), "error", "message").as_string();
      EXPECT_NE(message.find("schema"), std::string::npos) << message;
      EXPECT_NE(message.find("#/properties/"), std::string::npos) << message;
      EXPECT_LT(message.size(), 600u);

      Question tool = question("x");
      tool.tools = R"([{"name":"f","parameters":)" + schema + "}]";
      tool.thinking = true;
      EXPECT_EQ(ask(server, api, tool, false).content, "ok");
      format.tools = tool.tools;
      format.schema = R"({"type":"object"})";
      format.thinking = true;
      EXPECT_EQ(ask(server, api, format, false).content, "ok");
      tool.tool_choice = "f";
      const Reply forced = server.post(path, body_for(api, tool, false));
      EXPECT_TRUE(forced.status == 400 || forced.status == 200) << forced.body;
      if (forced.status == 400) {
        EXPECT_NE(forced.body.find("tools"), std::string::npos) << forced.body;
      }
      EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 5);
    }
  // Beyond the depth of any request: the body itself is refused.
  EXPECT_EQ(server
                .post("/v1/chat/completions",
                      chat_body("x", R"("response_format":{"type":"json_schema","json_schema":{"schema":)" +
                                         deep_object(20'000) + "}}"))
                .status,
            400);
  EXPECT_EQ(whole_chat(server, chat_body("x")).content, "ok");
}

TEST(Formats, what_would_be_ignored_is_refused) {
  ScriptedServer server(script_of("t</think>ok"));
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "structured_outputs", "json_schema", "grammar"}) {
    const Reply chat =
        server.post("/v1/chat/completions", chat_body("x", '"' + std::string(name) + R"(":{"a":1})"));
    EXPECT_EQ(chat.status, 400) << name;
    EXPECT_EQ(at(chat.json(), "error", "param").as_string(), name);
    EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"x",")" + std::string(name) + R"(":"a"})").status,
              400);
    EXPECT_EQ(
        server.post("/v1/chat/completions", chat_body("x", '"' + std::string(name) + R"(":null)")).status,
        200);
  }
  // A schema beside json_object, as some clients write it, is the schema.
  EXPECT_EQ(
      server
          .post("/v1/chat/completions",
                chat_body("x", R"("response_format":{"type":"json_object","schema":{"type":"wizard"}})"))
          .status,
      400);
}

}  // namespace
}  // namespace quern

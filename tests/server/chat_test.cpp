// chat/completions and completions: what a script says, as one JSON value and as a stream.
#include <gtest/gtest.h>

#include <random>

#include "patience.h"
#include "server/scripted_server.h"

namespace quern {
namespace {

using namespace testing;

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"replace_text","parameters":{"type":"object","properties":{"path":{"type":"string"},"old":{"type":"string"},"count":{"type":"integer"},"opts":{"type":"object"}}}}},)"
    R"({"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";

const std::string kCalls =
    "I look. \xF0\x9F\x98\x80</think>\n\nTwo "
    "calls:\n<tool_call>\n<function=replace_text>\n<parameter=path>\na \"b\" \\ c\n"
    "</parameter>\n<parameter=old>\n\n    total = "
    "1\n\n</parameter>\n<parameter=count>\n-7\n</parameter>\n<parameter=opts>\n"
    "{\"x\": {\"y\": [1, 2.50, "
    "\"\xE4\xBD\xA0\"]}}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
    "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

void expect_same(const StreamedChat& stream, const StreamedChat& whole) {
  EXPECT_EQ(stream.reasoning, whole.reasoning);
  EXPECT_EQ(stream.content, whole.content);
  EXPECT_EQ(stream.finish, whole.finish);
  ASSERT_EQ(stream.calls.size(), whole.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    EXPECT_EQ(stream.calls[i].name, whole.calls[i].name);
    EXPECT_EQ(stream.calls[i].arguments, whole.calls[i].arguments);
  }
  EXPECT_EQ(write_json(stream.usage), write_json(whole.usage));
  EXPECT_TRUE(stream.done);
}

// R01, R02, R05, R33: whatever the steps, the stream says what the whole says.
TEST(Chat, streamed_equals_whole_for_every_step_size) {
  std::mt19937 random(20);
  const std::vector<std::string> texts = {
      kCalls,
      "plan</think>\n\nThe answer is 42. \xF0\x9F\x98\x80 \xE4\xBD\xA0\xE5\xA5\xBD",
      "only reasoning, cut",
      "mentions <tool_call> and <function=get_weather> in talk</think>\n\nplain",
      "a</think>text "
      "<tool_call>\n<function=unknown_name>\n<parameter=k>\nv\n</parameter>\n</function>\n</tool_call>",
      "a</think><tool_call>\n<function=get_weather>\n<parameter=city>\nno end",
      "a</think>b</think>c",
  };
  for (const std::string& text : texts)
    for (int step : {1, 2, 3, 7, 1000}) {
      ScriptedServer server(script_of(text, R"("cached_tokens":4,"step":)" + std::to_string(step)));
      std::string more = kTools;
      if (random() % 2) more += R"(,"max_tokens":)" + std::to_string(1 + random() % 80);
      SCOPED_TRACE(text.substr(0, 40) + " step " + std::to_string(step) + " " + more.substr(kTools.size()));
      const StreamedChat whole = whole_chat(server, chat_body("x", more));
      const StreamedChat stream = stream_chat(
          server, chat_body("x", more + R"(,"stream":true,"stream_options":{"include_usage":true})"));
      expect_same(stream, whole);
      EXPECT_EQ(stream.usage_chunks, 1);
      EXPECT_EQ(at(whole.usage, "prompt_tokens_details", "cached_tokens").as_int(), 4);
      for (const auto& call : whole.calls)
        EXPECT_TRUE(whole.finish != "tool_calls" || parse_json(call.arguments).is_object());
    }
}

TEST(Chat, calls_keep_every_byte_and_type) {
  ScriptedServer server(script_of(kCalls));
  const StreamedChat chat = whole_chat(server, chat_body("x", kTools));
  EXPECT_EQ(chat.reasoning, "I look. \U0001F600");
  EXPECT_EQ(chat.content, "Two calls:");
  EXPECT_EQ(chat.finish, "tool_calls");
  ASSERT_EQ(chat.calls.size(), 2u);
  const Json arguments = parse_json(chat.calls[0].arguments);
  EXPECT_EQ(at(arguments, "old").as_string(), "\n    total = 1\n");
  EXPECT_EQ(at(arguments, "path").as_string(), "a \"b\" \\ c");
  EXPECT_EQ(at(arguments, "count").as_int(), -7);
  EXPECT_EQ(at(arguments, "opts", "x", "y", size_t{1}).as_double(), 2.5);
  EXPECT_NE(chat.calls[0].id, chat.calls[1].id);
}

// R06
TEST(Chat, tool_choice_is_never_silently_ignored) {
  ScriptedServer server(script_of(kCalls));
  const StreamedChat none = whole_chat(server, chat_body("x", kTools + R"(,"tool_choice":"none")"));
  EXPECT_TRUE(none.calls.empty());
  EXPECT_EQ(none.finish, "stop");
  const std::string prompt =
      at(server.post("/apply-template", chat_body("x", kTools + R"(,"tool_choice":"none")")).json(), "prompt")
          .as_string();
  EXPECT_EQ(prompt.find("get_weather"), std::string::npos);
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const std::string body = chat_body("x", kTools + R"(,"parallel_tool_calls":false)" + stream);
    const StreamedChat one = *stream ? stream_chat(server, body) : whole_chat(server, body);
    EXPECT_EQ(one.calls.size(), 1u);
    EXPECT_EQ(one.finish, "tool_calls");
    EXPECT_TRUE(parse_json(one.calls[0].arguments).is_object());
  }
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body("x", R"("tool_choice":"required")")).status, 400);
  EXPECT_EQ(
      server
          .post("/v1/chat/completions",
                chat_body("x", kTools + R"(,"tool_choice":{"type":"function","function":{"name":"nope"}})"))
          .status,
      400);
  EXPECT_EQ(
      server
          .post("/v1/chat/completions",
                chat_body("x",
                          kTools + R"(,"tool_choice":{"type":"function","function":{"name":"get_weather"}})"))
          .status,
      200);
}

// R07
TEST(Chat, reasoning_starts_where_the_prompt_says) {
  ScriptedServer server(
      R"({"replies":[{"match":"cut","text":"thinking on and on","end":false},{"match":"only","text":"just thoughts"},
    {"match":"stray","text":"An</think>swer"},{"match":"","text":"t</think>\n\nanswer"}]})");
  StreamedChat chat = whole_chat(server, chat_body("hi"));
  EXPECT_EQ(chat.reasoning, "t");
  EXPECT_EQ(chat.content, "answer");
  chat = whole_chat(server, chat_body("cut", R"("max_tokens":3)"));
  EXPECT_FALSE(chat.reasoning.empty());
  EXPECT_EQ(chat.content, "");
  EXPECT_EQ(chat.finish, "length");
  EXPECT_EQ(at(chat.usage, "completion_tokens").as_int(), 3);
  EXPECT_EQ(at(chat.usage, "completion_tokens_details", "reasoning_tokens").as_int(), 3);
  chat = whole_chat(server, chat_body("only"));
  EXPECT_EQ(chat.reasoning, "just thoughts");
  EXPECT_EQ(chat.content, "");
  EXPECT_EQ(chat.finish, "stop");
  chat = whole_chat(server, chat_body("stray", R"("reasoning_effort":"none")"));
  EXPECT_EQ(chat.reasoning, "");
  EXPECT_EQ(chat.content, "Answer");
}

TEST(Chat, a_thinking_budget_closes_the_block_and_the_answer_comes) {
  ScriptedServer server(script_of("one two three four five six seven eight</think>\n\nanswer"));
  const StreamedChat chat = whole_chat(server, chat_body("x", R"("thinking_budget":3)"));
  EXPECT_EQ(chat.content, "answer");
  EXPECT_LT(chat.reasoning.size(), 20u);
  EXPECT_FALSE(chat.reasoning.empty());
}

// R12
TEST(Chat, every_name_of_an_effort_is_mapped_or_refused) {
  ScriptedServer server(script_of("x</think>y"));
  for (const char* effort : {"none", "minimal", "low", "medium", "high", "xhigh", "max"})
    EXPECT_EQ(server
                  .post("/v1/chat/completions",
                        chat_body("x", R"("reasoning_effort":")" + std::string(effort) + "\""))
                  .status,
              200)
        << effort;
  EXPECT_EQ(server.post("/v1/chat/completions", chat_body("x", R"("reasoning_effort":"banana")")).status,
            400);
  const auto prompt = [&](const std::string& more) {
    return at(server.post("/apply-template", chat_body("x", more)).json(), "prompt").as_string();
  };
  EXPECT_TRUE(prompt(R"("reasoning_effort":"none")").ends_with("</think>\n\n"));
  EXPECT_TRUE(prompt(R"("reasoning_effort":"low")").ends_with("<think>\n"));
  EXPECT_TRUE(prompt(R"("thinking":{"type":"disabled"})").ends_with("</think>\n\n"));
  EXPECT_TRUE(prompt(R"("thinking_budget":0)").ends_with("</think>\n\n"));
  EXPECT_TRUE(prompt(R"("chat_template_kwargs":{"enable_thinking":false})").ends_with("</think>\n\n"));
}

// R08, R11
TEST(Chat, developers_are_system_and_a_last_assistant_message_is_continued) {
  ScriptedServer server(script_of(" Pear"));
  const auto prompt = [&](const std::string& messages) {
    return at(server.post("/apply-template", "{\"messages\":" + messages + "}").json(), "prompt").as_string();
  };
  const std::string both = prompt(
      R"([{"role":"system","content":"Be kind."},{"role":"developer","content":"Use capitals."},{"role":"user","content":"Name a colour."}])");
  EXPECT_TRUE(both.starts_with("<|im_start|>system\nBe kind.\n\nUse capitals.<|im_end|>")) << both;
  const std::string messages =
      R"([{"role":"user","content":"List two fruits."},{"role":"assistant","content":"1. Apple\n2. "}])";
  EXPECT_TRUE(prompt(messages).ends_with("</think>\n\n1. Apple\n2. ")) << prompt(messages);
  const StreamedChat chat = whole_chat(server, "{\"messages\":" + messages + "}");
  EXPECT_EQ(chat.content, " Pear");
  EXPECT_EQ(chat.reasoning, "");
}

// R33
TEST(Chat, usage_comes_once_and_only_where_asked_for) {
  ScriptedServer server(script_of("t</think>abc", R"("cached_tokens":3)"));
  const StreamedChat with =
      stream_chat(server, chat_body("x", R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(with.usage_chunks, 1);
  EXPECT_EQ(at(with.usage, "prompt_tokens_details", "cached_tokens").as_int(), 3);
  EXPECT_EQ(at(with.usage, "total_tokens").as_int(),
            at(with.usage, "prompt_tokens").as_int() + at(with.usage, "completion_tokens").as_int());
  for (const char* more : {R"("stream":true)", R"("stream":true,"stream_options":{"include_usage":false})",
                           R"("stream":true,"stream_options":{})"})
    EXPECT_EQ(stream_chat(server, chat_body("x", more)).usage_chunks, 0);
}

// R34
TEST(Chat, output_ends_just_before_the_earliest_stop) {
  for (int step : {1, 2, 100}) {
    ScriptedServer server(script_of("red green blue", R"("step":)" + std::to_string(step)));
    const std::string off = R"("reasoning_effort":"none",)";
    for (const auto& [stop, content] :
         std::vector<std::pair<std::string, std::string>>{{R"("en bl")", "red gre"},
                                                          {R"("red")", ""},
                                                          {R"(["blue","green"])", "red "},
                                                          {R"(["gr","gree","green bl","zzz"])", "red "},
                                                          {R"("blue")", "red green "},
                                                          {R"("green bluex")", "red green blue"},
                                                          {R"(["e b"])", "red green blue"},
                                                          {R"([])", "red green blue"}}) {
      SCOPED_TRACE(stop + " step " + std::to_string(step));
      const StreamedChat whole = whole_chat(server, chat_body("x", off + R"("stop":)" + stop));
      const StreamedChat stream =
          stream_chat(server, chat_body("x", off + R"("stream":true,"stop":)" + stop));
      EXPECT_EQ(whole.content, content);
      EXPECT_EQ(stream.content, content);
      EXPECT_EQ(whole.finish, "stop");
      EXPECT_EQ(stream.finish, "stop");
      const Json text =
          server.post("/v1/completions", R"({"prompt":"x","max_tokens":50,"stop":)" + stop + "}").json();
      EXPECT_EQ(at(text, "choices", 0, "text").as_string(), content);
    }
    EXPECT_TRUE(server.becomes_idle());
  }
}

// R35
TEST(Chat, silence_is_filled_with_comments_in_streams_only) {
  ServiceOptions options;
  options.http.limits.ping_seconds = 0.1;
  ScriptedServer server(
      script_of("</think>abcdef", R"("first_delay_ms":350,"pauses":[{"after":3,"ms":350}])"), options);
  Client c(server.port());
  c.send(Client::request_text("POST", "/v1/chat/completions", chat_body("x", R"("stream":true)")));
  const auto begin = std::chrono::steady_clock::now();
  Reply reply;
  ASSERT_TRUE(c.read_head(reply));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            0.2 * test::kSlowdown);
  const StreamedChat chat = read_chat_stream(c);
  EXPECT_EQ(chat.content, "abcdef");
  EXPECT_GE(chat.pings, 4);
  const Reply whole = server.post("/v1/chat/completions", chat_body("x"));
  EXPECT_EQ(whole.body[0], '{');
}

// R40
TEST(Chat, limits_are_clamped_and_an_overlong_prompt_is_named_with_both_numbers) {
  ScriptedServer server(R"({"context":60,"replies":[{"match":"","text":"a b c d","end":false}]})");
  const std::string off = R"("reasoning_effort":"none",)";
  const StreamedChat clamped = whole_chat(server, chat_body("x", off + R"("max_completion_tokens":4096)"));
  EXPECT_EQ(clamped.finish, "length");
  EXPECT_EQ(at(clamped.usage, "total_tokens").as_int(), 60);
  EXPECT_EQ(whole_chat(server, chat_body("x", off + R"("max_tokens":1000000000000)")).finish, "length");
  const StreamedChat both =
      whole_chat(server, chat_body("x", off + R"("max_tokens":9,"max_completion_tokens":2)"));
  EXPECT_EQ(at(both.usage, "completion_tokens").as_int(), 2);
  EXPECT_EQ(
      whole_chat(
          server,
          chat_body("x", off + R"("max_tokens":1,"logit_bias":{},"store":true,"unknown_field":{"a":1})"))
          .finish,
      "length");
  const Reply over = server.post("/v1/chat/completions", chat_body(std::string(300, 'x') + " y z"));
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(at(over.json(), "error", "code").as_string(), "context_length_exceeded");
  EXPECT_NE(at(over.json(), "error", "message").as_string().find("60"), std::string::npos);
}

TEST(Chat, n_replies_and_logprobs) {
  ScriptedServer server(script_of("t</think>one two"));
  const Json whole =
      server.post("/v1/chat/completions", chat_body("x", R"("n":3,"logprobs":true,"top_logprobs":2)")).json();
  ASSERT_EQ(at(whole, "choices").size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(at(whole, "choices", i, "index").as_int(), static_cast<int64_t>(i));
    std::string joined;
    for (const Json& entry : at(whole, "choices", i, "logprobs", "content").as_array())
      joined += at(entry, "token").as_string();
    EXPECT_EQ(joined, "one two");
  }
  Client c(server.port());
  c.send(Client::request_text("POST", "/v1/chat/completions", chat_body("x", R"("n":2,"stream":true)")));
  Reply head;
  ASSERT_TRUE(c.read_head(head));
  EXPECT_EQ(read_chat_stream(c, 1).content, "one two");
}

// What queued while a client was slow is turned into chunks write by write.
TEST(Chat, a_burst_longer_than_one_write_arrives_whole) {
  ScriptedServer server(script_of("</think> one two three four five", R"("end":false,"step":5000)"));
  const std::string fields = R"("max_tokens":30000,"n":2)";
  const Json whole = server.post("/v1/chat/completions", chat_body("x", fields)).json();
  Client c(server.port());
  c.send(Client::request_text(
      "POST", "/v1/chat/completions",
      chat_body("x", fields + R"(,"stream":true,"logprobs":true,"stream_options":{"include_usage":true})")));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  Reply head;
  ASSERT_TRUE(c.read_head(head));
  std::string content[2], tokens[2];
  Json usage;
  for (const SseEvent& event : c.read_events()) {
    if (!event.data.starts_with("{")) continue;
    const Json data = parse_json(event.data);
    if (const Json* u = data.find("usage"); u && !u->is_null()) usage = *u;
    for (const Json& choice : at(data, "choices").as_array()) {
      const auto i = static_cast<size_t>(at(choice, "index").as_int());
      if (const Json* text = at(choice, "delta").find("content")) content[i] += text->as_string();
      if (!at(choice, "logprobs").is_null())
        for (const Json& entry : at(choice, "logprobs", "content").as_array())
          tokens[i] += at(entry, "token").as_string();
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(content[i], at(whole, "choices", i, "message", "content").as_string());
    EXPECT_EQ(tokens[i], content[i]);
  }
  EXPECT_EQ(write_json(usage), write_json(at(whole, "usage")));
}

// The tokens of a reply, joined, are its content: not the newlines of a tag, not tags, not calls; streamed and whole.
TEST(Chat, log_probabilities_belong_to_the_content) {
  const std::string call =
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";
  const std::vector<std::string> texts = {"why\n</think>\n\none two\n\nthree",
                                          "</think>\n\n\xF0\x9F\x98\x80 na\xC3\xAFve",
                                          "t</think>\n\nI ask \n" + call,
                                          "t</think>\n\n" + call,
                                          "</think>\n\na <tool_call> b\n<function=x",
                                          "</think></think>\n\nx</think>y",
                                          "only reasoning",
                                          "</think>\n\nleading\n\n" + call + "\n\ntrailing\n"};
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"properties":{"city":{"type":"string"}}}}}])";
  for (const std::string& text : texts)
    for (int step : {1, 3, 200})
      for (const std::string& more : {std::string(), tools}) {
        ScriptedServer server(script_of(text, R"("step":)" + std::to_string(step)));
        const std::string body = R"("logprobs":true)" + (more.empty() ? "" : "," + more);
        const Json whole = at(server.post("/v1/chat/completions", chat_body("x", body)).json(), "choices", 0);
        const auto add = [](const Json& choice, std::string& to) {
          if (at(choice, "logprobs").is_null()) return;
          for (const Json& entry : at(choice, "logprobs", "content").as_array())
            for (const Json& byte : at(entry, "bytes").as_array()) to += static_cast<char>(byte.as_int());
        };
        std::string joined, streamed;
        add(whole, joined);
        const Json& content = at(whole, "message", "content");
        std::string said = content.is_null() ? "" : content.as_string();
        // A token that a tag ends within keeps its own bytes: "\n" may be part of it.
        EXPECT_EQ(joined.substr(0, said.size()), said) << text << " " << step << more;
        EXPECT_EQ(joined.substr(std::min(joined.size(), said.size())).find_first_not_of(" \n"),
                  std::string::npos)
            << joined;
        Client c(server.port());
        c.send(
            Client::request_text("POST", "/v1/chat/completions", chat_body("x", body + R"(,"stream":true)")));
        Reply head;
        ASSERT_TRUE(c.read_head(head));
        for (const SseEvent& event : c.read_events())
          if (event.data.starts_with("{")) add(at(parse_json(event.data), "choices", 0), streamed);
        EXPECT_EQ(streamed, joined) << text << " " << step << more;
      }

  // Text completions: every token is text, and each offset is its place.
  ScriptedServer server(script_of("a\n</think>\n\n\xC3\xA9 b"));
  const Json choice = at(
      server.post("/v1/completions", R"({"prompt":"x","logprobs":0,"max_tokens":50})").json(), "choices", 0);
  const Json& tokens = at(choice, "logprobs", "tokens");
  std::string joined;
  int64_t characters = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(at(choice, "logprobs", "text_offset", i).as_int(), characters);
    joined += at(tokens, i).as_string();
    for (unsigned char byte : at(tokens, i).as_string()) characters += (byte & 0xC0) != 0x80;
  }
  EXPECT_EQ(joined, at(choice, "text").as_string());
}

// R15
TEST(Chat, split_characters_are_whole_and_invalid_bytes_are_replaced) {
  // Byte tokens of quern-tiny: whatever spells these bytes one at a time.
  const Tokenizer& t = tiny_tokenizer();
  const auto byte = [&](int value) {
    for (int32_t id = 0; id < t.size(); ++id)
      if (t.token_bytes(id).size() == 1 && static_cast<unsigned char>(t.token_bytes(id)[0]) == value)
        return id;
    throw std::runtime_error("no byte token");
  };
  std::string ids = std::to_string(*t.find_special("</think>"));
  for (int b : {0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xBD, 0xA0, int{'a'}, 0x80, int{'b'}, 0xC0, 0xAF, 0xED, 0xA0,
                0x80, int{'c'}, 0xE4, 0xBD})
    ids += "," + std::to_string(byte(b));
  for (int step : {1, 2, 3, 50}) {
    ScriptedServer server(R"({"replies":[{"match":"","ids":[)" + ids + R"(],"step":)" + std::to_string(step) +
                          "}]}");
    const std::string expected = "\U0001F600\u4F60a\uFFFDb\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDc\uFFFD";
    EXPECT_EQ(whole_chat(server, chat_body("x", kTools)).content, expected);
    EXPECT_EQ(stream_chat(server, chat_body("x", R"("stream":true)")).content, expected);
  }
}

// R36, R43: a burst far over the queue is refused or served, and none is lost.
TEST(Chat, many_clients_at_once_each_get_their_own_reply) {
  std::string replies;
  for (int i = 0; i < 16; ++i)
    replies += R"({"match":"secret-)" + std::to_string(i) + R"(-","text":"</think>number )" +
               std::to_string(i * 7919) + R"( kept","delay_ms":1},)";
  replies.pop_back();
  ScriptedServer server("{\"replies\":[" + replies + "]}", {}, 5, 100);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i)
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 8; ++turn) {
        const bool stream = (i + turn) % 2;
        const std::string body =
            chat_body("secret-" + std::to_string(i) + "-", stream ? R"("stream":true)" : "");
        const StreamedChat chat = stream ? stream_chat(server, body) : whole_chat(server, body);
        EXPECT_EQ(chat.content, "number " + std::to_string(i * 7919) + " kept");
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace quern

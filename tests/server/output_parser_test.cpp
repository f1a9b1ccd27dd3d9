// What the reports R01-R05, R07, R15 and R34 ask of the output parser, and that any split is the whole.
#include "server/output_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace quern {
namespace {

using Kind = OutputEvent::Kind;

// A stream: text, and control tokens. tokens("a<think>b") has the four tags as tokens; text("…") has none.
struct Piece {
  std::string bytes;
  bool control = false;
};
using Stream = std::vector<Piece>;

Stream text(const std::string& s) { return {{s, false}}; }
Stream tokens(const std::string& s) {
  Stream out;
  for (size_t at = 0; at < s.size();) {
    size_t next = s.size();
    std::string tag;
    for (const char* t : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
      const size_t found = s.find(t, at);
      if (found < next) {
        next = found;
        tag = t;
      }
    }
    if (next > at) out.push_back({s.substr(at, next - at), false});
    if (!tag.empty()) out.push_back({tag, true});
    at = next + tag.size();
  }
  return out;
}

struct Call {
  std::string name, arguments;
  bool complete = false;
};
struct Reply {
  std::string reasoning, content;
  std::vector<Call> calls;
  int stop = -1;
  bool enough = false;
  std::vector<OutputEvent> events;  // neighbours of a kind joined
};

void take(Reply& reply, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& e : events) {
    switch (e.kind) {
      case Kind::Reasoning:
        reply.reasoning += e.text;
        break;
      case Kind::Content:
        reply.content += e.text;
        break;
      case Kind::CallBegin:
        EXPECT_EQ(e.index, static_cast<int>(reply.calls.size()));
        reply.calls.push_back({e.name, "", false});
        break;
      case Kind::CallArguments:
        EXPECT_EQ(e.index + 1, static_cast<int>(reply.calls.size()));
        reply.calls.back().arguments += e.text;
        break;
      case Kind::CallEnd:
        EXPECT_EQ(e.index + 1, static_cast<int>(reply.calls.size()));
        reply.calls.back().complete = e.complete;
        if (e.complete) {
          EXPECT_NO_THROW(parse_json(reply.calls.back().arguments)) << reply.calls.back().arguments;
        }
        break;
      case Kind::Stop:
        reply.stop = e.index;
        break;
      case Kind::Enough:
        reply.enough = true;
        break;
    }
    EXPECT_TRUE(is_valid_utf8(e.text));
    auto& all = reply.events;
    if (!e.text.empty() && !all.empty() && all.back().kind == e.kind && all.back().index == e.index)
      all.back().text += e.text;
    else
      all.push_back(e);
  }
}

// `cut` says how many bytes of text the next push takes.
template <class Cut>
Reply parse(const Stream& stream, const OutputParserOptions& options, bool turn_ended, Cut cut) {
  OutputParser parser(options);
  Reply reply;
  for (const Piece& piece : stream) {
    if (piece.control) {
      take(reply, parser.push(piece.bytes, true));
      continue;
    }
    for (size_t at = 0; at < piece.bytes.size();) {
      const size_t n = std::min<size_t>(std::max<size_t>(cut(), 1), piece.bytes.size() - at);
      take(reply, parser.push(std::string_view(piece.bytes).substr(at, n)));
      at += n;
    }
  }
  take(reply, parser.finish(turn_ended));
  EXPECT_TRUE(parser.finish(turn_ended).empty());
  return reply;
}

// The whole at once; and the same by single bytes and by random cuts.
Reply parse(const Stream& stream, const OutputParserOptions& options, bool turn_ended = true) {
  const Reply whole = parse(stream, options, turn_ended, [] { return std::string::npos; });
  const auto expect_same = [&](const Reply& split, const std::string& how) {
    EXPECT_EQ(split.reasoning, whole.reasoning) << how;
    EXPECT_EQ(split.content, whole.content) << how;
    EXPECT_EQ(split.events.size(), whole.events.size()) << how;
    EXPECT_TRUE(split.events == whole.events) << how;
  };
  expect_same(parse(stream, options, turn_ended, [] { return 1; }), "by bytes");
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    expect_same(parse(stream, options, turn_ended, [&] { return random() % (seed < 10 ? 4 : 24) + 1; }),
                "seed " + std::to_string(seed));
  }
  return whole;
}

const std::string kTools = R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}},
  {"type":"function","function":{"name":"replace_text","parameters":{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"}}}}},
  {"type":"function","function":{"name":"typed","parameters":{"type":"object","$defs":{"n":{"type":"integer"}},"properties":{
     "count":{"type":"integer"},"ratio":{"type":"number"},"on":{"type":"boolean"},"tags":{"type":"array"},"note":{"type":"string"},"any":{},
     "maybe":{"type":["string","null"]},"either":{"anyOf":[{"type":"integer"},{"type":"boolean"}]},"level":{"enum":["low","high"]},"ref":{"$ref":"#/$defs/n"},"obj":{"type":"object"}}}}}])";

OutputParserOptions with_tools(bool thinking = false, bool tags_are_tokens = true) {
  return {.thinking = thinking, .tags_are_tokens = tags_are_tokens, .tools = parse_json(kTools), .stop = {}};
}
OutputParserOptions plain(bool thinking = false) {
  return {.thinking = thinking, .tags_are_tokens = true, .tools = {}, .stop = {}};
}

std::string call(const std::string& name,
                 const std::vector<std::pair<std::string, std::string>>& parameters) {
  std::string out = "<tool_call>\n<function=" + name + ">\n";
  for (const auto& [key, value] : parameters) out += "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  return out + "</function>\n</tool_call>";
}

// The same reply by tokens and spelled out, where both must agree.
Reply both(const std::string& s, bool thinking = false, bool turn_ended = true) {
  const Reply by_tokens = parse(tokens(s), with_tools(thinking), turn_ended);
  const Reply spelled = parse(text(s), with_tools(thinking, false), turn_ended);
  EXPECT_TRUE(by_tokens.events == spelled.events) << s;
  return by_tokens;
}

// ---- R01

TEST(OutputParser, exactly_one_newline_at_each_end_of_a_value_belongs_to_the_tags) {
  const Reply r = both(call("replace_text", {{"old", "\n    total = 1\n\n"}, {"new", ""}}));
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].arguments, R"({"old":"\n    total = 1\n\n","new":""})");
  const auto value = [](const std::string& between) {
    return both("<tool_call><function=replace_text><parameter=old>" + between +
                "</parameter></function></tool_call>")
        .calls.at(0)
        .arguments;
  };
  EXPECT_EQ(value("x"), R"({"old":"x"})");
  EXPECT_EQ(value(""), R"({"old":""})");
  EXPECT_EQ(value("\n"), R"({"old":""})");
  EXPECT_EQ(value("\n\n"), R"({"old":""})");
  EXPECT_EQ(value("\r\n\r\n"), R"({"old":""})");
  EXPECT_EQ(value("\r\n\tx \r\n"), R"({"old":"\tx "})");
  EXPECT_EQ(value("\n\n\nx\n\n\n"), R"({"old":"\n\nx\n\n"})");
  EXPECT_EQ(value("  x  "), R"({"old":"  x  "})");
  EXPECT_EQ(value("a\rb\r"), R"({"old":"a\rb\r"})");
}

TEST(OutputParser, a_value_may_hold_what_looks_like_tags) {
  for (const std::string held :
       {"</parameter>", "a</parameter> b", "</parameter>\n</parameter>", "<parameter=x>", "</function>",
        "</function> x", "<function=f>", "</param", "<", "</parameter>\nx"}) {
    const Reply r = both(call("replace_text", {{"old", held}, {"new", "n"}}));
    ASSERT_EQ(r.calls.size(), 1u) << held;
    EXPECT_EQ(parse_json(r.calls[0].arguments).find("old")->as_string(), held);
    EXPECT_EQ(parse_json(r.calls[0].arguments).find("new")->as_string(), "n");
  }
  // Spelled out where tags are tokens, the outer tags are text too.
  Stream stream = tokens("<tool_call>\n<function=replace_text>\n<parameter=old>\n");
  for (const Piece& p : text("</tool_call> <tool_call> </think>")) stream.push_back(p);
  for (const Piece& p : tokens("\n</parameter>\n</function>\n</tool_call>")) stream.push_back(p);
  EXPECT_EQ(parse(stream, with_tools()).calls.at(0).arguments,
            R"({"old":"</tool_call> <tool_call> </think>"})");
}

// ---- R02

TEST(OutputParser, values_have_the_types_of_the_schema) {
  const auto typed = [](const std::string& key, const std::string& value) {
    const Reply r = both(call("typed", {{key, value}}));
    const std::string& arguments = r.calls.at(0).arguments;
    return arguments.substr(key.size() + 4, arguments.size() - key.size() - 5);
  };
  EXPECT_EQ(typed("count", "7"), "7");
  EXPECT_EQ(typed("count", "123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(typed("count", "2031-04-05"), R"("2031-04-05")");
  EXPECT_EQ(typed("count", "-"), R"("-")");
  EXPECT_EQ(typed("count", "007"), R"("007")");
  EXPECT_EQ(typed("ratio", "-0.5"), "-0.5");
  EXPECT_EQ(typed("ratio", "1.10"), "1.10");
  EXPECT_EQ(typed("ratio", "3"), "3");
  EXPECT_EQ(typed("ratio", "NaN"), R"("NaN")");
  EXPECT_EQ(typed("on", "true"), "true");
  EXPECT_EQ(typed("on", "False"), "false");
  EXPECT_EQ(typed("on", "yes"), R"("yes")");
  EXPECT_EQ(typed("tags", R"(["x"])"), R"(["x"])");
  EXPECT_EQ(typed("tags", R"(["x")"), R"("[\"x\"")");
  EXPECT_EQ(typed("tags", R"({"x": 1})"), R"("{\"x\": 1}")");
  EXPECT_EQ(typed("note", "12"), R"("12")");
  EXPECT_EQ(typed("note", R"({"a": [1]})"), R"("{\"a\": [1]}")");
  EXPECT_EQ(typed("note", R"("quoted" \ and 😀)"), R"("\"quoted\" \\ and 😀")");
  EXPECT_EQ(typed("any", "12"), "12");
  EXPECT_EQ(typed("any", "plain"), R"("plain")");
  EXPECT_EQ(typed("unknown", "[1, 2]"), "[1, 2]");
  EXPECT_EQ(typed("maybe", "null"), "null");
  EXPECT_EQ(typed("maybe", "12"), R"("12")");
  EXPECT_EQ(typed("either", "12"), "12");
  EXPECT_EQ(typed("either", "true"), "true");
  EXPECT_EQ(typed("either", "[]"), R"("[]")");
  EXPECT_EQ(typed("level", "low"), R"("low")");
  EXPECT_EQ(typed("ref", "5"), "5");
  EXPECT_EQ(typed("obj", " {\"a\":\n 1} "), "{\"a\":\n 1}");
  EXPECT_EQ(typed("tags", R"(["\ud83d"])"), R"(["\ufffd"])");  // half a pair does not make it a string
}

// R47: values are only ever read as JSON.
TEST(OutputParser, values_that_look_like_code_are_text) {
  for (const char* value :
       {"__import__('os').system('id')", "$(id)", "{{ 7 * 7 }}", "1+1", "[x for x in (1,)]", "eval(1)",
        "None or 1", "0x10", "1_000", "True and False", "{'a': 1}", "NaN", "Infinity", "-Infinity"})
    for (const char* parameter : {"count", "ratio", "on", "tags", "note"}) {
      const Reply r = both(call("typed", {{parameter, value}}), false);
      ASSERT_EQ(r.calls.size(), 1u) << value;
      const Json arguments = parse_json(r.calls[0].arguments);
      ASSERT_TRUE(arguments.find(parameter)->is_string()) << r.calls[0].arguments;
      EXPECT_EQ(arguments.find(parameter)->as_string(), value);
    }
}

TEST(OutputParser, string_arguments_stream_as_they_come) {
  OutputParser parser(with_tools());
  parser.push("<tool_call>", true);
  Reply reply;
  take(reply, parser.push("\n<function=get_weather>\n<parameter=city>\nPar"));
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments, R"({"city":"Par)");
  take(reply, parser.push("is"));
  EXPECT_EQ(reply.calls[0].arguments, R"({"city":"Paris)");
  take(reply, parser.push("\n</para"));
  EXPECT_EQ(reply.calls[0].arguments, R"({"city":"Paris)");
  take(reply, parser.push("meter>\n</fun"));
  take(reply, parser.push("ction>"));
  EXPECT_EQ(reply.calls[0].arguments, R"({"city":"Paris"})");
}

// ---- R03

TEST(OutputParser, calls_that_are_slightly_off_are_recovered) {
  const std::string parameter = "<parameter=city>\nParis\n</parameter>\n";
  const std::string expected = R"({"city":"Paris"})";
  for (const std::string& s : {
           "<function=get_weather>\n" + parameter + "</function>",                // no wrapper
           "<function=get_weather>\n" + parameter + "</function>\n</tool_call>",  // only its end
           "<tool_call>\n<function=get_weather>\n" + parameter + "</function>",   // no last closing tag
           "<tool_call>\n<function=get_weather>\n" + parameter,                   // nor the one before
           "<tool_call>\n<function=get_weather>\n" + parameter + "</tool_call>",  // nor </function>
           std::string(
               "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>"),
           std::string(
               "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>"),
           std::string("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</tool_call>"),
           std::string("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n"),
           std::string("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                       "\"Paris\"}}\n</tool_call>"),
       }) {
    const Reply r = both(s);
    ASSERT_EQ(r.calls.size(), 1u) << s;
    EXPECT_EQ(r.calls[0].name, "get_weather") << s;
    EXPECT_EQ(r.calls[0].arguments, expected) << s;
    EXPECT_TRUE(r.calls[0].complete);
    EXPECT_EQ(r.content, "") << s;
  }
  const Reply before =
      both("Let me look.\n\n" +
           call("get_weather", {{"days", "3"}, {"city", "Paris"}}));  // text first, another order
  EXPECT_EQ(before.content, "Let me look.");
  EXPECT_EQ(before.calls.at(0).arguments, R"({"days":3,"city":"Paris"})");
  EXPECT_EQ(both("<tool_call>\n<function=nope>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>")
                .calls.at(0)
                .name,
            "nope");  // undeclared
  EXPECT_EQ(both("<tool_call>\n<function=get_weather>\n</function>\n</tool_call>").calls.at(0).arguments,
            "{}");
  EXPECT_EQ(both("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>").calls.at(0).arguments,
            "{}");
  EXPECT_EQ(both("<tool_call>\n<function=get_weather>\n" + parameter +
                 "</function>\n<function=get_weather>\n" + parameter + "</function>\n</tool_call>")
                .calls.size(),
            2u);
}

TEST(OutputParser, what_is_no_call_is_content_as_it_was_written) {
  for (const std::string& s : {
           std::string("Write <tool_call> and then a name."),
           std::string("<tool_call>"),
           std::string("<tool_call>\n\nnothing"),
           std::string("Use <function=get_weather> like so."),
           std::string("<function=undeclared>\n<parameter=a>\n1\n</parameter>\n</function>"),
           std::string("<tool_call>\n<function=get_weather>\nfree text\n</function>"),
           std::string("<tool_call>\n{\"name\": 1}\n</tool_call>"),
           std::string("<tool_call>\n{broken\n</tool_call> after"),
           std::string("<function="),
           std::string("<tool_call>\n<function=get_weather"),
           std::string("a < b <<< <tool <function <param </"),
           std::string("<parameter=a>\n1\n</parameter>"),
           std::string("</function>"),
       }) {
    const Reply r = both(s);
    EXPECT_EQ(r.calls.size(), 0u) << s;
    EXPECT_EQ(r.content, s);
  }
  // Without tools the tags are what the client asked for.
  const std::string asked = "Sure:\n" + call("get_weather", {{"city", "Paris"}}) + "\n";
  const Reply r = parse(tokens(asked), plain());
  EXPECT_EQ(r.content, asked);
  EXPECT_EQ(r.calls.size(), 0u);
}

TEST(OutputParser, a_limit_leaves_a_call_open_and_says_so) {
  const std::string whole = call("get_weather", {{"city", "Paris"}, {"days", "3"}});
  for (size_t n = 0; n <= whole.size(); ++n) {
    const Reply r = parse(tokens(whole.substr(0, n)), with_tools(), false);
    if (r.calls.empty()) {
      EXPECT_EQ(r.content, whole.substr(0, n));
      continue;
    }
    EXPECT_EQ(r.content, "");
    EXPECT_EQ(r.calls[0].complete, n >= whole.find("</function>") + 11) << n;
    const std::string full = R"({"city":"Paris","days":3})";
    if (!r.calls[0].complete && r.calls[0].arguments.find("\\n") == std::string::npos &&
        r.calls[0].arguments.find('<') == std::string::npos) {
      EXPECT_EQ(full.compare(0, r.calls[0].arguments.size(), r.calls[0].arguments), 0)
          << r.calls[0].arguments;
    }
  }
}

TEST(OutputParser, text_around_calls_is_kept) {
  const std::string one = call("get_weather", {{"city", "A"}}), two = call("get_weather", {{"city", "B"}});
  Reply r = both(one + "\n" + two + "\n");
  EXPECT_EQ(r.calls.size(), 2u);
  EXPECT_EQ(r.content, "");
  r = both("x\n" + one + "\n\ny " + two + " z");
  EXPECT_EQ(r.calls.size(), 2u);
  EXPECT_EQ(r.content, "x\n\ny  z");
  r = both(one + "\n\nDone.\n");
  EXPECT_EQ(r.content, "Done.\n");
  // At most one call.
  OutputParserOptions single = with_tools();
  single.max_calls = 1;
  r = parse(tokens(one + "\n" + two), single);
  EXPECT_EQ(r.calls.size(), 1u);
  EXPECT_TRUE(r.enough);
}

// ---- R04

TEST(OutputParser, a_call_that_ends_the_reasoning_is_a_call_and_talk_is_talk) {
  const std::string c = call("get_weather", {{"city", "Paris"}});
  Reply r = both("I need the weather.\n" + c, true);  // (1)
  EXPECT_EQ(r.reasoning, "I need the weather.");
  EXPECT_EQ(r.content, "");
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].arguments, R"({"city":"Paris"})");
  r = both("Two.\n" + c + "\n" + c + "\n", true);
  EXPECT_EQ(r.calls.size(), 2u);

  const std::string talk = "I could write <tool_call> and <function=get_weather> here, but no.";
  r = both(talk + "\n</think>\n\nIt is sunny.", true);  // (2)
  EXPECT_EQ(r.reasoning, talk);
  EXPECT_EQ(r.content, "It is sunny.");
  EXPECT_EQ(r.calls.size(), 0u);
  r = both(talk, true);  // (3)
  EXPECT_EQ(r.reasoning, talk);
  EXPECT_EQ(r.content, "");
  EXPECT_EQ(r.calls.size(), 0u);
  r = both("The tag is <tool_call>", true);
  EXPECT_EQ(r.reasoning, "The tag is <tool_call>");

  r = both("Like this: " + c + " and so on.\n</think>\nOK", true);  // a whole call that is talked about
  EXPECT_EQ(r.reasoning, "Like this: " + c + " and so on.");
  EXPECT_EQ(r.content, "OK");
  EXPECT_EQ(r.calls.size(), 0u);
  r = both("Like this: " + c + "\n</think>\n\n" + c, true);
  EXPECT_EQ(r.reasoning, "Like this: " + c);
  EXPECT_EQ(r.calls.size(), 1u);
  r = both("Half: <tool_call>\n<function=get_weather>\n<parameter=city>\nP</think>ok", true);
  EXPECT_EQ(r.reasoning, "Half: <tool_call>\n<function=get_weather>\n<parameter=city>\nP");
  EXPECT_EQ(r.content, "ok");
  r = both("Undeclared: " + call("nope", {}), true);
  EXPECT_EQ(r.calls.size(), 0u);
  r = both("At a limit: " + c, true, false);  // it may have gone on
  EXPECT_EQ(r.calls.size(), 0u);
  EXPECT_EQ(r.reasoning, "At a limit: " + c);
  r = parse(tokens("First <tool_call>\n<function=get_weather>\n<parameter=city>\n then " + c),
            with_tools(true));  // begun twice
  EXPECT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls.at(0).arguments, R"({"city":"Paris"})");
}

// ---- R05

TEST(OutputParser, any_split_is_the_whole) {
  const std::string nested = R"({"a": [1, {"b": "q\"uo\\te"}], "e": "😀 é"})";
  const std::string s =
      "Think 日本 <b>.\n</think>\n\nText 😀 with <angle> & </p>\n\n" +
      call("typed", {{"obj", nested}, {"note", "a\"b\\c\n😀</parameter> x"}, {"count", "-12"}}) + "\n" +
      call("replace_text", {{"old", "\n  x\r\n"}, {"new", R"(["not", "parsed"])"}});
  const Reply r = both(s, true);
  EXPECT_EQ(r.reasoning, "Think 日本 <b>.");
  EXPECT_EQ(r.content, "Text 😀 with <angle> & </p>");
  ASSERT_EQ(r.calls.size(), 2u);
  EXPECT_EQ(r.calls[0].arguments,
            R"({"obj":)" + nested + R"(,"note":"a\"b\\c\n😀</parameter> x","count":-12})");
  EXPECT_EQ(parse_json(r.calls[1].arguments).find("old")->as_string(), "\n  x\r\n");
}

// Random replies from a grammar of everything above, tags cut and misplaced: whole = split (parse() checks it), calls are
// JSON, and every letter is accounted for.
TEST(OutputParser, random_replies_split_alike_and_lose_nothing) {
  const std::vector<std::string> parts = {"<think>",
                                          "</think>",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "<function=get_weather>",
                                          "<function=nope>",
                                          "</function>",
                                          "<parameter=city>",
                                          "<parameter=days>",
                                          "</parameter>",
                                          "\n",
                                          "\n",
                                          "\r\n",
                                          " ",
                                          "word",
                                          "7",
                                          "é😀",
                                          "<",
                                          "</",
                                          "<tool",
                                          "</par",
                                          "\"\\",
                                          "{\"name\":\"get_weather\",\"arguments\":{\"city\":\"x\"}}",
                                          call("get_weather", {{"city", "Rome"}}),
                                          call("typed", {{"count", "5"}, {"note", "n"}}),
                                          "\xf0\x9f",
                                          "\xff"};
  const unsigned first = 20'000;
  for (unsigned seed = first; seed < first + 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string s;
    const int n = static_cast<int>(random() % 14);
    for (int i = 0; i < n; ++i) s += parts[random() % parts.size()];
    OutputParserOptions options = with_tools(random() % 2, random() % 2);
    if (random() % 3 == 0) options.stop = {"rd", "word\n", "</function>"};
    const Reply r = parse(random() % 2 ? tokens(s) : text(s), options, random() % 2);
    if (!options.stop.empty()) continue;
    std::string seen = r.reasoning + r.content;
    for (const Call& c : r.calls) {
      seen += c.name + c.arguments;
      if (c.complete) {
        EXPECT_TRUE(parse_json(c.arguments).is_object());
      }
    }
    const auto letters = [](const std::string& of, const std::string& word) {
      int count = 0;
      for (size_t at = 0; (at = of.find(word, at)) != of.npos; at += word.size()) ++count;
      return count;
    };
    for (const char* word : {"word", "Rome", "é😀"}) {
      if (r.calls.empty() || r.calls.back().complete) {
        EXPECT_GE(letters(seen, word), letters(s, word)) << s << "\n" << seen;
      }
    }
    if (testing::Test::HasFailure()) FAIL() << "the reply was: " << s;
  }
}

// ---- R07

TEST(OutputParser, reasoning_is_where_the_prompt_says) {
  Reply r = both("because\n</think>\n\nanswer", true);
  EXPECT_EQ(r.reasoning, "because");
  EXPECT_EQ(r.content, "answer");
  for (const bool ended : {false, true}) {
    r = both("only reasoning", true, ended);
    EXPECT_EQ(r.reasoning, "only reasoning");
    EXPECT_EQ(r.content, "");
  }
  r = both("</think>\n\nanswer", false);  // thinking off, a closing tag all the same
  EXPECT_EQ(r.reasoning, "");
  EXPECT_EQ(r.content, "answer");
  EXPECT_EQ(both("an</think>swer", false).content, "answer");
  for (const std::string close :
       {"</think>", "\n</think>\n", "\n\n</think>\n\n\n", "\r\n</think>\r\n"}) {  // R03: newlines around it
    r = both("r" + close + "a", true);
    EXPECT_EQ(r.reasoning, "r");
    EXPECT_EQ(r.content, "a");
  }
  r = both("\n</think>\n\n    indented\n", true);
  EXPECT_EQ(r.reasoning, "");
  EXPECT_EQ(r.content, "    indented\n");
  r = both("<think>\nself opened\n</think>\n\na", false);
  EXPECT_EQ(r.reasoning, "self opened");
  EXPECT_EQ(r.content, "a");
  EXPECT_EQ(both("<think>\nagain\n</think>\nb", true).reasoning, "again");
  // Spelled out where the tag is a token, it is talk.
  r = parse(text("the </think> tag"), with_tools(true));
  EXPECT_EQ(r.reasoning, "the </think> tag");
  EXPECT_EQ(parse(text("the <think> tag </think>"), plain()).content, "the <think> tag </think>");
  // Text completions have no reasoning.
  OutputParserOptions raw = plain();
  raw.split_reasoning = false;
  EXPECT_EQ(parse(tokens("\n<think>x</think>\n\n"), raw).content, "\n<think>x</think>\n\n");
}

// ---- R15

TEST(OutputParser, characters_over_pieces_are_whole_and_bad_bytes_are_replaced) {
  OutputParser parser(plain());
  EXPECT_TRUE(parser.push("\xf0").empty());
  EXPECT_TRUE(parser.push("\x9f\x98").empty());
  ASSERT_EQ(parser.push("\x80").at(0).text, "😀");
  ASSERT_EQ(parser.push("a\xe6").at(0).text, "a");
  ASSERT_EQ(parser.push("\x97\xa5").at(0).text, "日");
  for (const bool tools : {false, true}) {
    const OutputParserOptions options = tools ? with_tools() : plain();
    EXPECT_EQ(parse(text("a\x80z"), options).content, "a\uFFFDz");                      // a lone continuation
    EXPECT_EQ(parse(text("a\xc0\xafz"), options).content, "a\uFFFD\uFFFDz");            // overlong
    EXPECT_EQ(parse(text("a\xed\xa0\x80z"), options).content, "a\uFFFD\uFFFD\uFFFDz");  // a surrogate
    EXPECT_EQ(parse(text("a\xf0\x9f\x98"), options).content, "a\uFFFD");                // cut short
    EXPECT_EQ(parse(Stream{{"a\xf0\x9f", false}, {"</think>", true}, {"b", false}}, options).content,
              "a\uFFFDb");
  }
  const Reply r =
      parse(text("<function=replace_text>\n<parameter=old>\n\xff😀\xf0\x9f\n</parameter>\n</function>"),
            with_tools());
  EXPECT_EQ(r.calls.at(0).arguments, "{\"old\":\"\uFFFD😀\uFFFD\"}");
}

TEST(OutputParser, ordinary_text_is_not_delayed) {
  for (const bool tools : {false, true}) {
    OutputParser parser(tools ? with_tools() : plain());
    for (const char* word : {"The", " answer", " is", " 4", ",", " <", "b", "> é"}) {
      const auto events = parser.push(word);
      if (std::string(word) == " <" && tools) continue;  // may open a tag
      if (std::string(word) != "b") {
        ASSERT_EQ(events.size(), 1u) << word;
      }
    }
  }
}

// ---- R34

TEST(OutputParser, stop_strings_end_the_answer_before_the_earliest) {
  const auto stopped = [](const std::string& s, std::vector<std::string> stop, bool thinking = false) {
    OutputParserOptions options = plain(thinking);
    options.stop = std::move(stop);
    return parse(tokens(s), options);
  };
  Reply r = stopped("red green blue", {"en bl"});
  EXPECT_EQ(r.content, "red gre");
  EXPECT_EQ(r.stop, 0);
  r = stopped("red green blue", {"red"});
  EXPECT_EQ(r.content, "");
  EXPECT_EQ(r.stop, 0);
  r = stopped("red green blue", {"xyz", "en blx", "en b", "en"});
  EXPECT_EQ(r.content, "red gre");
  EXPECT_EQ(r.stop, 3);
  r = stopped("red green blue", {"blue!", "green blue?"});
  EXPECT_EQ(r.content, "red green blue");
  EXPECT_EQ(r.stop, -1);
  r = stopped("aab", {"ab", "b"});
  EXPECT_EQ(r.content, "a");
  EXPECT_EQ(r.stop, 0);
  EXPECT_EQ(stopped("aaab", {"aab"}).content, "a");
  EXPECT_EQ(stopped("x 日本", {"本"}).content, "x 日");
  r = stopped("stop here\n</think>\n\nnot stop here", {"stop"}, true);  // not in reasoning
  EXPECT_EQ(r.reasoning, "stop here");
  EXPECT_EQ(r.content, "not ");
  OutputParserOptions options = with_tools();
  options.stop = {"Paris", "\n\n"};
  r = parse(tokens("a\n" + call("get_weather", {{"city", "Paris"}}) + "b\n\nc"), options);  // not in calls
  EXPECT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.content, "ab");
  EXPECT_EQ(r.stop, 1);

  OutputParser parser(
      {.tags_are_tokens = true, .tools = {}, .stop = {"en bl"}});  // held back: only what may become one
  EXPECT_EQ(parser.push("red gre").at(0).text, "red gr");
  EXPECT_EQ(parser.push("e").at(0).text, "e");
  EXPECT_TRUE(parser.push("n b").empty());
  EXPECT_EQ(parser.push("x").at(0).text, "en bx");
  EXPECT_TRUE(parser.push("en b").empty());
  EXPECT_EQ(parser.push("lue").at(0).kind, Kind::Stop);
  EXPECT_TRUE(parser.done());
  EXPECT_TRUE(parser.push("more").empty());
}

TEST(OutputParser, long_values_take_linear_time) {
  OutputParser parser(with_tools());
  parser.push("<tool_call>", true);
  parser.push("\n<function=typed>\n<parameter=tags>\n");
  for (int i = 0; i < 200'000; ++i) parser.push("<\n</parameter");
  parser.push("\n</parameter>\n</function>\n");
  EXPECT_EQ(parser.calls(), 1);
}

}  // namespace
}  // namespace quern

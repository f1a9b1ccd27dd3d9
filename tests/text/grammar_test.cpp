// The matcher: masks against their definition, roll-back against recomputation, regular expressions, EBNF,
// tool calls.
#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/check.h"
#include "patience.h"
#include "text/grammar_test_tools.h"
#include "text/schema_check.h"

namespace quern {
namespace {

using test::allowed;
using test::takes;
using test::tiny;
using testing::HasSubstr;

GrammarPtr regex(std::string_view pattern) { return compile_regex(tiny().grammar, pattern); }
GrammarPtr ebnf(std::string_view text) { return compile_ebnf(tiny().grammar, text); }
GrammarPtr schema(std::string_view json) { return compile_json_schema(tiny().grammar, parse_json(json)); }

template <typename Fn>
std::string message(Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Json weather_tools() {
  return parse_json(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
       "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
       "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}},
    {"name": "replace_text", "parameters": {"type": "object", "properties": {
       "old": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}}, "required": ["old", "lines"]}}
  ])");
}

// Every grammar the mask tests go through.
std::vector<std::pair<const char*, GrammarPtr>> grammars() {
  return {
      {"any JSON", compile_any_json(tiny().grammar)},
      {"any object", compile_any_json(tiny().grammar, true, {2})},
      {"schema",
       schema(R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":9},
          "age":{"type":"integer","minimum":-3,"maximum":120},"tags":{"type":"array","items":{"enum":["a","ab","b\"c"]},
          "maxItems":3},"note":{"type":"string"},"score":{"type":"number","exclusiveMinimum":0,"maximum":2.5}},
          "required":["name","tags"],"additionalProperties":{"type":"boolean"}})")},
      {"pattern", schema(R"({"type":"string","pattern":"^[a-c]{2,5}(x|\"|é|\n)*z?$"})")},
      {"search", schema(R"({"type":"string","pattern":"th.s"})")},
      {"tree",
       schema(R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"k":{"type":"array",
          "items":{"$ref":"#/$defs/n"}}},"required":["v"]}},"$ref":"#/$defs/n"})")},
      {"regex", regex(R"((the|then|there)? ?[a-z]+(, [A-Z][^,]*){0,3}\.)")},
      {"dots", regex(".{3,40}end")},
      {"brackets", ebnf("root ::= \"(\" root \")\" root | \"\"")},
      {"sum", ebnf("root ::= term ([-+] term)*\nterm ::= num | \"(\" root \")\"\nnum ::= [0-9]+ (\".\" "
                   "[0-9]{1,3})?")},
      {"tools", compile_tool_calls(tiny().grammar, weather_tools(), {})},
      {"auto", compile_tool_calls(tiny().grammar, weather_tools(), {ToolChoice::Auto, "", true})},
  };
}

TEST(Grammar, masks_equal_brute_force_over_the_vocabulary) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  int masks = 0;
  for (const auto& [name, grammar] : grammars())
    for (int walk = 0; walk < 2; ++walk) {
      GrammarMatcher m(grammar);
      for (int step = 0; step < 20; ++step, ++masks) {
        const auto ids = allowed(m);
        std::vector<int32_t> expected;
        for (int32_t id = 0; id < tiny().tokenizer.size(); ++id)
          if (m.accept(id)) {
            expected.push_back(id);
            m.rollback(1);
          }
        ASSERT_EQ(ids, expected) << name << ", seed " << seed << ", step " << step;
        ASSERT_FALSE(ids.empty()) << name << ", seed " << seed << ", step " << step;
        ASSERT_TRUE(m.accept(ids[rng() % ids.size()]));
        if (m.has_ended()) break;
      }
    }
  std::printf("seed %llu: %d masks\n", static_cast<unsigned long long>(seed), masks);
}

TEST(Grammar, every_prefix_can_be_finished) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  for (const auto& [name, grammar] : grammars()) {
    int done = 0;
    for (int walk = 0; walk < 60; ++walk)
      done += test::random_walk(GrammarMatcher(grammar), rng, 150).has_value();
    // random_walk throws where nothing may follow. Chance does not spell a tool call's closing tag.
    if (std::string_view(name) != "tools") {
      EXPECT_GT(done, 0) << name << ", seed " << seed;
    }
  }
}

TEST(Grammar, rolling_back_equals_recomputing) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  for (const auto& [name, grammar] : grammars())
    for (int walk = 0; walk < 4; ++walk) {
      GrammarMatcher m(grammar);
      std::vector<int32_t> ids;
      for (int step = 0; step < 60 && !m.has_ended(); ++step) {
        const auto choices = allowed(m);
        ids.push_back(choices[rng() % choices.size()]);
        const GrammarMatcher before = m;
        ASSERT_TRUE(m.accept(ids.back()));
        ASSERT_EQ(allowed(before), choices) << "a copy is not independent";
        if (rng() % 3 == 0) {
          const int n = static_cast<int>(rng() % std::min<size_t>(9, ids.size() + 1));
          m.rollback(n);
          ids.resize(ids.size() - n);
          GrammarMatcher fresh(grammar);
          for (const int32_t id : ids) ASSERT_TRUE(fresh.accept(id));
          ASSERT_EQ(allowed(m), allowed(fresh)) << name << ", seed " << seed;
          ASSERT_EQ(m.is_finished(), fresh.is_finished());
        }
      }
    }
}

TEST(Grammar, nothing_but_the_end_follows_the_end) {
  GrammarMatcher m(regex("ab?"));
  EXPECT_FALSE(m.accept(tiny().end));
  const auto a = tiny().tokenizer.encode("a", ControlTokens::AsText)[0];
  ASSERT_TRUE(m.accept(a));
  EXPECT_TRUE(m.may_end() && !m.is_finished());
  EXPECT_FALSE(m.accept(a));
  ASSERT_TRUE(m.accept(tiny().end));
  EXPECT_TRUE(m.is_finished() && m.has_ended());
  EXPECT_EQ(allowed(m), std::vector<int32_t>{tiny().end});
  EXPECT_FALSE(m.accept(a));
  EXPECT_TRUE(m.accept(tiny().end));
  m.rollback(2);
  EXPECT_TRUE(m.may_end() && !m.has_ended());
  EXPECT_FALSE(m.accept(-1));
  EXPECT_FALSE(m.accept(1 << 30));
}

TEST(Grammar, a_mask_longer_than_the_vocabulary_is_cleared_to_its_end) {
  std::vector<uint32_t> bits(tiny().grammar->words() + 50, 0xFFFFFFFF);
  GrammarMatcher(regex("x")).fill_mask(bits);
  EXPECT_EQ(std::count(bits.begin() + static_cast<int64_t>(tiny().grammar->words()), bits.end(), 0u), 50);
}

TEST(Grammar, threads_share_one_grammar) {
  const auto grammar = compile_any_json(tiny().grammar);
  std::vector<std::thread> threads;
  std::atomic<int> done = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(t);
      for (int i = 0; i < 20; ++i) done += test::random_walk(GrammarMatcher(grammar), rng, 100).has_value();
    });
  for (auto& t : threads) t.join();
  EXPECT_GT(done, 0);
}

// Regular expressions against PCRE2: random strings near the expression's alphabet.
TEST(GrammarRegex, accepts_what_pcre2_matches) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  const char* patterns[] = {
      "a*b+c?",        "(ab|a)(c|bcd)",  "[a-c]{2,4}",   "[^ab]c*",     "(a|b)*abb",  "a{0}b",
      "(a{1,2}){2}",   "\\d+(\\.\\d*)?", "[\\w.-]+",     "\\S+ \\S+",   "(?:a|é)+?b", "x|",
      "(?<n>a)b",      "[]a]*b",         "\\u0061\\x62", "[\\d\\-a-]+", "(((a)))*",   "(a*)*b",
      "(a|)(b|)(c|)",  ".{2}",           "[a-]",         "\\.\\*\\+",   "\\n|\\t",    "a(b(c(d|)|)|)",
      "\\p{L}+\\p{N}?"};
  for (const char* pattern : patterns) {
    if (std::string_view(pattern).starts_with("[]")) continue;  // ECMA's empty class is PCRE's literal ']'
    const auto grammar = regex(pattern);
    std::string whole = std::string("^(?:") + pattern + ")$";
    for (size_t at; (at = whole.find("\\u0061")) != std::string::npos;) whole.replace(at, 6, "a");
    int matched = 0;
    for (int round = 0; round < 600; ++round) {
      std::string text;
      const char* letters[] = {"a", "b", "c", "d", "é", "1", "2", ".", "-", " ", "x", "\n"};
      for (int n = static_cast<int>(rng() % 6); n > 0; --n) text += letters[rng() % (round % 2 ? 3 : 12)];
      const bool expected = test::pattern_matches(whole, text);
      ASSERT_EQ(takes(grammar, text), expected) << pattern << " on \"" << text << "\", seed " << seed;
      matched += expected;
    }
    for (int walk = 0; walk < 20; ++walk)
      if (const auto ids = test::random_walk(GrammarMatcher(grammar), rng, 60)) {
        const std::string text = tiny().tokenizer.decode(*ids);
        ASSERT_TRUE(test::pattern_matches(whole, text)) << pattern << " made \"" << text << '"';
        ++matched;
      }
    EXPECT_GT(matched, 0) << pattern;
  }
}

TEST(GrammarRegex, what_is_not_regular_or_not_well_formed_is_refused) {
  const std::pair<std::string, const char*> bad[] = {{"^*x$", "quantifier with nothing before it"},
                                                     {"*a", "quantifier with nothing"},
                                                     {"a**", "quantifier after"},
                                                     {std::string(50000, '('), "nested deeper"},
                                                     {"(a", "without ')'"},
                                                     {"a)", "without '('"},
                                                     {"[a", "without ']'"},
                                                     {"a{2,1}", "is empty"},
                                                     {"a{99999999999}", "beyond"},
                                                     {"(?=a)", "look-around"},
                                                     {"(?<!a)b", "look-around"},
                                                     {"(a)\\1", "back-references"},
                                                     {"a\\b", "\\b is not supported"},
                                                     {"(?i)a", "flags"},
                                                     {"[z-a]", "backwards"},
                                                     {"a\\", "at the end"},
                                                     {"\\q", "\\q is not supported"},
                                                     {"a^b", "'^' inside"},
                                                     {"a$b", "'$' inside"},
                                                     {"(a{1000}){1000}{5}", "quantifier after"},
                                                     {"((a{1000}){1000}){1000}", "states"},
                                                     {"\\ud800", "surrogate"},
                                                     {"\xff", "UTF-8"},
                                                     {"[]", "no text can match"},
                                                     {"(.{1000}|b{1000}){5000}", "states"}};
  for (const auto& [pattern, what] : bad) {
    const auto start = std::chrono::steady_clock::now();
    const std::string m = message([&] { regex(pattern); });
    EXPECT_THAT(m, HasSubstr(what)) << pattern.substr(0, 40);
    EXPECT_LT(m.size(), 200u);
    EXPECT_LT(std::chrono::steady_clock::now() - start, test::patience(5)) << pattern.substr(0, 40);
  }
}

TEST(GrammarEbnf, rules_strings_classes_and_counts) {
  const auto g = ebnf(R"(
    # a list of names
    root  ::= name (", " name)* "!"?
    name  ::= [A-Z] [a-z]{1,5} | "\u00c9mile"
            | 'x'
  )");
  for (const char* yes : {"Anna", "Bo, Émile!", "x, x, Carla"}) EXPECT_TRUE(takes(g, yes)) << yes;
  for (const char* no : {"", "anna", "A", "Annabella", "x,x", "x!!", "Bo, "})
    EXPECT_FALSE(takes(g, no)) << no;
  const auto nested = ebnf("root ::= \"(\" root \")\" root | \"\"");
  EXPECT_TRUE(takes(nested, "(()())()"));
  EXPECT_FALSE(takes(nested, "(()"));
  EXPECT_TRUE(takes(ebnf("root = [^\\n\\]]+ ."), "ab]"));
}

TEST(GrammarEbnf, errors_name_the_line_or_the_rule) {
  const std::pair<std::string, const char*> bad[] = {
      {"", "no rule 'root'"},
      {"root ::= a", "rule 'a' is not defined"},
      {"root ::= \"a", "closing quote at line 1"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice at line 2"},
      {"root ::= root \"a\" | \"b\"", "'root' is left-recursive"},
      {"root ::= a\na ::= b? root \"x\" | \"y\"\nb ::= \"z\"", "is left-recursive"},
      {"root ::= \"a\" root", "no text can match"},
      {"root ::= (\"a\"", "without ')'"},
      {"root ::= [b-a]", "backwards"},
      {"root ::= \"a\"{3,2}", "is empty"},
      {"root ::= " + std::string(5000, '('), "nested deeper"},
      {"root ::= *", "unexpected"},
  };
  for (const auto& [text, what] : bad)
    EXPECT_THAT(message([&] { ebnf(text); }), HasSubstr(what)) << text.substr(0, 60);
}

TEST(GrammarTools, calls_have_the_templates_shape) {
  const auto g = compile_tool_calls(tiny().grammar, weather_tools(), {}, {2});
  const std::string oslo = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n";
  const std::string end = "</function>\n</tool_call>";
  EXPECT_TRUE(takes(g, oslo + end));
  EXPECT_TRUE(takes(
      g,
      "\n\n" + oslo + "<parameter=days>\n14\n</parameter>\n<parameter=unit>\ncelsius\n</parameter>\n" + end));
  EXPECT_TRUE(takes(g, oslo + end + "\n" + oslo + end));
  EXPECT_FALSE(takes(g, oslo + "<parameter=days>\n15\n</parameter>\n" + end));
  EXPECT_FALSE(takes(g, oslo + "<parameter=unit>\nkelvin\n</parameter>\n" + end));
  EXPECT_FALSE(takes(g, oslo + "<parameter=town>\nx\n</parameter>\n" + end));
  EXPECT_FALSE(takes(g, "<tool_call>\n<function=get_weather>\n" + end));  // city is required
  EXPECT_FALSE(takes(g, "<tool_call>\n<function=other>\n" + end));
  EXPECT_FALSE(takes(g, "Let me see. " + oslo + end));
  // Strings are as they are: line feeds, indents and things that look like tags.
  EXPECT_TRUE(takes(
      g,
      "<tool_call>\n<function=replace_text>\n<parameter=old>\n\n    total = 1\n\n</param\n</parameter>x\n"
      "</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n" +
          end));
  // The tags are the control tokens themselves.
  GrammarMatcher m(g);
  EXPECT_FALSE(m.accept(tiny().tokenizer.encode("<", ControlTokens::AsText)[0]));
  EXPECT_TRUE(m.accept(*tiny().tokenizer.find_special("<tool_call>")));
}

TEST(GrammarTools, named_single_and_auto) {
  const std::string end = "</function>\n</tool_call>";
  const std::string call =
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n" + end;
  const auto named =
      compile_tool_calls(tiny().grammar, weather_tools(), {ToolChoice::Named, "replace_text", true});
  EXPECT_FALSE(takes(named, call));
  const auto single = compile_tool_calls(tiny().grammar, weather_tools(), {ToolChoice::Required, "", false});
  EXPECT_TRUE(takes(single, call));
  EXPECT_FALSE(takes(single, call + "\n" + call));
  const auto any = compile_tool_calls(tiny().grammar, weather_tools(), {ToolChoice::Auto, "", true});
  EXPECT_TRUE(takes(any, "It rains."));
  EXPECT_TRUE(takes(any, ""));
  EXPECT_TRUE(takes(any, "Let me see.\n" + call + "\n" + call));
  EXPECT_FALSE(takes(any, "Let me see.\n<tool_call>\n<function=nothing>\n" + end));
  EXPECT_THAT(message([&] {
                compile_tool_calls(tiny().grammar, weather_tools(), {ToolChoice::Named, "x", true});
              }),
              HasSubstr("no function 'x'"));
  EXPECT_THAT(message([&] { compile_tool_calls(tiny().grammar, Json(Json::Array{}), {}); }),
              HasSubstr("at least one"));
}

TEST(GrammarTools, a_schema_that_cannot_be_compiled_fails_required_and_not_auto) {
  const Json tools =
      parse_json(R"([{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string",
    "pattern":"^*x$"}}}}])");
  EXPECT_THAT(
      message([&] { compile_tool_calls(tiny().grammar, tools, {}); }),
      testing::AllOf(HasSubstr("tools/0/parameters/properties/a/pattern"), HasSubstr("nothing before it")));
  const auto any = compile_tool_calls(tiny().grammar, tools, {ToolChoice::Auto, "", true});
  EXPECT_TRUE(
      takes(any, "<tool_call>\n<function=f>\n<parameter=a>\nq\n</parameter>\n</function>\n</tool_call>"));
}

}  // namespace
}  // namespace quern

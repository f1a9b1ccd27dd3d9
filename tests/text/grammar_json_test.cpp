// JSON schemas as grammars: what a grammar generates fits the schema by an independent check; what fits, in the
// spelling that grammar_json.h promises, is taken; what does not is not; what is not supported is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/check.h"
#include "text/grammar.h"
#include "text/grammar_test_tools.h"
#include "text/schema_check.h"

namespace quern {
namespace {

using test::takes;
using test::tiny;
using testing::HasSubstr;

GrammarPtr schema(std::string_view json) { return compile_json_schema(tiny().grammar, parse_json(json)); }

std::string refusal(const Json& schema) {
  try {
    compile_json_schema(tiny().grammar, schema);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}
std::string refusal(std::string_view json) { return refusal(parse_json(json)); }

const char* const kSchemas[] = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":3,"maxLength":5})",
    R"({"type":"string","minLength":2})",
    R"({"type":"string","pattern":"^[a-z]{2,4}-\\d+$"})",
    R"({"type":"string","pattern":"b.d"})",
    R"({"type":"string","pattern":"^(\"|\\\\|\\n|é){1,3}$"})",
    R"({"type":"string","pattern":"^x|y$"})",
    R"({"type":"integer"})",
    R"({"type":"integer","minimum":-17,"maximum":243})",
    R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":12})",
    R"({"type":"integer","minimum":1000000})",
    R"({"type":"integer","maximum":-5})",
    R"({"type":"number"})",
    R"({"type":"number","minimum":0,"maximum":1})",
    R"({"type":"number","exclusiveMinimum":0,"maximum":0.25})",
    R"({"type":"number","minimum":-2.75,"exclusiveMaximum":13.125})",
    R"({"type":"number","maximum":-0.5})",
    R"({"type":["string","null","integer"],"maxLength":2,"minimum":7})",
    R"({"type":"boolean"})",
    R"({"enum":["red",2,null,true,1.5,{"a":[1,"x"]},[]]})",
    R"({"const":"a \"quoted\" é\n"})",
    R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":4})",
    R"({"type":"array","items":{"type":"boolean"},"minItems":1})",
    R"({"type":"array","maxItems":0})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string","maxLength":3},{"type":"null"}],"minItems":1})",
    R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"boolean"},"maxItems":3})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"integer"}],"items":false,"minItems":2})",
    R"({"type":"array","items":{"type":"array","items":{"enum":[1,2]},"maxItems":2},"maxItems":5})",
    R"({"type":"object"})",
    R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"]})",
    R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"additionalProperties":false})",
    R"({"type":"object","additionalProperties":{"type":"integer"}})",
    R"({"type":"object","properties":{"ab":{"type":"null"},"abc":{"type":"null"},"é\"":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
    R"({"type":"object","properties":{"a":true},"additionalProperties":true,"required":["a","zz"]})",
    R"({"type":"object","properties":{"n":{"type":"object","properties":{"m":{"type":"array","items":{"type":"object","properties":{"k":{"enum":["v"]}},"required":["k"]},"maxItems":2}},"required":["m"]}},"required":["n"]})",
    R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"null"}}]})",
    R"({"type":"object","anyOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},{"properties":{"b":{"type":"null"}},"required":["b"]}]})",
    R"({"oneOf":[{"type":"integer"},{"type":"string"},{"const":true}]})",
    R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"dog"},"n":{"type":"integer"}},"required":["kind"]},
        {"type":"object","properties":{"kind":{"enum":["cat","cow"]}},"required":["kind"]}]})",
    R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},
        {"properties":{"b":{"type":"boolean"},"a":{"maximum":9}},"required":["b"]}]})",
    R"({"allOf":[{"type":["integer","string"]},{"type":["number","null"]},{"minimum":5},{"maximum":50}]})",
    R"({"allOf":[{"enum":[1,2,3]},{"enum":[2,3,4]}],"type":"integer"})",
    R"({"$defs":{"p":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},"type":"array","items":{"$ref":"#/$defs/p"},"maxItems":3})",
    R"({"$defs":{"t":{"anyOf":[{"type":"null"},{"type":"object","properties":{"l":{"$ref":"#/$defs/t"},"r":{"$ref":"#/$defs/t"}},"required":["l","r"]}]}},"$ref":"#/$defs/t"})",
    R"({"$defs":{"n":{"type":"object","properties":{"next":{"allOf":[{"$ref":"#/$defs/n"}]},"v":{"type":"null"}},"required":["v"]}},"$ref":"#/$defs/n","description":"a list"})",
    R"({"type":"object","properties":{"self":{"$ref":"#"},"v":{"enum":[1]}},"required":["v"]})",
    R"({"definitions":{"a/b":{"type":"integer"}},"type":"array","items":{"$ref":"#/definitions/a~1b"},"minItems":1})",
    R"({"title":"T","description":"d","type":"object","properties":{"x":{"title":"X","default":3,"type":"integer","examples":[1]}},"required":["x"],"$schema":"http://json-schema.org/draft-07/schema#"})",
    R"({"properties":{"a":{"minimum":1,"maximum":3}},"required":["a"]})",
    R"({})",
    R"(true)",
};

// The tests' checker follows #/definitions/a~1b no better than literally.
Json checkable(const std::string& text) {
  std::string t = text;
  for (size_t at; (at = t.find("a~1b")) != std::string::npos;) t.replace(at, 4, "ab");
  for (size_t at; (at = t.find("a/b")) != std::string::npos;) t.replace(at, 3, "ab");
  return parse_json(t);
}

TEST(GrammarJson, what_a_schemas_grammar_generates_fits_the_schema) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  int total = 0;
  for (const char* text : kSchemas) {
    const Json check = checkable(text);
    const auto grammar = schema(text);
    int done = 0;
    for (int walk = 0; walk < 200 && done < 12; ++walk) {
      const auto ids = test::random_walk(GrammarMatcher(grammar), rng, 60 + walk);
      if (!ids) continue;
      const std::string document = tiny().tokenizer.decode(*ids);
      Json value;
      ASSERT_NO_THROW(value = parse_json(document)) << text << " made " << document << ", seed " << seed;
      ASSERT_TRUE(test::fits(check, check, value)) << text << " made " << document << ", seed " << seed;
      ++done;
    }
    EXPECT_GT(done, 0) << text << ", seed " << seed;
    total += done;
  }
  std::printf("seed %llu: %d documents\n", static_cast<unsigned long long>(seed), total);
}

struct Case {
  const char* schema;
  std::vector<const char*> yes, no;
};

TEST(GrammarJson, documents_that_fit_are_taken_and_others_not) {
  const Case cases[] = {
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("é🙂ü")", R"("\n\"")", R"("\ud83d\ude00x")", R"("A\u00e9")"},
       {R"("a")", R"("abcd")", R"("a\ud83d")", R"("ab)", "\"a\nb\"", R"("\ude00x")", R"("a\x")"}},
      {R"({"type":"integer","minimum":-17,"maximum":243})",
       {"-17", "-1", "0", "7", "99", "100", "243"},
       {"-18", "-170", "244", "1000", "00", "01", "1.0", "1e1", "+1"}},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":2.5})",
       {"0.1", "0.000001", "1", "1.99", "2.5", "2.50", "2", "2.49999"},
       {"0", "0.0", "-1", "2.51", "3", "2.500001", "-0.1"}},
      {R"({"type":"number"})",
       {"0", "-0.5", "1e5", "2.5E-3", "12345678901234567"},
       {".5", "1.", "01", "1e", "--1", "NaN"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},"required":["a"]})",
       {R"({"a": 1})", R"({"a":1,"b":true})", "{\n  \"a\": 1,\n  \"b\": false\n}", "{\n\t\"a\": 1\n}",
        R"({ "a": 1, "b": true })"},
       {R"({})", R"({"b":true})", R"({"b":true,"a":1})", R"({"a":1,})", R"({"a":1,"c":2})",
        R"({"a":1,"a":2})", R"({"a":   1})", "{\n\n\"a\":1}", R"({"a":1}})", R"( {"a":1})", R"({"a":1} )"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {R"({})", R"({"ab":null})", R"({"a":1})", R"({"abc":1,"b":2})", R"({"ab":null,"x":3})"},
       {R"({"ab":1})", R"({"a":null})", R"({"x":3,"ab":null})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1,2]", "[1, 2, 3]", "[\n  1,\n  2\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[,1]", "[1 2]"}},
      {R"({"enum":["a",1,null,{"k":[true]}]})",
       {R"("a")", "1", "null", R"({"k":[true]})", R"({"k": [true]})"},
       {R"("b")", "2", "{}"}},
      {R"({"type":"string","pattern":"^a\"b$"})", {R"("a\"b")"}, {R"("a"b")", R"("ab")"}},
      {R"({"type":"string","pattern":"ab"})", {R"("ab")", R"("xxabyy")", R"("ab\n")"}, {R"("a b")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-28")", R"("1999-12-31")"},
       {R"("2024-13-01")", R"("2024-02-30")", R"("24-01-01")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2026-11-29T17:01:40Z")", R"("2026-11-29T17:01:40.25+01:00")"},
       {R"("2026-11-29")", R"("2026-11-29T25:00:00Z")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("192.168.0.255")"}, {R"("192.168.0.256")", R"("1.2.3")"}},
      {R"({"type":"string","format":"email"})",
       {R"("jo.doe+x@mail.example.org")"},
       {R"("jo@")", R"("@x.org")"}},
      // As zod writes them: a format with its pattern, a record.
      {R"({"type":"string","format":"uuid","pattern":"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"})",
       {R"("123e4567-e89b-42d3-a456-426614174000")"},
       {R"("123e4567-e89b-12d3-a456-426614174000")"}},
      {R"({"type":"string","format":"starts_with","pattern":"^ab.*"})", {R"("abc")"}, {R"("ba")"}},
      {R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}})",
       {R"({})", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"type":"object","propertyNames":{"type":"string","enum":["a","b"]},"additionalProperties":{"type":"integer"},"required":["b"]})",
       {R"({"a":1,"b":2})", R"({"b":2})"},
       {R"({"a":1})", R"({"b":1,"c":2})", R"({"b":true})"}},
  };
  for (const Case& c : cases) {
    const auto grammar = schema(c.schema);
    for (const char* text : c.yes) EXPECT_TRUE(takes(grammar, text)) << c.schema << " on " << text;
    for (const char* text : c.no) EXPECT_FALSE(takes(grammar, text)) << c.schema << " on " << text;
  }
}

TEST(GrammarJson, bounded_numbers_are_taken_exactly_within_their_bounds) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  auto number = [&](bool integer) {
    const int64_t scale[] = {1, 10, 100, 1000};
    const int64_t n = static_cast<int64_t>(rng() % 4001) - 2000;
    if (integer) return Json(n / scale[rng() % 4]);
    return Json(static_cast<double>(n) / static_cast<double>(scale[rng() % 4]));
  };
  for (int round = 0; round < 400; ++round) {
    const bool integer = rng() % 2;
    Json s;
    s.set("type", integer ? "integer" : "number");
    Json low = number(integer), high = number(integer);
    if (low.as_double() > high.as_double()) std::swap(low, high);
    if (rng() % 4) s.set(rng() % 2 ? "minimum" : "exclusiveMinimum", low);
    if (rng() % 4) s.set(rng() % 2 ? "maximum" : "exclusiveMaximum", high);
    GrammarPtr grammar;
    try {
      grammar = compile_json_schema(tiny().grammar, s);
    } catch (const Error& e) {
      ASSERT_THAT(e.what(), HasSubstr("no text can match"));
      for (int i = 0; i < 50; ++i) ASSERT_FALSE(test::fits(s, s, number(integer))) << write_json(s);
      continue;
    }
    for (int i = 0; i < 60; ++i) {
      Json v = i == 0 ? low : i == 1 ? high : number(integer);
      if (v.is_float() && v.as_double() == 0) v = Json(0);  // not "-0.0"
      const std::string text = write_json(v);
      ASSERT_EQ(takes(grammar, text), test::fits(s, s, v))
          << write_json(s) << " on " << text << ", seed " << seed;
    }
  }
}

// Readers compare doubles: a decimal strictly inside a bound that reads as the bound would be refused.
TEST(GrammarJson, what_lies_inside_an_exclusive_bound_does_so_as_a_double) {
  const auto below = schema(R"({"type":"number","exclusiveMaximum":0.1})");
  for (const char* text : {"0.09", "0.099999999999999", "0", "-5.5", "-0.1"})
    EXPECT_TRUE(takes(below, text)) << text;
  for (const char* text : {"0.09999999999999999999", "0.0999999999999999999", "0.1", "0.10"})
    EXPECT_FALSE(takes(below, text)) << text;
  const auto sharp = schema(R"({"type":"number","exclusiveMinimum":0.30000000000000004})");  // of 17 digits
  for (const char* text : {"0.300000000000001", "0.4", "1"}) EXPECT_TRUE(takes(sharp, text)) << text;
  for (const char* text : {"0.3", "0.30000000000000004", "0.30000000000000005", "0.300000000000000"})
    EXPECT_FALSE(takes(sharp, text)) << text;
  const auto large = schema(R"({"type":"number","exclusiveMinimum":1e15,"exclusiveMaximum":1e16})");
  for (const char* text : {"1000000000000001", "9999999999999999"}) EXPECT_TRUE(takes(large, text)) << text;
  for (const char* text : {"1000000000000000", "1000000000000000.01", "9999999999999999.9"})
    EXPECT_FALSE(takes(large, text)) << text;
  const auto inclusive = schema(R"({"type":"number","minimum":0,"maximum":0.1})");
  EXPECT_TRUE(takes(inclusive, "0.09999999999999999999"));
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 60; ++round) {
    const double low = static_cast<double>(rng() % 100000) / 997.0,
                 high = low + 1e-7 * static_cast<double>(rng() % 100000 + 10);
    Json s;
    s.set("type", "number");
    s.set("exclusiveMinimum", low);
    s.set("exclusiveMaximum", high);
    const auto grammar = compile_json_schema(tiny().grammar, s);
    for (int walk = 0; walk < 20; ++walk) {
      const auto ids = test::random_walk(GrammarMatcher(grammar), rng, 80);
      if (!ids) continue;
      const double v = parse_json(tiny().tokenizer.decode(*ids)).as_double();
      EXPECT_TRUE(low < v && v < high)
          << write_json(s) << " made " << tiny().tokenizer.decode(*ids) << ", seed " << seed;
    }
  }
}

TEST(GrammarJson, any_json_takes_json_and_nothing_else) {
  const auto any = compile_any_json(tiny().grammar);
  const auto object = compile_any_json(tiny().grammar, true, {2});
  for (const char* text :
       {"null", "[]", "{}", R"({"a":[1,{"b":"c"}],"d":-1.5e3})", "[[[[[]]]]]", R"("x")", "[true, false]"})
    EXPECT_TRUE(takes(any, text)) << text;
  for (const char* text : {"", "nul", "[1,]", "{a:1}", "{\"a\"}", "[1]]", "'x'", "\n\n{}"})
    EXPECT_FALSE(takes(any, text)) << text;
  EXPECT_TRUE(takes(object, "\n\n{\"a\": 1}"));
  EXPECT_FALSE(takes(object, "\n\n\n{}"));
  EXPECT_FALSE(takes(object, "[]"));
}

TEST(GrammarJson, nesting_stops_at_a_depth_that_readers_take) {
  const auto any = compile_any_json(tiny().grammar);
  GrammarMatcher m(any);
  const int32_t open = tiny().tokenizer.encode("[", ControlTokens::AsText)[0];
  std::string text;
  for (int i = 0; i < 400 && m.accept(open); ++i) text += '[';
  EXPECT_GT(text.size(), 200u);
  EXPECT_LT(text.size(), 256u);
  // From there it can be closed, and masks still equal brute force.
  std::vector<int32_t> expected;
  for (int32_t id = 0; id < tiny().tokenizer.size(); ++id)
    if (m.accept(id)) {
      expected.push_back(id);
      m.rollback(1);
    }
  EXPECT_EQ(test::allowed(m), expected);
  const int32_t close = tiny().tokenizer.encode("]", ControlTokens::AsText)[0];
  for (size_t n = text.size(); n > 0; --n, text += ']') ASSERT_TRUE(m.accept(close));
  EXPECT_TRUE(m.accept(tiny().end));
  EXPECT_NO_THROW(parse_json(text));
}

TEST(GrammarJson, white_space_between_tokens_is_bounded) {
  const auto any = compile_any_json(tiny().grammar);
  for (const char* start : {"{", "[", "[1,", "{\"a\":", "{\"a\":1", "[1"}) {
    GrammarMatcher m(any);
    for (const int32_t id : tiny().tokenizer.encode(start, ControlTokens::AsText)) ASSERT_TRUE(m.accept(id));
    // Whatever white space is chosen, it ends.
    std::mt19937_64 rng(3);
    for (int walk = 0; walk < 20; ++walk) {
      GrammarMatcher w = m;
      int n = 0;
      for (; n < 100; ++n) {
        std::vector<int32_t> space;
        for (const int32_t id : test::allowed(w))
          if (tiny().tokenizer.token_bytes(id).find_first_not_of(" \t\r\n") == std::string_view::npos)
            space.push_back(id);
        if (space.empty()) break;
        ASSERT_TRUE(w.accept(space[rng() % space.size()]));
      }
      EXPECT_LT(n, 50) << start;
    }
  }
}

TEST(GrammarJson, what_is_not_supported_is_refused_by_name_and_path) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"number","multipleOf":3})", "#: keyword 'multipleOf'"},
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "#/properties/a: keyword 'not'"},
      {R"({"type":"array","items":{"type":"array","uniqueItems":true}})", "#/items: keyword 'uniqueItems'"},
      {R"({"type":"object","patternProperties":{}})", "'patternProperties'"},
      {R"({"type":"object","minProperties":1})", "'minProperties'"},
      {R"({"if":{},"then":{}})", "'if'"},
      {R"({"type":"array","contains":{}})", "'contains'"},
      {R"({"$ref":"http://example.org/s.json"})", "only references within the document"},
      {R"({"$ref":"#/$defs/x"})", "leads nowhere"},
      {R"({"$ref":"#anchor"})", "only JSON pointers"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})", "no text can match"},
      {R"({"type":"strin"})", "type 'strin' is not known"},
      {R"({"type":3})", "type: expected"},
      {R"({"type":"string","format":"iri"})", "format 'iri' is not supported"},
      {R"({"type":"string","format":"date","pattern":"2"})", "'pattern' without ^ and $ beside 'format'"},
      {R"({"type":"string","format":"date","pattern":"^2\\$"})", "'pattern' without ^ and $ beside 'format'"},
      {R"({"type":"object","propertyNames":{"minLength":2}})", "this 'propertyNames' is not supported"},
      {R"({"type":"object","propertyNames":{"enum":["a"]},"properties":{"b":{}}})", "this 'propertyNames'"},
      {R"({"type":"string","pattern":"^*x$"})",
       "#/pattern: regular expression: a quantifier with nothing before it"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "beside 'pattern'"},
      {R"({"type":"string","minLength":4,"maxLength":3})", "minLength 4 is above maxLength 3"},
      {R"({"type":"string","minLength":-1})", "minLength: expected a natural number"},
      {R"({"type":"string","maxLength":1e30})", "maxLength"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "minItems 3 is above maxItems 2"},
      {R"({"type":"array","items":[{}]})", "#: items: expected a schema"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       "oneOf: a value might fit both branch 0 and branch 1"},
      {R"({"type":"object","required":["a"],"additionalProperties":false})",
       "'a' is required, and additionalProperties"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "'pattern' in two parts"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "no text can match"},
      {R"({"enum":[]})", "no value is left"},
      {R"({"enum":["a"],"minLength":3})", "'minLength' beside enum"},
      {R"(false)", "no text can match"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "no text can match"},
      {R"(3)", "expected a schema, found integer"},
      {R"({"type":"object","properties":[]})", "properties: expected object"},
      {R"({"anyOf":[]})", "anyOf: expected schemas"},
      {R"({"minimum":"3"})", "minimum: expected number"},
  };
  for (const auto& [text, what] : cases) {
    const std::string m = refusal(std::string_view(text));
    EXPECT_THAT(m, HasSubstr(what)) << text;
    EXPECT_THAT(m, testing::Not(HasSubstr("\n")));
  }
}

TEST(GrammarJson, hostile_schemas_are_errors_and_quick) {
  std::vector<Json> schemas;
  Json deep = parse_json(R"({"type":"integer"})");
  for (int i = 0; i < 200; ++i) {
    Json s;
    s.set("type", "object");
    Json p;
    p.set("a", deep);
    s.set("properties", p);
    deep = s;
  }
  schemas.push_back(deep);
  Json many;
  for (int i = 0; i < 5000; ++i) many.set("p" + std::to_string(i), Json(true));
  Json wide;
  wide.set("type", "object");
  wide.set("properties", many);
  schemas.push_back(wide);
  // Doubling: each level refers twice to the next through allOf.
  Json defs;
  for (int i = 0; i < 40; ++i)
    defs.set("d" + std::to_string(i),
             parse_json(i == 39 ? R"({"type":"integer"})"
                                : R"({"allOf":[{"$ref":"#/$defs/d)" + std::to_string(i + 1) +
                                      R"("},{"$ref":"#/$defs/d)" + std::to_string(i + 1) + R"("}]})"));
  Json doubling;
  doubling.set("$defs", defs);
  doubling.set("$ref", "#/$defs/d0");
  schemas.push_back(doubling);
  // Objects of many members, each the last of the one around it.
  Json nested = parse_json(R"({"type":"integer"})");
  for (int level = 0; level < 60; ++level) {
    Json p;
    for (int i = 0; i < 900; ++i) p.set("p" + std::to_string(i), Json(Json::Object{{"const", Json(i)}}));
    p.set("z", nested);
    nested = Json(Json::Object{{"type", Json("object")}, {"properties", p}});
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string outcome = refusal(nested);
  EXPECT_THAT(outcome, testing::AnyOf(HasSubstr("accepted"), HasSubstr("more than")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  schemas.push_back(parse_json(
      R"({"type":"array","minItems":90000,"items":{"type":"array","minItems":90000,"items":{"type":"array","minItems":90000}}})"));
  schemas.push_back(parse_json(R"({"type":"string","pattern":")" + std::string(50000, '(') + "\"}"));
  for (const Json& s : schemas) {
    const auto start = std::chrono::steady_clock::now();
    const std::string m = refusal(s);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%6.0f ms: %s\n", took.count() * 1e3, m.substr(0, 120).c_str());
    EXPECT_LT(took.count(), 10) << m;
    EXPECT_LT(m.size(), 300u);
  }
}

TEST(GrammarJson, large_bounds_compile) {
  Json values = Json(Json::Array{});
  for (int i = 0; i < 20000; ++i) values.push_back("value " + std::to_string(i * 7919 % 100000));
  Json choice;
  choice.set("enum", values);
  const auto enumeration = compile_json_schema(tiny().grammar, choice);
  EXPECT_TRUE(takes(enumeration, "\"value 7919\""));
  EXPECT_TRUE(takes(enumeration, "\"value 0\""));
  EXPECT_FALSE(takes(enumeration, "\"value \""));
  EXPECT_FALSE(takes(enumeration, "\"value 100000\""));
  const auto long_string = schema(R"({"type":"string","minLength":3,"maxLength":50000})");
  EXPECT_TRUE(takes(long_string, '"' + std::string(50000, 'a') + '"'));
  EXPECT_FALSE(takes(long_string, '"' + std::string(50001, 'a') + '"'));
  const auto long_array = schema(
      R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"maxItems":5000})");
  EXPECT_TRUE(takes(long_array, "[{\"a\":1},{\"a\":22}]"));
  Json many, required = Json(Json::Array{});
  for (int i = 0; i < 1000; ++i) many.set("p" + std::to_string(i), parse_json(R"({"type":"integer"})"));
  Json wide;
  wide.set("type", "object");
  wide.set("properties", many);
  EXPECT_TRUE(takes(compile_json_schema(tiny().grammar, wide), R"({"p3": 4, "p999": 5})"));
}

}  // namespace
}  // namespace quern

#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"

namespace quern {
namespace {

std::string error_of(std::string_view text, JsonLimits limits = {}) {
  try {
    parse_json(text, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, keeps_key_order_int_float_and_big_integers) {
  const std::string text = R"({"b":1,"a":1.0,"n":123456789012345678901234567890,"e":1e300,"z":[],"o":{}})";
  EXPECT_EQ(write_json(parse_json(text)),
            R"({"b":1,"a":1.0,"n":123456789012345678901234567890,"e":1e+300,"z":[],"o":{}})");
}

TEST(Json, duplicate_key_keeps_first_place_and_last_value) {
  EXPECT_EQ(write_json(parse_json(R"({"a":1,"b":2,"a":3})")), R"({"a":3,"b":2})");
  std::string big = "{";
  for (int i = 0; i < 40; ++i) big += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  EXPECT_EQ(parse_json(big + "\"k20\":-1}").find("k20")->as_int(), -1);
  EXPECT_NE(error_of(big + "\"k20\":-1}", {.max_depth = 8, .unique_keys = true}).find("duplicate key 'k20'"),
            std::string::npos);
}

TEST(Json, doubles_read_back_to_the_bit) {
  for (const char* s : {"0.1", "2.2250738585072014e-308", "1.7976931348623157e308", "5e-324",
                        "9007199254740993.0", "-0.0", "1e-400"}) {
    EXPECT_EQ(parse_json(s).as_double(), std::strtod(s, nullptr)) << s;
  }
}

TEST(Json, floats_print_as_python_prints_them) {
  const std::pair<double, const char*> cases[] = {
      {1.0, "1.0"},    {1e16, "1e+16"},         {1e15, "1000000000000000.0"}, {1e-4, "0.0001"},
      {1e-5, "1e-05"}, {1.5e-7, "1.5e-07"},     {123.456, "123.456"},         {-0.0, "-0.0"},
      {1e22, "1e+22"}, {1.25e300, "1.25e+300"}, {12345678.9, "12345678.9"}};
  for (auto [v, s] : cases) EXPECT_EQ(python_float(v), s);
}

TEST(Json, refuses_what_is_not_json) {
  for (const char* s : {"", "{", "[1,]", "{\"a\":1,}", "nul", "01", "1 2", "\"\x01\"", "\"\xff\"",
                        "\"\\ud83d\"", "1e999", "NaN", "'a'", "//x\n1"})
    EXPECT_NE(error_of(s), "") << s;
  EXPECT_NE(error_of(std::string(100000, '[')).find("deep"), std::string::npos)
      << error_of(std::string(100000, '['));
}

TEST(Json, python_style_and_indent) {
  const Json v = parse_json(R"({"a":[1,{"b":"é\n"}],"c":{}})");
  EXPECT_EQ(write_json(v, kPythonJson), "{\"a\": [1, {\"b\": \"é\\n\"}], \"c\": {}}");
  JsonStyle ascii = kPythonJson;
  ascii.ensure_ascii = true;
  EXPECT_EQ(write_json(Json("😀"), ascii), "\"\\ud83d\\ude00\"");
  JsonStyle indented = kPythonJson;
  indented.indent = 2;
  EXPECT_EQ(write_json(v, indented),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"é\\n\"\n    }\n  ],\n  \"c\": {}\n}");
}

}  // namespace
}  // namespace quern

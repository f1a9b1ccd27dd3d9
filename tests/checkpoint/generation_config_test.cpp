#include "checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace quern {
namespace {

TEST(GenerationConfig, reads_the_bundled_model) {
  const GenerationConfig c = read_generation_config(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny");
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{4002, 4000}));
  EXPECT_TRUE(c.do_sample);
  EXPECT_EQ(c.temperature, 0.7);
  EXPECT_EQ(c.top_p, 0.8);
  EXPECT_EQ(c.top_k, 20);
}

TEST(GenerationConfig, refuses_bad_values_naming_the_key) {
  for (const auto& [text, key] : {std::pair{R"({"temperature":"hot"})", "temperature"},
                                  {R"({"temperature":-1})", "temperature"},
                                  {R"({"top_p":1.5})", "top_p"},
                                  {R"({"top_k":-1})", "top_k"},
                                  {R"({"eos_token_id":[1,"x"]})", "eos_token_id"},
                                  {R"({"do_sample":1})", "do_sample"}}) {
    try {
      parse_generation_config(parse_json(text), "g.json");
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(std::string("g.json: ") + key)) << text;
    }
  }
}

TEST(GenerationConfig, nulls_and_unknown_keys_are_absent) {
  const auto c = parse_generation_config(parse_json(R"({"eos_token_id":7,"top_k":null,"new_key":{}})"), "g");
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{7});
  EXPECT_FALSE(c.top_k.has_value());
}

}  // namespace
}  // namespace quern

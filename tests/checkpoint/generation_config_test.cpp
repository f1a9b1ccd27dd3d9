#include "checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/check.h"
#include "base/thread_pool.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/safetensors_bytes.h"

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

// A model's path may be a folder, a GGUF file, or a folder of one: each says where its replies end.
TEST(GenerationConfig, reads_gguf_keys) {
  const test::TempFolder folder("generation_gguf");
  ThreadPool pool(1);
  const auto read = [&](const std::function<void(GgufKeys&)>& change) {
    GgufKeys keys;
    keys.text("general.architecture", "qwen4exp");
    keys.texts("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "c", "d", "e"});
    change(keys);
    write_gguf(folder.path / "m.gguf", keys, {}, pool);
    return read_generation_config(folder.path / "m.gguf");
  };
  const auto c = read([](GgufKeys& k) {
    k.f32("general.sampling.temp", 0.7);
    k.f32("general.sampling.top_p", 0.8);
    k.i32("general.sampling.top_k", 20);
    k.u32("tokenizer.ggml.eos_token_id", 4);
    k.u32("tokenizer.ggml.eot_token_id", 4);
    k.u32("tokenizer.ggml.eom_token_id", 3);
    k.u32("qwen4exp.ple.eos_token_id", 2);
  });
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{4, 3, 2}));
  EXPECT_EQ(c.temperature, 0.7);  // not 0.699999988079071
  EXPECT_EQ(c.top_p, 0.8);
  EXPECT_EQ(c.top_k, 20);
  EXPECT_EQ(read_generation_config(folder.path).eos_ids, c.eos_ids);
  try {
    read([](GgufKeys& k) { k.u32("tokenizer.ggml.eos_token_id", 5); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                testing::HasSubstr("tokenizer.ggml.eos_token_id: expected a token id from 0 to 4, found 5"));
  }
}

}  // namespace
}  // namespace quern

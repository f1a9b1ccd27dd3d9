// GGUF keys as other programs write them: what may be absent, what comes in another shape, and what is refused by name.
#include "model/config_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>

#include "base/check.h"
#include "base/mapped_file.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/safetensors_bytes.h"
#include "model/convert.h"
#include "model/ngram_hash.h"

namespace quern {
namespace {

using testing::HasSubstr;

const std::string kTiny = std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny";

// The keys that convert writes for the bundled model, and changes to them.
class Keys {
 public:
  Keys() : folder_("config_gguf") {
    const auto c = Checkpoint::open(kTiny);
    const Config config = read_config(*c);
    GgufKeys keys;
    write_gguf_config(keys, config, read_ngram_table(*c, config).hash, true, DType::BF16);
    keys.u32("qwen4exp.vocab_size", config.vocab);
    ThreadPool pool(1);
    write_gguf(folder_.path / "k.gguf", keys, {}, pool);
    bytes_ = MappedFile::open(folder_.path / "k.gguf");
    file = parse_gguf(bytes_->bytes(), "k.gguf");
  }
  void erase(const std::string& key) {
    const auto n = std::erase_if(file.metadata, [&](const auto& k) { return k.first == "qwen4exp." + key; });
    EXPECT_EQ(n, 1u) << key;
  }
  void set(const std::string& key, GgufValue value) {
    std::erase_if(file.metadata, [&](const auto& k) { return k.first == "qwen4exp." + key; });
    file.metadata.emplace_back("qwen4exp." + key, std::move(value));
  }
  void integer(const std::string& key, int64_t v, GgufType type = GgufType::U32) {
    GgufValue value;
    value.type = type;
    value.bits = static_cast<uint64_t>(v);
    set(key, value);
  }
  void number(const std::string& key, double v) {
    GgufValue value;
    value.type = GgufType::F32;
    value.number = v;
    set(key, value);
  }
  template <typename T>
  void list(const std::string& key, GgufType item, const std::vector<T>& values) {
    auto& raw = arrays_.emplace_back(values.size() * sizeof(T));
    std::memcpy(raw.data(), values.data(), raw.size());
    GgufValue value;
    value.type = GgufType::Array;
    value.item_type = item;
    value.raw = raw;
    set(key, value);
  }
  std::string error() const {
    try {
      parse_gguf_config(file);
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::StartsWith("k.gguf: "));
      return e.what();
    }
    return "";
  }
  GgufFile file;

 private:
  test::TempFolder folder_;
  std::shared_ptr<const MappedFile> bytes_;
  std::deque<std::vector<std::byte>> arrays_;
};

TEST(ConfigGguf, documented_defaults_stand_in_for_absent_keys) {
  Keys k;
  const Config all = parse_gguf_config(k.file);
  for (const char* key :
       {"full_attention_interval", "attention.value_length", "ssm.inner_size", "ple.image_token_id"})
    k.erase(key);
  const Config c = parse_gguf_config(k.file);
  EXPECT_EQ(c.layers, all.layers);
  EXPECT_EQ(c.d_head, all.d_head);
  EXPECT_EQ(c.delta.value_width(), all.delta.value_width());
  EXPECT_EQ(all.ple.image_id, 4005);
  EXPECT_EQ(c.ple.image_id, c.ple.eos_id);  // older files: an image hashes as the end of text
  for (const char* key : {"block_count", "hyper_connection.low_rank", "rope.dimension_sections",
                          "ple.layer_multipliers", "attention.compress_ratios"}) {
    Keys lacking;
    lacking.erase(key);
    if (std::string(key) == "ple.layer_multipliers") {
      EXPECT_EQ(lacking.error(), "");  // the table's reader asks for it
      continue;
    }
    EXPECT_THAT(lacking.error(), HasSubstr("qwen4exp." + std::string(key) + ": is missing"));
  }
}

TEST(ConfigGguf, numbers_come_in_every_type_and_by_layer) {
  Keys k;
  const Config plain = parse_gguf_config(k.file);
  k.integer("block_count", 9, GgufType::U64);
  k.integer("embedding_length", 256, GgufType::I32);
  k.integer("expert_count", 16, GgufType::U16);
  k.list<int32_t>("expert_feed_forward_length", GgufType::I32, std::vector<int32_t>(9, 96));
  k.list<uint32_t>("attention.head_count_kv", GgufType::U32, {0, 0, 0, 2, 0, 0, 0, 2, 2});
  k.list<int64_t>("ple.layers", GgufType::I64, {1});
  k.list<uint8_t>("rope.dimension_sections", GgufType::U8, {11, 11, 10, 0});
  k.list<int32_t>("attention.compress_ratios", GgufType::I32, {1, 1, 1, 4, 1, 1, 1, 4});  // an early writer's
  const Config c = parse_gguf_config(k.file);
  EXPECT_EQ(c.n_layers, 8);
  EXPECT_EQ(c.n_kv_heads, plain.n_kv_heads);
  EXPECT_EQ(c.d_expert, 96);
  EXPECT_EQ(c.mrope_section, plain.mrope_section);
  EXPECT_EQ(c.indexer.block_ratio, 4);
  // The override of which layers recur: booleans or integers.
  k.list<uint8_t>("attention.recurrent_layers", GgufType::Bool, {1, 1, 1, 0, 1, 1, 1, 0, 0});
  EXPECT_EQ(parse_gguf_config(k.file).layers, plain.layers);
  k.list<int32_t>("attention.recurrent_layers", GgufType::I32, {1, 1, 1, 0, 1, 1, 1, 0});
  EXPECT_EQ(parse_gguf_config(k.file).layers, plain.layers);
  k.list<int32_t>("attention.recurrent_layers", GgufType::I32, {1, 1, 1, 2, 1, 1, 1, 0});
  EXPECT_THAT(k.error(), HasSubstr("attention.recurrent_layers: expected 8 booleans"));
}

TEST(ConfigGguf, what_we_do_not_do_is_refused_by_name) {
  const auto with = [](const std::function<void(Keys&)>& change) {
    Keys k;
    change(k);
    return k.error();
  };
  EXPECT_EQ(with([](Keys&) {}), "");
  EXPECT_EQ(with([](Keys& k) { k.integer("expert_gating_func", 1); }), "");
  EXPECT_THAT(with([](Keys& k) { k.integer("expert_gating_func", 2); }),
              HasSubstr("qwen4exp.expert_gating_func: expected 1, found 2"));
  EXPECT_EQ(with([](Keys& k) { k.integer("expert_weights_norm", 1, GgufType::Bool); }), "");
  EXPECT_THAT(with([](Keys& k) { k.integer("expert_weights_norm", 0, GgufType::Bool); }),
              HasSubstr("qwen4exp.expert_weights_norm: expected 1, found 0"));
  EXPECT_EQ(with([](Keys& k) { k.number("expert_weights_scale", 0); }), "");
  EXPECT_THAT(with([](Keys& k) { k.number("expert_weights_scale", 2.5); }),
              HasSubstr("qwen4exp.expert_weights_scale: expected 1, found 2.5"));
  EXPECT_THAT(with([](Keys& k) { k.number("rope.scaling.factor", 4); }),
              HasSubstr("rope.scaling.factor: expected 1"));
  EXPECT_THAT(with([](Keys& k) { k.number("rope.scaling.attn_factor", 2); }),
              HasSubstr("rope.scaling.attn_factor: expected 1, found 2"));
  EXPECT_THAT(with([](Keys& k) { k.integer("nextn_shared_target_tensors", 1, GgufType::Bool); }),
              HasSubstr("draft blocks in files of their own are not supported"));
  EXPECT_THAT(with([](Keys& k) {
                k.list<int32_t>("attention.head_count_kv", GgufType::I32, {2, 4});
              }),
              HasSubstr("attention.head_count_kv: expected the same number for every layer, found 2 and 4"));
  EXPECT_THAT(with([](Keys& k) { k.integer("hyper_connection.count", 1); }),
              HasSubstr("hyper_connection.count"));
  EXPECT_THAT(
      with([](Keys& k) { k.integer("attention.indexer.head_count", int64_t{1} << 40, GgufType::U64); }),
      HasSubstr("attention.indexer.head_count: expected an integer from 1 to"));
}

}  // namespace
}  // namespace quern

// What a folder may say of its quantisation, and that its tensors have to be what it says.
#include "model/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/check.h"
#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/safetensors_writer.h"

namespace quern {
namespace {

using testing::HasSubstr;

QuantizationRules parse(const std::string& json) {
  const Json parsed = parse_json(json);
  return parse_quantization({parsed, "c.json", "quantization_config."});
}
std::string error_of(const std::string& json) {
  try {
    parse(json);
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::StartsWith("c.json: quantization_config."));
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return "";
}
// The official release's, with a member more (which wins over one of the same name).
std::string fp8(const std::string& more = "") {
  return std::string(
             R"({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"], "act_per_tensor": false,
             "weight_per_tensor": false)") +
         (more.find("activation_scheme") == std::string::npos ? R"(, "activation_scheme": "dynamic")" : "") +
         (more.find("weight_block_size") == std::string::npos ? R"(, "weight_block_size": [128, 128])" : "") +
         (more.empty() ? "" : ", " + more) + "}";
}
// As ModelOpt 0.4x writes config.json.
std::string nvfp4(const std::string& more = "", const std::string& weights = "") {
  return R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.ple.*"], "producer": {"name": "modelopt"},
             "config_groups": {"group_0": {"targets": ["Linear"],
               "input_activations": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16},
               "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16)" +
         (weights.empty() ? "" : ", " + weights) + "}}}" + (more.empty() ? "" : ", " + more) + "}";
}

TEST(Quantization, released_configs_are_read) {
  EXPECT_EQ(error_of(fp8()), "");
  EXPECT_EQ(parse(fp8()).kind, Quantization::Fp8Block);
  EXPECT_EQ(error_of(fp8(R"("scale_fmt": "ue8m0")")), "");
  EXPECT_EQ(error_of(nvfp4()), "");
  EXPECT_EQ(parse(nvfp4()).kind, Quantization::ModelOpt);
  EXPECT_EQ(
      error_of(nvfp4(
          R"("group_size": 16, "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"})")),
      "");
  const QuantizationRules mixed = parse(
      R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
           "model.language_model.layers.*.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
           "mtp.layers.0.mlp.experts": {"quant_algo": "FP8_PB_WO", "group_size": 128}}})");
  ASSERT_EQ(mixed.layers.size(), 2u);
  EXPECT_EQ(mixed.layers[0], (std::pair<std::string, StoredAs>("layers.*.mlp.experts", StoredAs::Nvfp4)));
  EXPECT_EQ(mixed.layers[1].second, StoredAs::Fp8Block);
}

TEST(Quantization, what_would_change_numbers_is_refused_by_name) {
  const std::string p = "c.json: quantization_config.";
  EXPECT_EQ(error_of(R"({"quant_method": "awq"})"),
            p + R"(quant_method: expected "fp8" or "modelopt" (no other is supported), found "awq")");
  EXPECT_THAT(error_of("{}"), HasSubstr("found nothing"));
  EXPECT_EQ(error_of(fp8(R"("fmt": "e5m2")")), p + R"(fmt: expected "e4m3", found "e5m2")");
  EXPECT_EQ(error_of(fp8(R"("activation_scheme": "static")")),
            p + R"(activation_scheme: expected "dynamic", found "static")");
  EXPECT_EQ(error_of(fp8(R"("weight_block_size": [64, 128])")),
            p + "weight_block_size: expected [128,128], found [64,128]");
  EXPECT_EQ(error_of(fp8(R"("weight_block_size": null)")),
            p + "weight_block_size: expected [128,128], found nothing");
  EXPECT_THAT(error_of(fp8(R"("scale_fmt": "e5m3")")), HasSubstr("scale_fmt: expected"));
  EXPECT_THAT(
      error_of(fp8(R"("weight_rotation": "hadamard")")),
      HasSubstr(
          R"(weight_rotation: expected no such key (what it means is not known here), found "hadamard")"));
  EXPECT_THAT(error_of(fp8(R"("modules_to_not_convert": "lm_head")")), HasSubstr("modules_to_not_convert"));

  EXPECT_EQ(error_of(nvfp4(R"("group_size": 32)")), p + "group_size: expected 16, found 32");
  EXPECT_THAT(error_of(nvfp4("", R"("group_size": 32)")),
              HasSubstr("config_groups.group_0.weights.group_size: expected 16, found 32"));
  EXPECT_THAT(error_of(nvfp4("", R"("type": "int")")),
              HasSubstr(R"(weights.type: expected "float", found "int")"));
  EXPECT_THAT(error_of(nvfp4("", R"("num_bits": 6)")),
              HasSubstr("weights.num_bits: expected 4 or 8, found 6"));
  EXPECT_THAT(error_of(nvfp4("", R"("symmetric": false)")), HasSubstr("weights.symmetric: expected true"));
  EXPECT_THAT(error_of(nvfp4("", R"("block_structure": [64, 64])")),
              HasSubstr("block_structure: expected [128,128]"));
  EXPECT_EQ(error_of(nvfp4("", R"("block_structure": "128x128")")), "");
  EXPECT_THAT(error_of(nvfp4("", R"("actorder": "group")")), HasSubstr("weights.actorder"));
  EXPECT_THAT(error_of(nvfp4(R"("pre_quant_scale": true)")), HasSubstr("pre_quant_scale"));
  EXPECT_THAT(error_of(nvfp4(R"("kv_cache_quant_algo": "NVFP4")")),
              HasSubstr(R"(kv_cache_quant_algo: expected "FP8" or nothing, found "NVFP4")"));
  EXPECT_THAT(error_of(nvfp4(R"("kv_cache_scheme": {"num_bits": 4, "type": "float"})")),
              HasSubstr("kv_cache_scheme: expected 8-bit floats"));
  EXPECT_THAT(
      error_of(R"({"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"})"),
      HasSubstr(R"(quant_algo: expected "NVFP4", "FP8_PB_WO", "FP8" or "MIXED_PRECISION", found "W4A8)"));
  const auto layer = [](const std::string& how) {
    return error_of(
        R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"mtp": )" +
        how + "}}");
  };
  EXPECT_EQ(layer(R"({"quant_algo": "FP8_PB_WO"})"), "");
  EXPECT_EQ(layer(R"({"quant_algo": "NVFP4", "group_size": 32})"),
            p + "quantized_layers.mtp.group_size: expected 16, found 32");
  EXPECT_THAT(layer(R"({"quant_algo": "FP8_PB_WO", "group_size": 64})"), HasSubstr("expected 128, found 64"));
  EXPECT_THAT(layer(R"({"quant_algo": "W4A16_AWQ"})"),
              HasSubstr("quantized_layers.mtp.quant_algo: expected"));
  EXPECT_THAT(layer(R"({"quant_algo": "NVFP4", "has_zero_point": true})"), HasSubstr("mtp.has_zero_point"));
  EXPECT_THAT(layer("3"), HasSubstr("quantized_layers.mtp: expected an object, found 3"));
}

// A folder of one matrix; whether its tensors are what `quantization` says.
struct Stored {
  DType dtype;
  std::string scale;
};
const Stored kBlocks{DType::F8E4M3, "weight_scale_inv"}, kWhole{DType::F8E4M3, "weight_scale"},
    kNibbles{DType::F4E2M1, "weight_scale"}, kPlain{DType::BF16, ""};
std::string check(const std::string& quantization, const Stored& stored,
                  const std::string& module = "model.language_model.layers.2.mlp.experts.3.up_proj",
                  bool fp8_table = false) {
  const test::TempFolder folder("rules");
  ThreadPool pool(1);
  std::vector<ExportTensor> tensors(stored.scale.empty() ? 1 : 2);
  tensors[0].name = module + ".weight";
  tensors[0].dtype = stored.dtype;
  tensors[0].shape = {2, 16};
  tensors[0].owned.resize(static_cast<size_t>(tensors[0].bytes()));
  if (tensors.size() == 2) {
    tensors[1].name = module + "." + stored.scale;
    tensors[1].owned.resize(4);
  }
  write_safetensors(folder.path, tensors, pool);
  try {
    check_stored_weights(*Checkpoint::open(folder.path),
                         quantization.empty() ? QuantizationRules{} : parse(quantization), fp8_table);
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.safetensors: tensor '" + module + ".weight': "));
    return e.what();
  }
  return "";
}

TEST(Quantization, tensors_have_to_be_what_the_config_says) {
  EXPECT_EQ(check("", kPlain), "");
  EXPECT_THAT(check("", kBlocks), HasSubstr("is F8_E4M3, and config.json has no quantization_config"));
  EXPECT_THAT(check("", kWhole), HasSubstr("is F8_E4M3, and config.json has no quantization_config"));
  EXPECT_THAT(check("", kNibbles), HasSubstr("is U8, and config.json has no quantization_config"));
  EXPECT_EQ(check(fp8(), kBlocks), "");
  EXPECT_EQ(check(fp8(), kPlain), "");
  EXPECT_THAT(check(fp8(), kWhole),
              HasSubstr("expected FP8 with scales by block (weight_scale_inv) as c.json: "
                        "quantization_config says, found FP8 with one scale"));
  EXPECT_THAT(check(fp8(), kNibbles), HasSubstr("found NVFP4"));
  EXPECT_EQ(check(nvfp4(), kNibbles), "");
  EXPECT_EQ(check(nvfp4(), kBlocks), "");  // folders called NVFP4 with some matrices in FP8
  const std::string whole = R"({"quant_method": "modelopt", "quant_algo": "FP8"})";
  EXPECT_EQ(check(whole, kWhole), "");
  EXPECT_THAT(check(whole, kNibbles), HasSubstr("expected FP8 with one scale"));
}

TEST(Quantization, lists_of_modules_are_held_to) {
  EXPECT_THAT(check(fp8(), kBlocks, "lm_head"), HasSubstr("says that 'lm_head' is not quantised"));
  EXPECT_THAT(check(nvfp4(R"("exclude_modules": ["model.language_model.layers.2.mlp*"])"), kNibbles),
              HasSubstr("says that 'layers.2.mlp*' is not quantised"));
  EXPECT_EQ(check(nvfp4(R"("exclude_modules": ["model.language_model.layers.22"])"), kNibbles), "");
  EXPECT_EQ(check(nvfp4(R"("exclude_modules": ["model.layers.2.mlp.gate"])"), kNibbles), "");
  const auto mixed = [](const std::string& algo) {
    return R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "exclude_modules": ["*experts*"],
               "quantized_layers": {"model.language_model.layers.2.mlp.experts": {"quant_algo": ")" +
           algo + "\"}}}";
  };
  EXPECT_EQ(check(mixed("NVFP4"), kNibbles), "");
  EXPECT_EQ(check(mixed("FP8_PB_WO"), kBlocks), "");
  EXPECT_THAT(check(mixed("NVFP4"), kBlocks),
              HasSubstr("expected NVFP4 as c.json: quantization_config says"));
  EXPECT_THAT(check(mixed("FP8"), kBlocks), HasSubstr("expected FP8 with one scale"));
}

// The n-gram table has a key of its own in config.json, and lists of modules do not mean it: NVFP4 folders name ple.*
// among what is not quantised and keep the table in FP8.
TEST(Quantization, the_table_may_be_fp8) {
  const std::string table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_0";
  EXPECT_EQ(check("", kWhole, table, true), "");
  EXPECT_THAT(check("", kWhole, table, false), HasSubstr("has no quantization_config"));
  EXPECT_EQ(check(nvfp4(), kWhole, table), "");
  EXPECT_EQ(check(fp8(), kWhole, table), "");
}

}  // namespace
}  // namespace quern

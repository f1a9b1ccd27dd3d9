#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/check.h"
#include "base/mapped_file.h"

namespace quern {
namespace {

using testing::HasSubstr;

Json tiny() {
  return parse_json(read_file(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny/config.json"));
}

Json& text_of(Json& json) {
  for (auto& [key, value] : json.as_object()) {
    if (key == "text_config") return value;
  }
  return json;
}

std::string error_with(const std::function<void(Json& top, Json& text)>& change) {
  Json json = tiny();
  change(json, text_of(json));
  try {
    parse_config(json, "c.json");
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::StartsWith("c.json: "));
    return e.what();
  }
  return "";
}

TEST(Config, reads_the_bundled_model) {
  const Config c = parse_config(tiny(), "c.json");
  EXPECT_EQ(c.vocab, 4096);
  EXPECT_EQ(c.d_model, 256);
  EXPECT_EQ(c.n_layers, 8);
  EXPECT_EQ(c.n_sparse_layers(), 2);
  EXPECT_EQ(c.layers[3], LayerKind::SparseAttention);
  EXPECT_EQ(c.layers[4], LayerKind::DeltaNet);
  EXPECT_EQ(c.streams, 4);
  EXPECT_EQ(c.hc_rank, 32);
  EXPECT_EQ(c.n_heads, 6);
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.d_head, 256);
  EXPECT_EQ(c.d_rope, 64);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_EQ(c.mrope_section, (std::vector<int>{11, 11, 10}));
  EXPECT_EQ(c.indexer.budget, 64);
  EXPECT_EQ(c.indexer.n_blocks(), 16);
  EXPECT_EQ(c.delta.qkv_width(), 1280);
  EXPECT_EQ(c.delta.gate, OutputGate::Sigmoid);
  EXPECT_EQ(c.delta.key_head(5), 1);
  EXPECT_EQ(c.n_experts, 16);
  EXPECT_EQ(c.top_k, 4);
  EXPECT_EQ(c.d_expert, 96);
  EXPECT_EQ(c.ple.layer, 1);
  EXPECT_EQ(c.ple.n_heads(), 16);
  EXPECT_EQ(c.ple.d_row, 16);
  EXPECT_EQ(c.ple.dilation, 3);
  EXPECT_EQ(c.ple.eos_id, 4000);
  EXPECT_EQ(c.ple.image_id, 4005);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_FALSE(c.bos_id.has_value());
  ASSERT_TRUE(c.vision.has_value());
  EXPECT_EQ(c.vision->n_layers, 3);
}

TEST(Config, accepts_every_spelling) {
  for (const char* name :
       {"full_attention", "qwen_sparse_attention", "deepseek_sparse_attention", "hybrid_indexed"}) {
    EXPECT_EQ(error_with([&](Json&, Json& text) {
                Json::Array types(8, Json("linear_attention"));
                types[3] = types[7] = Json(name);
                text.set("layer_types", types);
              }),
              "");
  }
  // A flat file, its rope values flat too.
  Json json = tiny();
  Json flat = text_of(json);
  flat.set("rope_parameters", Json());
  flat.set("rope_theta", 1e7);
  flat.set("partial_rotary_factor", 0.25);
  flat.set("mrope_section", Json::Array{11, 11, 10});
  flat.set("eos_token_id", Json::Array{4000, 4002});
  const Config c = parse_config(flat, "c.json");
  EXPECT_EQ(c.d_rope, 64);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{4000, 4002}));
  EXPECT_EQ(c.ple.eos_id, 4000);
  EXPECT_FALSE(c.vision.has_value());
  // The gate is silu where the key is absent; layers follow from the interval.
  EXPECT_EQ(error_with([](Json&, Json& text) {
              text.set("output_gate_type", Json());
              text.set("layer_types", Json());
            }),
            "");
}

TEST(Config, refuses_unknown_and_contradictory_values_naming_key_and_value) {
  const auto bad = [](const char* key, Json value) {
    return error_with([&](Json&, Json& text) { text.set(key, value); });
  };
  EXPECT_THAT(bad("hidden_size", 0), HasSubstr("text_config.hidden_size: expected an integer from 1"));
  EXPECT_THAT(bad("hidden_size", "256"), HasSubstr("found \"256\""));
  EXPECT_THAT(bad("hidden_size", Json()), HasSubstr("hidden_size: expected an integer, found nothing"));
  EXPECT_THAT(bad("num_hidden_layers", 9), HasSubstr("layer_types: expected 9 entries"));
  EXPECT_THAT(bad("full_attention_interval", 2),
              HasSubstr("layer_types[1]: expected what full_attention_interval 2"));
  EXPECT_THAT(bad("layer_types", Json::Array(8, Json("sliding"))), HasSubstr("layer_types[0]"));
  EXPECT_THAT(bad("num_key_value_heads", 4), HasSubstr("num_attention_heads: expected a multiple of"));
  EXPECT_THAT(bad("linear_num_key_heads", 4), HasSubstr("linear_num_value_heads"));
  EXPECT_THAT(bad("num_experts_per_tok", 17), HasSubstr("at most num_experts 16"));
  EXPECT_THAT(bad("output_gate_type", "tanh"),
              HasSubstr("output_gate_type: expected \"sigmoid\" or \"silu\", found \"tanh\""));
  EXPECT_THAT(bad("hidden_act", "gelu"), HasSubstr("hidden_act: expected \"silu\", found \"gelu\""));
  EXPECT_THAT(bad("attention_bias", true), HasSubstr("attention_bias: expected false, found true"));
  EXPECT_THAT(bad("norm_topk_prob", false), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(bad("indexer_kv_heads", 2), HasSubstr("indexer_kv_heads: expected 1, found 2"));
  EXPECT_THAT(bad("indexer_budget", 66), HasSubstr("indexer_budget"));
  EXPECT_THAT(bad("indexer_compress_ratio", 3), HasSubstr("indexer_"));
  EXPECT_THAT(bad("ple_layer_ids", Json::Array{2, 3}),
              HasSubstr("ple_layer_ids: expected a list of one layer"));
  EXPECT_THAT(bad("ple_layer_ids", Json::Array{0}), HasSubstr("ple_layer_ids: expected a layer from 1 to 8"));
  EXPECT_THAT(bad("ple_embed_dim", 250), HasSubstr("ple_embed_dim"));
  EXPECT_THAT(bad("eos_token_id", 4096), HasSubstr("eos_token_id: expected token ids below 4096"));
  EXPECT_THAT(bad("eos_token_id", Json()), HasSubstr("eos_token_id"));
  EXPECT_THAT(bad("tie_word_embeddings", true), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(bad("mtp_num_hidden_layers", 2), HasSubstr("mtp_num_hidden_layers"));
  EXPECT_THAT(bad("rope_theta", 5.0), HasSubstr("rope_parameters.rope_theta: expected 5"));
  EXPECT_THAT(bad("model_type", "qwen3"), HasSubstr("text_config.model_type"));
  EXPECT_THAT(error_with([](Json& top, Json&) { top.set("model_type", "llama"); }),
              HasSubstr("model_type: expected \"qwen4_exp\", found \"llama\""));
  EXPECT_THAT(error_with([](Json& top, Json&) {
                Json q;
                q.set("quant_method", "awq");
                top.set("quantization_config", q);
              }),
              HasSubstr("quantization_config.quant_method: expected \"fp8\" or \"modelopt\""));
  const auto modelopt = [](const char* algo, const char* layer_algo) {
    return error_with([=](Json& top, Json&) {
      Json q, layers, layer;
      q.set("quant_method", "modelopt");
      q.set("quant_algo", algo);
      layer.set("quant_algo", layer_algo);
      layers.set("mtp.layers.0.mlp.experts", layer);
      q.set("quantized_layers", layers);
      top.set("quantization_config", q);
    });
  };
  EXPECT_EQ(modelopt("NVFP4", "NVFP4"), "");
  EXPECT_EQ(modelopt("MIXED_PRECISION", "FP8_PB_WO"), "");
  EXPECT_THAT(modelopt("W4A16_AWQ", "NVFP4"),
              HasSubstr("quantization_config.quant_algo: expected \"NVFP4\", "));
  EXPECT_THAT(modelopt("W4A16_AWQ", "NVFP4"), HasSubstr("found \"W4A16_AWQ\""));
  EXPECT_THAT(
      modelopt("MIXED_PRECISION", "MXFP8"),
      HasSubstr("quantized_layers.mtp.layers.0.mlp.experts.quant_algo: expected \"NVFP4\", \"FP8_PB_WO\" or "
                "\"FP8\", found \"MXFP8\""));
  EXPECT_THAT(error_with([](Json& top, Json&) {
                Json q;
                q.set("quant_method", "fp8");
                q.set("weight_block_size", Json::Array{64, 64});
                top.set("quantization_config", q);
              }),
              HasSubstr("quantization_config.weight_block_size: expected [128,128], found [64,64]"));
}

// A rotary scheme we do not apply must not be read over (YaRN exports).
TEST(Config, refuses_every_rope_type_but_default) {
  for (const char* type : {"yarn", "linear", "dynamic", "llama3", "longrope"}) {
    const std::string e = error_with([&](Json&, Json& text) {
      Json rope = *text.find("rope_parameters");
      rope.set("rope_type", type);
      text.set("rope_parameters", rope);
    });
    EXPECT_THAT(e, HasSubstr("rope_parameters.rope_type: expected \"default\""));
    EXPECT_THAT(e, HasSubstr(type));
  }
  const auto with = [](const char* key, Json value) {
    return error_with([&](Json&, Json& text) {
      Json rope = *text.find("rope_parameters");
      rope.set(key, value);
      text.set("rope_parameters", rope);
    });
  };
  EXPECT_THAT(with("factor", 4.0), HasSubstr("rope_parameters.factor"));
  EXPECT_THAT(with("mrope_interleaved", false), HasSubstr("mrope_interleaved"));
  EXPECT_THAT(with("mrope_section", Json::Array{11, 11, 11}), HasSubstr("a sum of 32 rotary pairs"));
  EXPECT_THAT(with("partial_rotary_factor", 0.3), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_with([](Json&, Json& text) {
                Json old;
                old.set("type", "yarn");
                text.set("rope_scaling", old);
              }),
              HasSubstr("rope_scaling.type: expected \"default\""));
}

}  // namespace
}  // namespace quern

#include "model/config.h"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "base/check.h"
#include "model/config_gguf.h"
#include "model/config_section.h"
#include "model/quantization.h"

namespace quern {
namespace {

bool is_sparse_name(std::string_view s) {
  return s == "full_attention" || s == "qwen_sparse_attention" || s == "deepseek_sparse_attention" ||
         s == "hybrid_indexed";
}

void read_layers(const Section& text, Config& c) {
  c.n_layers = static_cast<int>(text.integer("num_hidden_layers", 1, 4096));
  const auto interval = text.integer_if("full_attention_interval", 1, 4096);
  const Json* types = text.get("layer_types");
  for (int i = 0; i < c.n_layers; ++i)
    c.layers.push_back((i + 1) % interval.value_or(4) == 0 ? LayerKind::SparseAttention
                                                           : LayerKind::DeltaNet);
  if (types == nullptr) return;
  if (!types->is_array()) text.fail("layer_types", "an array", *types);
  if (types->size() != static_cast<size_t>(c.n_layers))
    text.fail("layer_types", fmt::format("{} entries as num_hidden_layers says", c.n_layers),
              fmt::format("{}", types->size()));
  for (int i = 0; i < c.n_layers; ++i) {
    const Json& t = types->as_array()[static_cast<size_t>(i)];
    const bool sparse = t.is_string() && is_sparse_name(t.as_string());
    if (!sparse && !(t.is_string() && t.as_string() == "linear_attention"))
      text.fail(fmt::format("layer_types[{}]", i), "\"linear_attention\" or \"full_attention\"", t);
    const LayerKind kind = sparse ? LayerKind::SparseAttention : LayerKind::DeltaNet;
    if (interval && kind != c.layers[static_cast<size_t>(i)])
      text.fail(fmt::format("layer_types[{}]", i),
                fmt::format("what full_attention_interval {} says", *interval), t);
    c.layers[static_cast<size_t>(i)] = kind;
  }
}

void read_rope(const Section& text, Config& c) {
  // Flat values, `rope_parameters`, and the older `rope_scaling` may all occur.
  std::optional<double> theta = text.positive_if("rope_theta");
  std::optional<double> factor = text.positive_if("partial_rotary_factor");
  const Json* sections = text.get("mrope_section");
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* v = text.get(key);
    if (v == nullptr) continue;
    if (!v->is_object()) text.fail(key, "an object", *v);
    const Section rope = text.child(key);
    for (const std::string_view type_key : {"rope_type", "type"}) {
      const auto type = rope.text_if(type_key);
      if (type && *type != "default")
        rope.fail(type_key, "\"default\" (no other kind is supported)", *rope.get(type_key));
    }
    if (const auto f = rope.positive_if("factor"); f && *f != 1)
      rope.fail("factor", "1", *rope.get("factor"));
    theta = agreed("rope_theta", rope, rope.positive_if("rope_theta"), &text, theta);
    factor = agreed("partial_rotary_factor", rope, rope.positive_if("partial_rotary_factor"), &text, factor);
    rope.only("mrope_interleaved", true);
    if (const Json* s = rope.get("mrope_section")) {
      if (sections != nullptr && !(*sections == *s)) rope.fail("mrope_section", write_json(*sections), *s);
      sections = s;
    }
  }
  text.only("mrope_interleaved", true);
  c.rope_theta = theta.value_or(1e7);
  const double d_rope = c.d_head * factor.value_or(0.25);
  if (d_rope != std::floor(d_rope) || d_rope < 2 || d_rope > c.d_head || static_cast<int>(d_rope) % 2 != 0)
    text.fail("partial_rotary_factor", fmt::format("an even number of the {} head dims", c.d_head),
              fmt::format("{} of them", d_rope));
  c.d_rope = static_cast<int>(d_rope);
  if (sections == nullptr) {
    // Never split by images: all three position streams of text are equal.
    const int pairs = c.d_rope / 2;
    c.mrope_section = {pairs - 2 * (pairs / 3), pairs / 3, pairs / 3};
    return;
  }
  int sum = 0;
  if (!sections->is_array() || sections->size() != 3) text.fail("mrope_section", "three integers", *sections);
  for (const Json& s : sections->as_array()) {
    if (!s.is_int() || s.as_int() < 0 || s.as_int() > c.d_rope)
      text.fail("mrope_section", "three counts of rotary pairs", *sections);
    c.mrope_section.push_back(static_cast<int>(s.as_int()));
    sum += c.mrope_section.back();
  }
  if (sum != c.d_rope / 2)
    text.fail("mrope_section", fmt::format("a sum of {} rotary pairs", c.d_rope / 2), *sections);
}

void read_delta(const Section& text, Config& c) {
  c.delta.n_key_heads = text.dim("linear_num_key_heads");
  c.delta.n_value_heads = text.dim("linear_num_value_heads");
  c.delta.d_key = text.dim("linear_key_head_dim");
  c.delta.d_value = text.dim("linear_value_head_dim");
  c.delta.conv = static_cast<int>(text.integer("linear_conv_kernel_dim", 2, 16));
  if (c.delta.n_value_heads % c.delta.n_key_heads != 0)
    text.fail("linear_num_value_heads",
              fmt::format("a multiple of linear_num_key_heads {}", c.delta.n_key_heads),
              *text.get("linear_num_value_heads"));
  const std::string gate = text.text_if("output_gate_type").value_or("silu");
  if (gate != "sigmoid" && gate != "silu" && gate != "swish")
    text.fail("output_gate_type", "\"sigmoid\" or \"silu\"", *text.get("output_gate_type"));
  c.delta.gate = gate == "sigmoid" ? OutputGate::Sigmoid : OutputGate::Silu;
}

void read_ple(const Section& text, Config& c) {
  const Json* layers = text.get("ple_layer_ids");
  if (layers == nullptr || !layers->is_array() || layers->size() != 1 || !layers->as_array()[0].is_int())
    text.fail("ple_layer_ids", "a list of one layer",
              layers == nullptr ? std::string("nothing") : write_json(*layers));
  const int64_t layer = layers->as_array()[0].as_int();  // 1-based
  if (layer < 1 || layer > c.n_layers)
    text.fail("ple_layer_ids", fmt::format("a layer from 1 to {}", c.n_layers), *layers);
  c.ple.layer = static_cast<int>(layer) - 1;
  c.ple.ngram = static_cast<int>(text.integer("ngram_size", 3, 3));
  c.ple.heads_per_ngram = static_cast<int>(text.integer("heads_per_ngram", 1, 64));
  const int d_embed = text.dim("ple_embed_dim");
  if (d_embed % c.ple.n_heads() != 0)
    text.fail("ple_embed_dim", fmt::format("a multiple of the {} n-gram heads", c.ple.n_heads()),
              *text.get("ple_embed_dim"));
  c.ple.d_row = d_embed / c.ple.n_heads();
  c.ple.conv = static_cast<int>(text.integer("ple_conv_kernel_size", 2, 16));
  c.ple.dilation = c.ple.ngram;
  c.ple.vocab_base = text.integer("ngram_vocab_size_base", 1, int64_t{1} << 32);
  c.ple.row_multiple =
      text.integer_if("make_ngram_vocab_size_divisible_by", 1, int64_t{1} << 20).value_or(128);
  c.ple.seed = text.integer_if("seed", 0, INT64_MAX).value_or(1234);
  const auto dtype = text.text_if("ple_embedding_dtype");
  c.ple.fp8 = dtype == "float8_e4m3fn";
  if (dtype && *dtype != "bfloat16" && *dtype != "float32" && *dtype != "float16" &&
      *dtype != "float8_e4m3fn")
    text.fail("ple_embedding_dtype", "\"bfloat16\" or \"float8_e4m3fn\"", *text.get("ple_embedding_dtype"));
}

void read_ids(const Section& top, const Section& text, Config& c) {
  c.bos_id = text.id_if("bos_token_id", c.vocab);
  if (const Json* eos = text.get("eos_token_id")) {
    const Json::Array one{*eos};
    for (const Json& id : eos->is_array() ? eos->as_array() : one) {
      if (!id.is_int() || id.as_int() < 0 || id.as_int() >= c.vocab)
        text.fail("eos_token_id", fmt::format("token ids below {}", c.vocab), *eos);
      c.eos_ids.push_back(static_cast<int32_t>(id.as_int()));
    }
  }
  if (c.eos_ids.empty())
    text.fail("eos_token_id", "a token id (n-grams start over at it)", std::string("nothing"));
  c.ple.eos_id = c.eos_ids.front();
  c.image_token_id = top.id_if("image_token_id", c.vocab);
  c.video_token_id = top.id_if("video_token_id", c.vocab);
  c.vision_start_id = top.id_if("vision_start_token_id", c.vocab);
  c.vision_end_id = top.id_if("vision_end_token_id", c.vocab);
  c.ple.image_id = c.image_token_id.value_or(c.ple.eos_id);
}

void read_vision(const Section& top, Config& c) {
  if (top.flag_if("language_model_only").value_or(false) || top.get("vision_config") == nullptr) return;
  if (!top.get("vision_config")->is_object())
    top.fail("vision_config", "an object", *top.get("vision_config"));
  const Section v = top.child("vision_config");
  const auto type = v.text_if("model_type");
  if (type && *type != "qwen4_exp" && *type != "qwen4_exp_vision")
    v.fail("model_type", "\"qwen4_exp_vision\"", *v.get("model_type"));
  const auto act = v.text_if("hidden_act");
  if (act && *act != "gelu_pytorch_tanh") v.fail("hidden_act", "\"gelu_pytorch_tanh\"", *v.get("hidden_act"));
  if (const Json* deep = v.get("deepstack_visual_indexes"); deep != nullptr && deep->size() != 0)
    v.fail("deepstack_visual_indexes", "[] (deepstack is not supported)", *deep);
  VisionConfig t;
  t.n_layers = v.dim("depth");
  t.d_model = v.dim("hidden_size");
  t.d_ff = v.dim("intermediate_size");
  t.n_heads = v.dim("num_heads");
  t.d_out = v.dim("out_hidden_size");
  t.n_positions = v.dim("num_position_embeddings");
  t.patch = v.dim("patch_size", 16);
  t.merge = v.dim("spatial_merge_size", 2);
  t.temporal_patch = v.dim("temporal_patch_size", 2);
  t.in_channels = v.dim("in_channels", 3);
  if (t.d_model % t.n_heads != 0 || t.d_model / t.n_heads % 4 != 0)
    v.fail("num_heads", fmt::format("heads of hidden_size {} whose width is a multiple of 4", t.d_model),
           *v.get("num_heads"));
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(t.n_positions)));
  if (side * side != t.n_positions)
    v.fail("num_position_embeddings", "a square number", *v.get("num_position_embeddings"));
  if (t.d_out != c.d_model)
    v.fail("out_hidden_size", fmt::format("hidden_size {}", c.d_model), *v.get("out_hidden_size"));
  c.vision = t;
}

void refuse_unsupported(const Section& text) {
  const auto act = text.text_if("hidden_act");
  if (act && *act != "silu" && *act != "swish") text.fail("hidden_act", "\"silu\"", *text.get("hidden_act"));
  text.only("attention_bias", false);
  text.only("attn_output_gate", true);
  text.only("use_sliding_window", false);
  text.only("mtp_use_dedicated_embeddings", false);
  text.only("norm_topk_prob", true);
  if (const auto n = text.integer_if("indexer_kv_heads", 0, kMaxDim); n && *n != 1)
    text.fail("indexer_kv_heads", "1", *text.get("indexer_kv_heads"));
  if (const auto n = text.integer_if("decoder_sparse_step", 0, kMaxDim); n && *n != 1)
    text.fail("decoder_sparse_step", "1 (every layer has experts)", *text.get("decoder_sparse_step"));
  if (const Json* dense = text.get("mlp_only_layers"); dense != nullptr && dense->size() != 0)
    text.fail("mlp_only_layers", "[] (every layer has experts)", *dense);
}

}  // namespace

int Config::n_sparse_layers() const {
  int n = 0;
  for (const LayerKind k : layers) n += k == LayerKind::SparseAttention;
  return n;
}

Config parse_config(const Json& json, const std::string& file) {
  if (!json.is_object())
    throw Error(fmt::format("{}: expected an object, found {}", file, kind_name(json.kind())));
  const Section top{json, file, ""};
  const auto type = top.text_if("model_type");
  if (!type || (*type != "qwen4_exp" && *type != "qwen4_exp_text"))
    top.fail("model_type", "\"qwen4_exp\"", type ? fmt::format("\"{}\"", *type) : "nothing");
  const bool nested = top.get("text_config") != nullptr;
  if (nested && !top.get("text_config")->is_object())
    top.fail("text_config", "an object", *top.get("text_config"));
  const Section text = nested ? top.child("text_config") : top;
  const auto text_type = text.text_if("model_type");
  if (text_type && *text_type != "qwen4_exp_text" && *text_type != "qwen4_exp")
    text.fail("model_type", "\"qwen4_exp_text\"", *text.get("model_type"));

  Config c;
  c.vocab = text.integer("vocab_size");
  c.d_model = text.dim("hidden_size");
  read_layers(text, c);
  c.streams = static_cast<int>(text.integer("hc_count", 2, 64));
  c.hc_rank = text.dim("hc_lowrank");
  c.n_heads = text.dim("num_attention_heads");
  c.n_kv_heads = text.dim("num_key_value_heads");
  c.d_head = text.dim("head_dim");
  if (c.n_heads % c.n_kv_heads != 0)
    text.fail("num_attention_heads", fmt::format("a multiple of num_key_value_heads {}", c.n_kv_heads),
              *text.get("num_attention_heads"));
  read_rope(text, c);
  c.indexer.n_heads = text.dim("indexer_n_heads");
  c.indexer.d_head = text.dim("indexer_head_dim");
  c.indexer.budget = text.dim("indexer_budget");
  c.indexer.block_ratio = static_cast<int>(text.integer("indexer_compress_ratio", 1, 64));
  if (c.indexer.budget % c.indexer.block_ratio != 0)
    text.fail("indexer_budget", fmt::format("a multiple of indexer_compress_ratio {}", c.indexer.block_ratio),
              *text.get("indexer_budget"));
  if (64 % c.indexer.block_ratio != 0)
    text.fail("indexer_compress_ratio", "a divisor of the page size 64", *text.get("indexer_compress_ratio"));
  if (c.d_rope > c.indexer.d_head)
    text.fail("indexer_head_dim", fmt::format("at least the {} rotary dims", c.d_rope),
              *text.get("indexer_head_dim"));
  read_delta(text, c);
  c.n_experts = text.dim("num_experts");
  c.top_k = text.dim("num_experts_per_tok");
  if (c.top_k > c.n_experts)
    text.fail("num_experts_per_tok", fmt::format("at most num_experts {}", c.n_experts),
              *text.get("num_experts_per_tok"));
  c.d_expert = text.dim("moe_intermediate_size");
  c.d_shared = text.dim("shared_expert_intermediate_size");
  read_ple(text, c);
  c.norm_eps = static_cast<float>(text.positive_if("rms_norm_eps").value_or(1e-6));
  c.max_positions = text.integer("max_position_embeddings", 1, int64_t{1} << 31);
  c.mtp_layers = static_cast<int>(text.integer_if("mtp_num_hidden_layers", 0, 1).value_or(0));
  if (text.get("mtp") != nullptr && text.get("mtp")->is_object()) {
    const Section mtp = text.child("mtp");
    const auto n = mtp.integer_if("num_hidden_layers", 0, 1);
    const auto flat = text.integer_if("mtp_num_hidden_layers", 0, 1);
    c.mtp_layers = static_cast<int>(agreed("num_hidden_layers", mtp, n, &text, flat).value_or(c.mtp_layers));
  }
  c.tied_embeddings = nested ? agreed("tie_word_embeddings", text, text.flag_if("tie_word_embeddings"), &top,
                                      top.flag_if("tie_word_embeddings"))
                                   .value_or(false)
                             : text.flag_if("tie_word_embeddings").value_or(false);
  refuse_unsupported(text);
  read_ids(top, text, c);
  read_vision(top, c);
  for (const Section* s : {&top, &text}) {
    if (s->get("compression_config") != nullptr)
      s->fail("compression_config", "quantization_config or nothing", std::string("compression_config"));
    if (s->get("quantization_config") == nullptr || (s == &text && !nested)) continue;
    if (!s->get("quantization_config")->is_object())
      s->fail("quantization_config", "an object", *s->get("quantization_config"));
    if (c.quantization.kind != Quantization::None &&
        !(*s->get("quantization_config") == *top.get("quantization_config")))
      s->fail("quantization_config", "what the one at the top says", *s->get("quantization_config"));
    c.quantization = parse_quantization(s->child("quantization_config"));
  }
  return c;
}

Config read_config(const Checkpoint& checkpoint) {
  if (checkpoint.gguf() != nullptr) {
    Config c = parse_gguf_config(*checkpoint.gguf());
    c.tied_embeddings = checkpoint.find("lm_head.weight") == nullptr;  // it may lie in another shard
    return c;
  }
  const std::string file = (checkpoint.folder() / "config.json").string();
  if (checkpoint.config().is_null())
    throw Error(fmt::format("{}: no such file; it says what the model is", file));
  Config c = parse_config(checkpoint.config(), file);
  // ModelOpt says it in a file of its own, older exports there alone.
  QuantizationRules apart = read_quant_config_file(checkpoint.folder());
  if (c.quantization.kind == Quantization::None)
    c.quantization = std::move(apart);
  else if (apart.kind != Quantization::None && apart.kind != c.quantization.kind)
    throw Error(
        fmt::format("{}: contradicts the quant_method \"fp8\" of {}", apart.place, c.quantization.place));
  check_stored_weights(checkpoint, c.quantization, c.ple.fp8);
  return c;
}

}  // namespace quern

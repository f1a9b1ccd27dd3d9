#include "model/config_gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace quern {
namespace {

struct Keys {
  const GgufFile& f;

  std::string full(std::string_view key) const { return fmt::format("qwen4exp.{}", key); }
  bool has(std::string_view key) const { return f.find(full(key)) != nullptr; }
  [[noreturn]] void fail(std::string_view key, std::string_view expected, int64_t found) const {
    f.fail(full(key), fmt::format("expected {}, found {}", expected, found));
  }
  int64_t integer(std::string_view key, int64_t low = 1, int64_t high = 1 << 24) const {
    const int64_t v = f.integer(full(key));
    if (v < low || v > high) fail(key, fmt::format("an integer from {} to {}", low, high), v);
    return v;
  }
  int dim(std::string_view key) const { return static_cast<int>(integer(key)); }
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t low = 1, int64_t high = 1 << 24) const {
    return has(key) ? integer(key, low, high) : otherwise;
  }
  double positive(std::string_view key) const {
    const double v = f.number(full(key));
    if (!(v > 0 && v < 1e30)) f.fail(full(key), fmt::format("expected a positive number, found {}", v));
    return v;
  }
  std::vector<int64_t> list(std::string_view key) const { return f.integers(full(key)); }
  // One number, or an array with the same number for every layer that has what it counts (0 for the others).
  int dim_or_equal_dims(std::string_view key) const {
    if (f.find(full(key)) != nullptr && f.find(full(key))->type != GgufType::Array) return dim(key);
    int64_t found = 0;
    for (const int64_t v : list(key)) {
      if (v < 0 || v > 1 << 24) fail(key, "integers from 0 to 2^24", v);
      if (v != 0 && found != 0 && v != found)
        f.fail(full(key), fmt::format("expected the same number for every layer, found {} and {}", found, v));
      if (v != 0) found = v;
    }
    if (found == 0) f.fail(full(key), "expected a number above 0");
    return static_cast<int>(found);
  }
  // What the architecture does one way only: absent, or this.
  void only(std::string_view key, double expected) const {
    if (!has(key)) return;
    const GgufValue& v = *f.find(full(key));
    const double found = v.type == GgufType::Bool ? static_cast<double>(v.bits) : f.number(full(key));
    if (found != expected) f.fail(full(key), fmt::format("expected {}, found {}", expected, found));
  }
};

void read_layers(const Keys& k, Config& c) {
  const int64_t drafts = k.has("nextn_predict_layers") ? k.integer("nextn_predict_layers", 0, 1) : 0;
  c.n_layers = static_cast<int>(k.integer("block_count", 1 + drafts, 4096) - drafts);
  c.mtp_layers = static_cast<int>(drafts);
  if (k.has("attention.recurrent_layers")) {
    // Booleans or integers, one a layer at least.
    const std::string key = k.full("attention.recurrent_layers");
    const GgufValue& v = *k.f.find(key);
    std::vector<int64_t> recurrent;
    if (v.type == GgufType::Array && v.item_type == GgufType::Bool) {
      for (const std::byte b : v.raw) recurrent.push_back(std::to_integer<int64_t>(b));
    } else {
      recurrent = k.f.integers(key);
    }
    if (recurrent.size() < static_cast<size_t>(c.n_layers) ||
        std::any_of(recurrent.begin(), recurrent.end(), [](int64_t r) { return r != 0 && r != 1; }))
      k.f.fail(key, fmt::format("expected {} booleans", c.n_layers));
    for (int i = 0; i < c.n_layers; ++i)
      c.layers.push_back(recurrent[static_cast<size_t>(i)] != 0 ? LayerKind::DeltaNet
                                                                : LayerKind::SparseAttention);
    return;
  }
  const int64_t interval = k.integer_or("full_attention_interval", 4, 1, 4096);
  for (int i = 0; i < c.n_layers; ++i)
    c.layers.push_back((i + 1) % interval == 0 ? LayerKind::SparseAttention : LayerKind::DeltaNet);
}

void read_rope(const Keys& k, Config& c) {
  const std::string type = k.full("rope.scaling.type");
  if (k.f.find(type) != nullptr && k.f.text(type) != "none")
    k.f.fail(type, fmt::format("expected 'none' (no other kind is supported), found '{}'",
                               k.f.text(type).substr(0, 40)));
  c.rope_theta = k.positive("rope.freq_base");
  for (const std::string_view key : {"rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"})
    k.only(key, 1);
  c.d_rope = k.dim("rope.dimension_count");
  if (c.d_rope % 2 != 0 || c.d_rope > c.d_head)
    k.fail("rope.dimension_count", fmt::format("an even number up to {}", c.d_head), c.d_rope);
  std::vector<int64_t> sections = k.list("rope.dimension_sections");
  while (sections.size() > 3 && sections.back() == 0) sections.pop_back();
  int64_t sum = 0;
  for (const int64_t s : sections) {
    if (s < 0 || s > c.d_rope) k.fail("rope.dimension_sections", "counts of rotary pairs", s);
    sum += s;
    c.mrope_section.push_back(static_cast<int>(s));
  }
  if (sections.size() != 3 || sum != c.d_rope / 2)
    k.fail("rope.dimension_sections", fmt::format("three counts with a sum of {}", c.d_rope / 2), sum);
}

void read_delta(const Keys& k, Config& c) {
  DeltaNetConfig& d = c.delta;
  d.n_key_heads = k.dim("ssm.group_count");
  d.n_value_heads = k.dim("ssm.time_step_rank");
  d.d_key = d.d_value = k.dim("ssm.state_size");
  d.conv = static_cast<int>(k.integer("ssm.conv_kernel", 2, 16));
  d.gate = OutputGate::Sigmoid;  // the architecture's only one
  d.tiled_value_heads = true;
  if (d.n_value_heads % d.n_key_heads != 0)
    k.fail("ssm.time_step_rank", fmt::format("a multiple of ssm.group_count {}", d.n_key_heads),
           d.n_value_heads);
  if (const int64_t inner = k.integer_or("ssm.inner_size", d.value_width(), 1, int64_t{1} << 40);
      inner != d.value_width())
    k.fail("ssm.inner_size", fmt::format("{} heads of {}", d.n_value_heads, d.d_value), inner);
}

void read_ple(const Keys& k, Config& c) {
  PleConfig& p = c.ple;
  const std::vector<int64_t> layers = k.list("ple.layers");
  if (layers.size() != 1 || layers[0] < 0 || layers[0] >= c.n_layers)
    k.f.fail(k.full("ple.layers"), fmt::format("expected one layer from 0 to {}", c.n_layers - 1));
  p.layer = static_cast<int>(layers[0]);
  p.ngram = static_cast<int>(k.integer("ple.ngram_size", 3, 3));
  p.heads_per_ngram = static_cast<int>(k.integer("ple.heads_per_ngram", 1, 64));
  p.d_row = k.dim("embedding_length_per_layer_input");
  p.conv = static_cast<int>(k.integer("ple.conv_kernel", 2, 16));
  p.dilation = p.ngram;
  p.eos_id = static_cast<int32_t>(k.integer("ple.eos_token_id", 0, c.vocab - 1));
  p.image_id = k.has("ple.image_token_id")
                   ? static_cast<int32_t>(k.integer("ple.image_token_id", 0, c.vocab - 1))
                   : p.eos_id;
  const std::vector<int64_t> vocab = k.list("ple.head_vocab_sizes");
  if (vocab.empty() || vocab[0] < 1 || vocab[0] > int64_t{1} << 32)
    k.f.fail(k.full("ple.head_vocab_sizes"), "expected sizes from 1 to 2^32");
  p.vocab_base = vocab[0];  // the recipe's base is not in the file; its first prime serves as well
}

}  // namespace

Config parse_gguf_config(const GgufFile& file) {
  const Keys k{file};
  if (file.text("general.architecture") != "qwen4exp")
    file.fail("general.architecture", fmt::format("expected 'qwen4exp', found '{}'",
                                                  file.text("general.architecture").substr(0, 40)));
  Config c;
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (file.find("qwen4exp.nextn_shared_target_tensors") != nullptr)
    file.fail(
        "qwen4exp.nextn_shared_target_tensors",
        "this file is a draft block that borrows another file's embedding and head; draft blocks in files of "
        "their own are not supported");
  if (k.has("vocab_size"))
    c.vocab = k.integer("vocab_size");
  else if (tokens != nullptr && !tokens->strings.empty())
    c.vocab = static_cast<int64_t>(tokens->strings.size());
  else
    file.fail("tokenizer.ggml.tokens", "is missing, and so is qwen4exp.vocab_size");
  c.d_model = k.dim("embedding_length");
  read_layers(k, c);
  c.streams = static_cast<int>(k.integer("hyper_connection.count", 2, 64));
  c.hc_rank = k.dim("hyper_connection.low_rank");
  c.n_heads = k.dim_or_equal_dims("attention.head_count");
  c.n_kv_heads = k.dim_or_equal_dims("attention.head_count_kv");
  c.d_head = k.dim("attention.key_length");
  if (c.n_heads % c.n_kv_heads != 0)
    k.fail("attention.head_count", fmt::format("a multiple of attention.head_count_kv {}", c.n_kv_heads),
           c.n_heads);
  if (const int64_t d = k.integer_or("attention.value_length", c.d_head); d != c.d_head)
    k.fail("attention.value_length", fmt::format("attention.key_length {}", c.d_head), d);
  read_rope(k, c);
  c.indexer.n_heads = k.dim("attention.indexer.head_count");
  c.indexer.d_head = k.dim("attention.indexer.key_length");
  c.indexer.budget = k.dim("attention.indexer.top_k");
  const std::vector<int64_t> ratios = k.list("attention.compress_ratios");
  for (int i = 0; i < c.n_layers; ++i) {
    if (c.layers[static_cast<size_t>(i)] != LayerKind::SparseAttention) continue;
    const int64_t ratio = static_cast<size_t>(i) < ratios.size() ? ratios[static_cast<size_t>(i)] : -1;
    if (ratio < 1 || 64 % ratio != 0 || (c.indexer.block_ratio != 0 && ratio != c.indexer.block_ratio))
      k.fail("attention.compress_ratios",
             fmt::format("a divisor of 64 for every sparse layer, the same for all; layer {}", i), ratio);
    c.indexer.block_ratio = static_cast<int>(ratio);
  }
  if (c.indexer.block_ratio == 0) c.indexer.block_ratio = 4;  // no sparse layer
  if (c.indexer.budget % c.indexer.block_ratio != 0)
    k.fail("attention.indexer.top_k", fmt::format("a multiple of the block of {}", c.indexer.block_ratio),
           c.indexer.budget);
  if (c.d_rope > c.indexer.d_head)
    k.fail("attention.indexer.key_length", fmt::format("at least the {} rotary dims", c.d_rope),
           c.indexer.d_head);
  read_delta(k, c);
  c.n_experts = k.dim("expert_count");
  c.top_k = k.dim("expert_used_count");
  if (c.top_k > c.n_experts)
    k.fail("expert_used_count", fmt::format("at most expert_count {}", c.n_experts), c.top_k);
  c.d_expert = k.dim_or_equal_dims("expert_feed_forward_length");
  c.d_shared = k.dim_or_equal_dims("expert_shared_feed_forward_length");
  k.only("expert_gating_func", 1);  // softmax
  k.only("expert_weights_norm", 1);
  if (k.has("expert_weights_scale") && k.f.number(k.full("expert_weights_scale")) != 0)  // 0: none
    k.only("expert_weights_scale", 1);
  read_ple(k, c);
  c.norm_eps = static_cast<float>(k.positive("attention.layer_norm_rms_epsilon"));
  c.max_positions = k.integer("context_length", 1, int64_t{1} << 31);
  c.eos_ids = {c.ple.eos_id};
  if (c.ple.image_id != c.ple.eos_id) c.image_token_id = c.ple.image_id;
  return c;
}

}  // namespace quern

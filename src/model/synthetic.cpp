#include "model/synthetic.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "model/ngram_hash.h"
#include "model/tensor_list.h"

namespace quern {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t hash(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

// A stream of random numbers for one row.
struct Random {
  uint64_t state;
  uint64_t next() { return mix(state += 0x9E3779B97F4A7C15u); }
  // Nearly normal, mean 0 and variance 1: the sum of four 16-bit uniform numbers; within ±3.47.
  float normal() {
    const uint64_t r = next();
    const auto sum = static_cast<int>((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48));
    return static_cast<float>(sum - 131070) * 2.6428e-5f;  // 1 / (65536 · sqrt(4/12))
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
};

struct Distribution {
  float mean = 0, deviation = 0;
  bool decay = false;  // log of a uniform number in [0.1, 16]
};

Distribution distribution_of(const ListedTensor& t) {
  const auto has = [&](std::string_view part) { return t.name.find(part) != std::string::npos; };
  const float fan_in = static_cast<float>(t.shape.back());
  if (t.name.ends_with("A_log")) return {0, 0, true};
  if (t.name.ends_with("dt_bias")) return {0, 0.5f};
  if (has("conv1d")) return {0, 0.3f};
  if (t.name.ends_with("linear_attn.norm.weight")) return {1, 0.1f};
  if (t.shape.size() == 1) return {0, 0.1f};
  if (has("embed_tokens") || has("ngram_embedding")) return {0, 1};
  if (has("block_inject") || has("input_mix_weight_up")) return {0, 0.3f * std::sqrt(4.0f / fan_in)};
  return {0, 1.0f / std::sqrt(fan_in)};
}

std::vector<std::byte> bytes_of(std::span<const int64_t> values) {
  std::vector<std::byte> out(values.size() * 8);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

Json object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json o;
  for (const auto& [key, value] : members) o.set(key, value);
  return o;
}

}  // namespace

Json synthetic_config(const SyntheticOptions& o) {
  const bool full = o.full;
  Json::Array types;
  for (int i = 0; i < o.layers; ++i)
    types.emplace_back((i + 1) % 4 == 0 ? "full_attention" : "linear_attention");
  const Json rope = object({{"rope_type", "default"},
                            {"rope_theta", 1e7},
                            {"partial_rotary_factor", 0.25},
                            {"mrope_section", Json::Array{11, 11, 10}},
                            {"mrope_interleaved", true}});
  const int experts = o.experts > 0 ? o.experts : full ? 512 : 16;
  const int eos = full ? 248044 : 1000;
  const Json text = object({
      {"model_type", "qwen4_exp_text"},
      {"vocab_size", full ? 248320 : 1024},
      {"hidden_size", full ? 2560 : 256},
      {"num_hidden_layers", o.layers},
      {"layer_types", types},
      {"num_attention_heads", full ? 24 : 6},
      {"num_key_value_heads", 2},
      {"head_dim", 256},
      {"linear_num_key_heads", full ? 16 : 2},
      {"linear_num_value_heads", full ? 48 : 6},
      {"linear_key_head_dim", 128},
      {"linear_value_head_dim", 128},
      {"linear_conv_kernel_dim", 4},
      {"output_gate_type", "sigmoid"},
      {"hidden_act", "silu"},
      {"num_experts", o.experts > 0 ? o.experts
                      : full        ? 512
                                    : 16},
      {"num_experts_per_tok", std::min(experts, full ? 10 : 4)},
      {"moe_intermediate_size", full ? 640 : 96},
      {"shared_expert_intermediate_size", full ? 640 : 96},
      {"norm_topk_prob", true},
      {"hc_count", 4},
      {"hc_lowrank", full ? 320 : 32},
      {"rms_norm_eps", 1e-6},
      {"ple_layer_ids", Json::Array{2}},
      {"ple_embed_dim", full ? 2560 : 256},
      {"ple_conv_kernel_size", 4},
      {"ngram_size", 3},
      {"heads_per_ngram", 8},
      {"ngram_vocab_size_base", o.ngram_base > 0 ? o.ngram_base : int64_t{full ? 20000 : 500}},
      {"split_ngram_parts", full ? 128 : 4},
      {"make_ngram_vocab_size_divisible_by", 128},
      {"seed", 1234},
      {"indexer_n_heads", 4},
      {"indexer_kv_heads", 1},
      {"indexer_head_dim", 128},
      {"indexer_budget", full ? 2048 : 64},
      {"indexer_compress_ratio", 4},
      {"max_position_embeddings", full ? 262144 : 32768},
      {"rope_parameters", rope},
      {"bos_token_id", nullptr},
      {"eos_token_id", eos},
      {"mtp_num_hidden_layers", o.mtp ? 1 : 0},
      {"tie_word_embeddings", false},
  });
  return object({{"architectures", Json::Array{"Qwen4ExpForConditionalGeneration"}},
                 {"model_type", "qwen4_exp"},
                 {"dtype", "bfloat16"},
                 {"tie_word_embeddings", false},
                 {"language_model_only", true},
                 {"image_token_id", eos + 12},
                 {"video_token_id", eos + 13},
                 {"vision_start_token_id", eos + 9},
                 {"vision_end_token_id", eos + 10},
                 {"text_config", text}});
}

namespace {

using Rows = std::function<void(int64_t begin, int64_t end, float* out)>;

Rows random_rows(const ListedTensor& listed, uint64_t seed) {
  const Distribution d = distribution_of(listed);
  const uint64_t key = mix(seed * 0x9E3779B97F4A7C15u + hash(listed.name));
  return [d, key, cols = listed.shape.back()](int64_t begin, int64_t end, float* out) {
    for (int64_t r = begin; r < end; ++r) {
      Random random{mix(key ^ mix(static_cast<uint64_t>(r) + 1))};
      for (int64_t i = 0; i < cols; ++i)
        *out++ = d.decay ? std::log(random.uniform() * 15.9f + 0.1f) : d.mean + d.deviation * random.normal();
    }
  };
}

}  // namespace

std::vector<ExportTensor> synthetic_tensors(const Config& config, uint64_t seed, int64_t table_parts) {
  const NgramTable table = compute_ngram_table(config);
  std::vector<ExportTensor> tensors;
  for (const ListedTensor& listed : list_tensors(config)) {
    ExportTensor t;
    t.name = listed.name;
    t.shape = listed.shape;
    t.dtype = DType::BF16;
    if (listed.group == TensorGroup::Constant) {
      t.dtype = DType::I64;
      t.owned =
          bytes_of(listed.name.ends_with("multipliers")   ? std::span<const int64_t>(table.hash.multiplier)
                   : listed.name.ends_with("vocab_sizes") ? std::span<const int64_t>(table.hash.vocab)
                                                          : std::span<const int64_t>(table.hash.offset));
    } else {
      t.rows = random_rows(listed, seed);
    }
    if (listed.group == TensorGroup::Table) {
      for (ExportTensor& part : split_rows(t, table_parts)) tensors.push_back(std::move(part));
      continue;
    }
    tensors.push_back(std::move(t));
  }
  return tensors;
}

std::vector<SourceTensor> synthetic_sources(const Config& config, uint64_t seed) {
  std::vector<SourceTensor> sources;
  for (const ListedTensor& listed : list_tensors(config)) {
    if (listed.group == TensorGroup::Constant) continue;
    SourceTensor s;
    s.name = listed.name;
    s.shape = listed.shape;
    s.group = listed.group;
    s.dtype = DType::BF16;
    s.self_contained = false;  // no bytes lie anywhere
    const Rows rows = random_rows(listed, seed);
    if (!s.name.ends_with(".experts.gate_up_proj")) {
      s.decode = [rows](int64_t r, float* out) { rows(r, r + 1, out); };
      sources.push_back(std::move(s));
      continue;
    }
    const int64_t n = config.d_expert;
    s.shape[1] = n;
    for (const int64_t half : {0, 1}) {
      s.name = listed.name.substr(0, listed.name.rfind('.')) + (half == 0 ? ".gate_proj" : ".up_proj");
      s.decode = [rows, n, half](int64_t r, float* out) {
        const int64_t row = (r / n * 2 + half) * n + r % n;
        rows(row, row + 1, out);
      };
      sources.push_back(s);
    }
  }
  return sources;
}

TokenizerSpec synthetic_tokenizer(const Config& config) {
  TokenizerSpec spec;
  spec.name = "synthetic";
  spec.pattern = SplitPattern::Qwen35;
  spec.nfc = true;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  for (int id = 256; id < config.ple.eos_id; ++id) {
    const int n = id - 256;
    const auto letter = [](int i) {
      return static_cast<char>(i < 26 ? 'a' + i : i < 52 ? 'A' + i - 26 : '0' + i - 52);
    };
    // 62³ = 238 328 strings of three; the rest get a fourth.
    std::string token = {letter(n % 62), letter(n / 62 % 62), letter(n / 3844 % 62)};
    if (n >= 62 * 62 * 62) token += '_';
    spec.tokens.push_back(token);
  }
  // In the released order; the gaps are tokens this vocabulary has no use for.
  const std::pair<int, const char*> kControl[] = {
      {0, "<|endoftext|>"},   {1, "<|im_start|>"},     {2, "<|im_end|>"},        {9, "<|vision_start|>"},
      {10, "<|vision_end|>"}, {12, "<|image_pad|>"},   {13, "<|video_pad|>"},    {14, "<tool_call>"},
      {15, "</tool_call>"},   {16, "<tool_response>"}, {17, "</tool_response>"}, {18, "<think>"},
      {19, "</think>"}};
  for (const auto& [offset, text] : kControl) {
    AddedToken a;
    a.id = config.ple.eos_id + offset;
    a.text = text;
    a.special = offset < 14;
    spec.added.push_back(std::move(a));
  }
  return spec;
}

std::string synthetic_chat_template() {
  return "{%- for message in messages -%}\n{{- '<|im_start|>' + message.role + '\\n' + message.content + "
         "'<|im_end|>\\n' -}}\n"
         "{%- endfor -%}\n{%- if add_generation_prompt -%}\n{{- '<|im_start|>assistant\\n' -}}\n{%- endif "
         "-%}";
}

Json synthetic_tokenizer_config(const Config& config) {
  return object({{"tokenizer_class", "Qwen2TokenizerFast"},
                 {"eos_token", "<|im_end|>"},
                 {"pad_token", "<|endoftext|>"},
                 {"add_bos_token", false},
                 {"model_max_length", config.max_positions},
                 {"clean_up_tokenization_spaces", false},
                 {"chat_template", synthetic_chat_template()}});
}

Json synthetic_generation_config(const Config& config) {
  return object({{"eos_token_id", Json::Array{config.ple.eos_id + 2, config.ple.eos_id}},
                 {"pad_token_id", config.ple.eos_id},
                 {"do_sample", true},
                 {"temperature", 1.0},
                 {"top_p", 0.95},
                 {"top_k", 20}});
}

}  // namespace quern

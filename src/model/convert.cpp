#include "model/convert.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "checkpoint/gguf_names.h"
#include "ops/quant_encode.h"

namespace quern {
namespace {

using IndexMap = std::function<int64_t(int64_t)>;  // of the target to that of the source; empty: the same

// Where the target's value head `head` lies in the source, when one order is tiled and the other grouped.
int64_t source_head(const DeltaNetConfig& source, int64_t head) {
  const int64_t keys = source.n_key_heads, per_key = source.n_value_heads / source.n_key_heads;
  // Tiled source: grouped head g·R + r lies at r·K + g. Grouped source: tiled head r·K + g lies at g·R + r.
  return source.tiled_value_heads ? head % per_key * keys + head / per_key
                                  : head % keys * per_key + head / keys;
}

struct HeadMaps {
  IndexMap rows, cols;
};

// The re-ordering of value heads that a tensor of the delta net needs.
HeadMaps head_maps(const DeltaNetConfig& d, std::string_view name) {
  const auto by_head = [d](int64_t first, int64_t width) -> IndexMap {
    return [=](int64_t i) {
      return i < first ? i : first + source_head(d, (i - first) / width) * width + (i - first) % width;
    };
  };
  if (name.ends_with("linear_attn.in_proj_qkv.weight") || name.ends_with("linear_attn.conv1d.weight"))
    return {by_head(int64_t{2} * d.key_width(), d.d_value), {}};
  if (name.ends_with("linear_attn.in_proj_z.weight")) return {by_head(0, d.d_value), {}};
  if (name.ends_with("linear_attn.in_proj_a.weight") || name.ends_with("linear_attn.in_proj_b.weight"))
    return {by_head(0, 1), {}};
  if (name.ends_with("linear_attn.out_proj.weight")) return {{}, by_head(0, d.d_value)};
  if (name.ends_with("linear_attn.A_log") || name.ends_with("linear_attn.dt_bias"))
    return {{}, by_head(0, 1)};
  return {};
}

float plain_value(WeightForm form, float v) {
  switch (form) {
    case WeightForm::OnePlus:
      return v - 1;
    case WeightForm::NegExp:
      return static_cast<float>(std::log(-static_cast<double>(v)));
    default:
      return v;
  }
}
float stored_value(WeightForm form, float w) {
  switch (form) {
    case WeightForm::OnePlus:
      return 1 + w;
    case WeightForm::NegExp:
      return static_cast<float>(-std::exp(static_cast<double>(w)));
    default:
      return w;
  }
}

// Rows [first, first + n) of the source in the target's form, order and type.
ExportTensor piece(const SourceTensor& s, std::string name, std::vector<int64_t> shape, DType dtype,
                   WeightForm form, const HeadMaps& maps, int64_t first) {
  ExportTensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.dtype = dtype;
  const int64_t k = s.cols();
  const auto source_row = [maps, first](int64_t r) { return maps.rows ? maps.rows(first + r) : first + r; };
  if (s.self_contained && s.dtype == dtype && s.form == form && !maps.cols) {
    t.encoded = [&s, source_row, size = row_bytes(dtype, k)](int64_t begin, int64_t end, std::byte* out) {
      for (int64_t r = begin; r < end; ++r, out += size)
        std::memcpy(out, s.row(source_row(r)), static_cast<size_t>(size));
    };
    return t;
  }
  t.rows = [&s, source_row, maps, form, k](int64_t begin, int64_t end, float* out) {
    std::vector<float> row(static_cast<size_t>(maps.cols ? k : 0));
    for (int64_t r = begin; r < end; ++r, out += k) {
      s.decode(source_row(r), maps.cols ? row.data() : out);
      if (maps.cols) {
        for (int64_t i = 0; i < k; ++i) out[i] = row[static_cast<size_t>(maps.cols(i))];
      }
      if (s.form == form) continue;
      for (int64_t i = 0; i < k; ++i) out[i] = stored_value(form, plain_value(s.form, out[i]));
    }
  };
  return t;
}

// The n of "every n-th layer is sparse attention", which is how GGUF says where they are.
int attention_interval(const Config& c) {
  for (int n = 1; n <= c.n_layers + 1; ++n) {
    bool fits = true;
    for (int i = 0; i < c.n_layers; ++i)
      fits = fits && ((i + 1) % n == 0) == (c.layers[static_cast<size_t>(i)] == LayerKind::SparseAttention);
    if (fits) return n;
  }
  throw Error(
      "convert: GGUF can only say that every n-th layer is sparse attention; this model's are placed "
      "otherwise");
}

bool is_plain(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }

// Small matrices and what is no matrix stay as precise as the source.
bool is_kept(const SourceTensor& s) {
  for (const std::string_view end :
       {"mlp.gate.weight", "block_inject_weight.weight", "in_proj_a.weight", "in_proj_b.weight",
        "index_qk_proj.weight", "shared_expert_gate.weight"}) {
    if (s.name.ends_with(end)) return true;
  }
  return false;
}
bool is_vector(const SourceTensor& s) {
  return s.shape.size() == 1 || s.name.find("conv1d") != std::string::npos;
}

DType type_of(const SourceTensor& s, const Recipe& recipe, std::string_view out_name) {
  DType type = recipe.type;
  if (is_vector(s)) {
    type = DType::F32;
  } else if (is_kept(s)) {
    // 16 bits hold a BF16 source exactly; anything wider is kept wide, F32 when asked for.
    if (!is_plain(type)) type = DType::BF16;
    if (s.dtype == DType::F32 || s.dtype == DType::F16)
      type = recipe.type == DType::BF16 ? DType::BF16 : DType::F32;
  } else if (!is_plain(type)) {
    const bool expert = s.group == TensorGroup::Expert || s.group == TensorGroup::MtpExpert;
    if (s.group == TensorGroup::Table)
      type = type == DType::Q8_0 ? DType::Q8_0 : DType::IQ4_NL;
    else if (!expert)
      type = DType::Q8_0;
  }
  for (const auto& [pattern, wanted] : recipe.overrides) {
    if (matches(pattern, out_name)) type = wanted;
  }
  return fitting_type(type, s.cols());
}

}  // namespace

DType parse_type(std::string_view text) {
  std::string upper, all;
  for (const char c : text) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const auto d = static_cast<DType>(i);
    if (!can_encode(d) || gguf_type_id(d) < 0) continue;
    if (name(d) == upper) return d;
    std::string lower(name(d));
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    all += (all.empty() ? "" : ", ") + lower;
  }
  throw Error(fmt::format("type '{}': expected one of {}", text, all));
}

DType fitting_type(DType type, int64_t k) {
  if (k % dtype_info(type).block == 0) return type;
  DType next = DType::BF16;
  switch (type) {
    case DType::Q2_K:
    case DType::Q3_K:
      next = DType::Q4_0;
      break;
    case DType::Q4_K:
      next = DType::Q5_0;
      break;
    case DType::Q5_K:
      next = DType::Q5_1;
      break;
    case DType::Q6_K:
      next = DType::Q8_0;
      break;
    case DType::IQ4_XS:
    case DType::NVFP4:
    case DType::IQ2_XXS:
    case DType::IQ2_XS:
    case DType::IQ2_S:
    case DType::IQ3_XXS:
    case DType::IQ3_S:
      next = DType::IQ4_NL;
      break;
    default:
      break;
  }
  return k % dtype_info(next).block == 0 ? next : DType::BF16;
}

bool matches(std::string_view pattern, std::string_view name) {
  // The classic walk with one point of return: the last star.
  size_t p = 0, n = 0, star = std::string_view::npos, mark = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<ExportTensor> gguf_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                       const Recipe& recipe) {
  const GgufLayout layout{config.n_layers, config.ple.layer};
  std::vector<ExportTensor> out;
  const auto find = [&](std::string_view name) {
    const auto at =
        std::find_if(sources.begin(), sources.end(), [&](const SourceTensor& s) { return s.name == name; });
    QUERN_CHECK(at != sources.end(), "convert: no source " + std::string(name));
    return &*at;
  };
  for (const SourceTensor& s : sources) {
    const HeadMaps maps = config.delta.tiled_value_heads ? HeadMaps{} : head_maps(config.delta, s.name);
    const auto add = [&](const std::string& logical, std::vector<int64_t> shape, int64_t first) {
      const std::string name = gguf_of_logical(logical, layout);
      QUERN_CHECK(!name.empty(), "convert: GGUF has no name for " + logical);
      out.push_back(
          piece(s, name, std::move(shape), type_of(s, recipe, name), gguf_form(logical), maps, first));
    };
    if (s.name.ends_with("index_qk_proj.weight")) {
      const std::string stem = s.name.substr(0, s.name.rfind("index_qk_proj"));
      const int64_t q = int64_t{config.indexer.n_heads} * config.indexer.d_head;
      add(stem + "q_proj.weight", {q, s.cols()}, 0);
      add(stem + "k_proj.weight", {config.indexer.d_head, s.cols()}, q);
    } else if (s.name == "mtp.fc_embedding.weight") {
      const SourceTensor* hidden = find("mtp.fc_hidden.weight");
      ExportTensor t;
      t.name = gguf_of_logical("mtp.eh_proj.weight", layout);
      t.shape = {config.d_model, 2 * int64_t{config.d_model}};
      t.dtype = fitting_type(type_of(s, recipe, t.name), t.cols());
      t.rows = [&s, hidden, k = s.cols()](int64_t begin, int64_t end, float* to) {
        for (int64_t r = begin; r < end; ++r, to += 2 * k) {
          s.decode(r, to);
          hidden->decode(r, to + k);
        }
      };
      out.push_back(std::move(t));
    } else if (s.name == "mtp.fc_hidden.weight") {
      continue;
    } else {
      std::vector<int64_t> shape = s.shape;
      if (s.shape.size() == 3 && s.shape[1] == 1) shape = {s.shape[0], s.shape[2]};  // conv1d
      if (s.name.ends_with("shared_expert_gate.weight")) shape = {s.shape.back()};   // one row
      const bool expert = s.name.find(".experts.") != std::string::npos;
      add(expert ? s.name + ".weight" : s.name, std::move(shape), 0);
    }
  }
  return out;
}

void write_gguf_config(GgufKeys& keys, const Config& c, const NgramHash& hash, bool has_draft, DType type) {
  const std::string p = "qwen4exp.";
  keys.text("general.architecture", "qwen4exp");
  keys.text("general.type", "model");
  keys.u32("general.quantization_version", 2);
  keys.text("general.size_label", fmt::format("{}x{}", c.n_experts, name(type)));
  const int blocks = c.n_layers + (has_draft ? 1 : 0);
  keys.u32(p + "block_count", blocks);
  keys.u32(p + "context_length", c.max_positions);
  keys.u32(p + "embedding_length", c.d_model);
  keys.u32(p + "attention.head_count", c.n_heads);
  keys.u32(p + "attention.head_count_kv", c.n_kv_heads);
  keys.u32(p + "attention.key_length", c.d_head);
  keys.u32(p + "attention.value_length", c.d_head);
  keys.f32(p + "attention.layer_norm_rms_epsilon", static_cast<double>(c.norm_eps));
  keys.u32(p + "rope.dimension_count", c.d_rope);
  std::vector<int64_t> sections(c.mrope_section.begin(), c.mrope_section.end());
  sections.push_back(0);
  keys.i32s(p + "rope.dimension_sections", sections);
  keys.f32(p + "rope.freq_base", c.rope_theta);
  keys.u32(p + "expert_count", c.n_experts);
  keys.u32(p + "expert_used_count", c.top_k);
  keys.u32(p + "expert_feed_forward_length", c.d_expert);
  keys.u32(p + "expert_shared_feed_forward_length", c.d_shared);
  keys.u32(p + "ssm.conv_kernel", c.delta.conv);
  keys.u32(p + "ssm.state_size", c.delta.d_value);
  keys.u32(p + "ssm.group_count", c.delta.n_key_heads);
  keys.u32(p + "ssm.time_step_rank", c.delta.n_value_heads);
  keys.u32(p + "ssm.inner_size", c.delta.value_width());
  keys.u32(p + "full_attention_interval", attention_interval(c));
  keys.u32(p + "hyper_connection.count", c.streams);
  keys.u32(p + "hyper_connection.low_rank", c.hc_rank);
  keys.u32(p + "attention.indexer.head_count", c.indexer.n_heads);
  keys.u32(p + "attention.indexer.key_length", c.indexer.d_head);
  keys.u32(p + "attention.indexer.top_k", c.indexer.budget);
  std::vector<int64_t> ratios;
  for (int i = 0; i < blocks; ++i)
    ratios.push_back(i < c.n_layers && c.layers[static_cast<size_t>(i)] == LayerKind::SparseAttention
                         ? c.indexer.block_ratio
                         : 0);
  keys.i32s(p + "attention.compress_ratios", ratios);
  keys.i32s(p + "ple.layers", std::vector<int64_t>{c.ple.layer});
  keys.u32(p + "ple.ngram_size", c.ple.ngram);
  keys.u32(p + "ple.heads_per_ngram", c.ple.heads_per_ngram);
  keys.u32(p + "ple.conv_kernel", c.ple.conv);
  keys.u32(p + "ple.eos_token_id", c.ple.eos_id);
  if (c.image_token_id) keys.u32(p + "ple.image_token_id", *c.image_token_id);
  keys.u32(p + "embedding_length_per_layer_input", c.ple.d_row);
  keys.u64s(p + "ple.layer_multipliers", hash.multiplier);
  keys.u64s(p + "ple.head_vocab_sizes", hash.vocab);
  keys.u64s(p + "ple.head_offsets", hash.offset);
  if (has_draft) keys.u32(p + "nextn_predict_layers", 1);
}

std::vector<ExportTensor> hugging_face_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                               const NgramHash& hash, const Recipe& recipe,
                                               int64_t table_parts) {
  QUERN_CHECK(is_plain(recipe.type), "a Hugging Face folder holds plain numbers");
  std::vector<ExportTensor> out;
  for (size_t i = 0; i < sources.size(); ++i) {
    const SourceTensor& s = sources[i];
    const HeadMaps maps = config.delta.tiled_value_heads ? head_maps(config.delta, s.name) : HeadMaps{};
    if (s.name.ends_with(".experts.up_proj")) continue;  // with its gate
    if (s.name.ends_with(".experts.gate_proj")) {
      const SourceTensor& up = sources[i + 1];
      QUERN_CHECK(up.name.ends_with(".experts.up_proj"), "convert: up_proj does not follow gate_proj");
      ExportTensor t;
      t.name = hugging_face_name(s.name.substr(0, s.name.size() - 9) + "gate_up_proj");
      t.shape = {s.shape[0], 2 * s.shape[1], s.shape[2]};
      t.dtype = recipe.type;
      t.rows = [&s, &up, n = s.shape[1], k = s.cols()](int64_t begin, int64_t end, float* to) {
        for (int64_t r = begin; r < end; ++r, to += k) {
          const int64_t e = r / (2 * n), i = r % (2 * n);
          (i < n ? s : up).decode(e * n + i % n, to);
        }
      };
      out.push_back(std::move(t));
      continue;
    }
    DType type = recipe.type;
    for (const auto& [pattern, wanted] : recipe.overrides) {
      if (is_plain(wanted) && matches(pattern, hugging_face_name(s.name))) type = wanted;
    }
    ExportTensor t = piece(s, hugging_face_name(s.name), s.shape, type, WeightForm::Plain, maps, 0);
    if (s.group != TensorGroup::Table) {
      out.push_back(std::move(t));
      continue;
    }
    if (t.encoded) {  // split_rows takes numbers
      t.encoded = nullptr;
      t.rows = [&s, k = s.cols()](int64_t begin, int64_t end, float* to) {
        for (int64_t r = begin; r < end; ++r, to += k) s.decode(r, to);
      };
    }
    for (ExportTensor& part : split_rows(t, table_parts)) out.push_back(std::move(part));
    const std::string stem = hugging_face_name(s.name.substr(0, s.name.find("ngram_embedding")));
    const auto constants = [&](const char* which, std::span<const int64_t> values) {
      ExportTensor c;
      c.name = stem + which;
      c.dtype = DType::I64;
      c.shape = {static_cast<int64_t>(values.size())};
      c.owned.resize(values.size() * 8);
      std::memcpy(c.owned.data(), values.data(), c.owned.size());
      out.push_back(std::move(c));
    };
    constants("layer_multipliers", hash.multiplier);
    constants("ngram_heads_vocab_sizes", hash.vocab);
    constants("ngram_heads_offsets", hash.offset);
  }
  return out;
}

Json hugging_face_config(const Config& c, DType type, int64_t table_parts) {
  const auto object = [](std::initializer_list<std::pair<const char*, Json>> members) {
    Json o;
    for (const auto& [key, value] : members) o.set(key, value);
    return o;
  };
  Json::Array types;
  for (const LayerKind k : c.layers)
    types.emplace_back(k == LayerKind::SparseAttention ? "full_attention" : "linear_attention");
  const Json rope = object({{"rope_type", "default"},
                            {"rope_theta", c.rope_theta},
                            {"partial_rotary_factor", static_cast<double>(c.d_rope) / c.d_head},
                            {"mrope_section", Json::Array(c.mrope_section.begin(), c.mrope_section.end())},
                            {"mrope_interleaved", true}});
  Json::Array eos(c.eos_ids.begin(), c.eos_ids.end());
  const Json text = object({
      {"model_type", "qwen4_exp_text"},
      {"vocab_size", c.vocab},
      {"hidden_size", c.d_model},
      {"num_hidden_layers", c.n_layers},
      {"layer_types", types},
      {"num_attention_heads", c.n_heads},
      {"num_key_value_heads", c.n_kv_heads},
      {"head_dim", c.d_head},
      {"linear_num_key_heads", c.delta.n_key_heads},
      {"linear_num_value_heads", c.delta.n_value_heads},
      {"linear_key_head_dim", c.delta.d_key},
      {"linear_value_head_dim", c.delta.d_value},
      {"linear_conv_kernel_dim", c.delta.conv},
      {"output_gate_type", c.delta.gate == OutputGate::Sigmoid ? "sigmoid" : "silu"},
      {"hidden_act", "silu"},
      {"num_experts", c.n_experts},
      {"num_experts_per_tok", c.top_k},
      {"moe_intermediate_size", c.d_expert},
      {"shared_expert_intermediate_size", c.d_shared},
      {"norm_topk_prob", true},
      {"hc_count", c.streams},
      {"hc_lowrank", c.hc_rank},
      {"rms_norm_eps", std::round(static_cast<double>(c.norm_eps) * 1e12) / 1e12},
      {"ple_layer_ids", Json::Array{c.ple.layer + 1}},
      {"ple_embed_dim", c.ple.d_embed()},
      {"ple_conv_kernel_size", c.ple.conv},
      {"ngram_size", c.ple.ngram},
      {"heads_per_ngram", c.ple.heads_per_ngram},
      {"ngram_vocab_size_base", c.ple.vocab_base},
      {"make_ngram_vocab_size_divisible_by", c.ple.row_multiple},
      {"split_ngram_parts", table_parts},
      {"seed", c.ple.seed},
      {"indexer_n_heads", c.indexer.n_heads},
      {"indexer_kv_heads", 1},
      {"indexer_head_dim", c.indexer.d_head},
      {"indexer_budget", c.indexer.budget},
      {"indexer_compress_ratio", c.indexer.block_ratio},
      {"max_position_embeddings", c.max_positions},
      {"rope_parameters", rope},
      {"bos_token_id", c.bos_id ? Json(*c.bos_id) : Json()},
      {"eos_token_id", eos.size() == 1 ? eos[0] : Json(eos)},
      {"mtp_num_hidden_layers", c.mtp_layers},
      {"tie_word_embeddings", c.tied_embeddings},
  });
  Json top = object({{"architectures", Json::Array{"Qwen4ExpForConditionalGeneration"}},
                     {"model_type", "qwen4_exp"},
                     {"dtype", type == DType::F32   ? "float32"
                               : type == DType::F16 ? "float16"
                                                    : "bfloat16"},
                     {"tie_word_embeddings", c.tied_embeddings},
                     {"language_model_only", true},
                     {"text_config", text}});
  if (c.image_token_id) top.set("image_token_id", *c.image_token_id);
  if (c.video_token_id) top.set("video_token_id", *c.video_token_id);
  if (c.vision_start_id) top.set("vision_start_token_id", *c.vision_start_id);
  if (c.vision_end_id) top.set("vision_end_token_id", *c.vision_end_id);
  return top;
}

}  // namespace quern

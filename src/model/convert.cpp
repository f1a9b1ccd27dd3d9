#include "model/convert.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "checkpoint/gguf_names.h"
#include "model/convert_piece.h"
#include "ops/quant_encode.h"

namespace quern {
namespace {

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

// Small matrices and what is no matrix stay as precise as the source.
bool is_kept(const SourceTensor& s) {
  for (const std::string_view end :
       {"mlp.gate.weight", "block_inject_weight.weight", "in_proj_a.weight", "in_proj_b.weight",
        "index_qk_proj.weight", "shared_expert_gate.weight"}) {
    if (s.name.ends_with(end)) return true;
  }
  return false;
}

DType type_of(const SourceTensor& s, const Recipe& recipe, Overrides& overrides, std::string_view out_name) {
  DType type = recipe.type;
  if (is_vector(s)) {
    type = DType::F32;
  } else if (is_kept(s)) {
    // What others stored in blocks is not rounded again.
    if (recipe.type == DType::F32 || recipe.type == DType::BF16)
      type = recipe.type;
    else if (!is_plain(type) && !is_plain(s.dtype) && s.self_contained)
      type = s.dtype;
    else if (s.dtype == DType::F16)
      type = recipe.type == DType::F16 ? DType::F16 : DType::F32;
    else
      type = s.dtype == DType::F32 ? DType::F32 : DType::BF16;
  } else if (!is_plain(type)) {
    const bool expert = s.group == TensorGroup::Expert || s.group == TensorGroup::MtpExpert;
    if (s.group == TensorGroup::Table)
      type = type == DType::Q8_0 ? DType::Q8_0 : DType::IQ4_NL;
    else if (!expert)
      type = DType::Q8_0;
  }
  return fitting_type(overrides.apply(type, s, out_name), s.cols());
}

// Divides the tensors' rows (of each expert) by what makes their largest value 6 · 448, the largest that an NVFP4 block
// holds; returns that factor's values. Gate and up of an expert share it, as ModelOpt's folders have it.
std::shared_ptr<Lazy> take_out_factor(const std::vector<ExportTensor*>& group) {
  const int64_t parts = group[0]->shape.size() == 3 ? group[0]->shape[0] : 1, n = group[0]->n_rows() / parts,
                k = group[0]->cols();
  std::vector<decltype(ExportTensor::rows)> all_rows;
  for (const ExportTensor* t : group) all_rows.push_back(t->rows);
  std::vector<std::shared_ptr<Lazy>> factors;
  for (int64_t e = 0; e < parts; ++e) {
    factors.push_back(std::make_shared<Lazy>([all_rows, first = e * n, n, k] {
      std::vector<float> row(static_cast<size_t>(k));
      float top = 0;
      for (const auto& rows : all_rows) {
        for (int64_t r = first; r < first + n; ++r) {
          rows(r, r + 1, row.data());
          top = std::max(top, largest_magnitude(row.data(), k));
        }
      }
      return std::vector<float>{top > 0 ? top / (kLargestE2m1 * kLargestE4m3) : 1};
    }));
  }
  for (ExportTensor* t : group) {
    t->rows = [rows = t->rows, factors, n, k](int64_t begin, int64_t end, float* out) {
      rows(begin, end, out);
      for (int64_t r = begin; r < end; ++r) {
        const float factor = factors[static_cast<size_t>(r / n)]->get()[0];
        for (int64_t i = 0; i < k; ++i) out[(r - begin) * k + i] /= factor;
      }
    };
  }
  return std::make_shared<Lazy>([factors] {
    std::vector<float> values;
    for (const auto& f : factors) values.push_back(f->get()[0]);
    return values;
  });
}

// NVFP4 as the source has it, whose factors and scales of activations come beside it.
void copy_fp4(ExportTensor& t, Fp4Rows rows) {
  t.rows = nullptr;
  t.encoded = [rows = std::move(rows), k = t.cols()](int64_t begin, int64_t end, std::byte* out) {
    std::vector<std::byte> codes(static_cast<size_t>(k / 2)), scales(static_cast<size_t>(k / 16));
    for (int64_t r = begin; r < end; ++r, out += row_bytes(DType::NVFP4, k)) {
      rows(r, codes.data(), scales.data());
      fp4_row_to_blocks(codes.data(), scales.data(), k, out);
    }
  };
}

class GgufTensors {
 public:
  GgufTensors(const Config& config, const Recipe& recipe)
      : overrides(recipe.overrides),
        config_(config),
        recipe_(recipe),
        layout_{config.n_layers, config.ple.layer} {}

  void add(const SourceTensor& s, const std::string& logical, std::vector<int64_t> shape, int64_t first) {
    push({made(s, logical, std::move(shape), first)});
  }
  // Gate and up of the routed experts.
  void add_pair(const SourceTensor& gate, const SourceTensor& up) {
    push({made(gate, gate.name + ".weight", gate.shape, 0), made(up, up.name + ".weight", up.shape, 0)});
  }

  // fc_embedding and fc_hidden side by side.
  void add_joined(const SourceTensor& s, const SourceTensor& hidden) {
    ExportTensor t;
    t.name = gguf_of_logical("mtp.eh_proj.weight", layout_);
    t.shape = {config_.d_model, 2 * int64_t{config_.d_model}};
    t.dtype = fitting_type(type_of(s, recipe_, overrides, t.name), t.cols());
    const int64_t k = s.cols();
    if (s.self_contained && hidden.self_contained && s.dtype == t.dtype && hidden.dtype == t.dtype &&
        k % dtype_info(t.dtype).block == 0) {
      t.encoded = [&s, &hidden, size = row_bytes(t.dtype, k)](int64_t begin, int64_t end, std::byte* to) {
        for (int64_t r = begin; r < end; ++r, to += 2 * size) {
          std::memcpy(to, s.row(r), static_cast<size_t>(size));
          std::memcpy(to + size, hidden.row(r), static_cast<size_t>(size));
        }
      };
    } else {
      t.rows = [&s, &hidden, k](int64_t begin, int64_t end, float* to) {
        for (int64_t r = begin; r < end; ++r, to += 2 * k) {
          s.decode(r, to);
          hidden.decode(r, to + k);
        }
      };
    }
    push({{std::move(t), nullptr}});
  }

  std::vector<ExportTensor> out;
  Overrides overrides;

 private:
  struct Made {
    ExportTensor tensor;
    const SourceTensor* copied = nullptr;  // its factors go with it
  };

  Made made(const SourceTensor& s, const std::string& logical, std::vector<int64_t> shape, int64_t first) {
    const HeadMaps maps = config_.delta.tiled_value_heads ? HeadMaps{} : head_maps(config_.delta, s.name);
    const std::string name = gguf_of_logical(logical, layout_);
    QUERN_CHECK(!name.empty(), "convert: GGUF has no name for " + logical);
    Made m{piece(s, name, std::move(shape), type_of(s, recipe_, overrides, name), gguf_form(logical), maps,
                 first),
           nullptr};
    if (m.tensor.dtype == DType::NVFP4 && m.tensor.rows) {
      if (Fp4Rows rows = fp4_rows(s, maps, first)) {
        copy_fp4(m.tensor, std::move(rows));
        m.copied = &s;
      }
    }
    return m;
  }

  // NVFP4 from numbers comes with a factor beside it, without which small weights fall below the blocks' own scales.
  void push(std::vector<Made> group) {
    std::vector<ExportTensor*> fresh;
    for (Made& m : group) {
      if (m.tensor.dtype == DType::NVFP4 && m.tensor.rows) fresh.push_back(&m.tensor);
    }
    const auto factor = fresh.empty() ? nullptr : take_out_factor(fresh);
    for (Made& m : group) {
      const bool is_fresh = m.tensor.dtype == DType::NVFP4 && m.tensor.rows;
      const std::string stem = m.tensor.name.substr(0, m.tensor.name.size() - 6);
      const int64_t parts = m.tensor.shape.size() == 3 ? m.tensor.shape[0] : 1;
      out.push_back(std::move(m.tensor));
      if (is_fresh) out.push_back(scale_tensor(stem + "scale", DType::F32, {parts}, factor));
      if (m.copied == nullptr) continue;
      const Fp4Form& form = *m.copied->fp4;
      out.push_back(scale_tensor(stem + "scale", DType::F32, {parts}, form.factors));
      if (!form.inputs.empty())
        out.push_back(scale_tensor(stem + "input_scale", DType::F32, {parts}, form.inputs));
    }
  }

  const Config& config_;
  const Recipe& recipe_;
  GgufLayout layout_;
};

}  // namespace

DType parse_type(std::string_view text) {
  std::string upper, all;
  for (const char c : text) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (upper == "FP8") return DType::F8E4M3;
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const auto d = static_cast<DType>(i);
    if (!can_encode(d) || gguf_type_id(d) < 0) continue;
    if (name(d) == upper) return d;
    std::string lower(name(d));
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    all += (all.empty() ? "" : ", ") + lower;
  }
  throw Error(fmt::format("type '{}': expected one of {}, fp8", text, all));
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

void check_recipe(const Recipe& recipe, bool gguf) {
  const auto check = [gguf](DType t) {
    if (gguf && t == DType::F8E4M3)
      throw Error("type fp8: GGUF has no such type; a Hugging Face folder takes it");
    if (!gguf && !is_plain(t) && t != DType::F8E4M3 && t != DType::NVFP4)
      throw Error(
          fmt::format("type {}: a Hugging Face folder holds bf16, f16, f32, fp8 or nvfp4; a path that ends "
                      "in .gguf takes it",
                      name(t)));
  };
  check(recipe.type);
  for (const auto& [pattern, type] : recipe.overrides) check(type);
}

std::vector<ExportTensor> gguf_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                       const Recipe& recipe) {
  GgufTensors tensors(config, recipe);
  for (size_t i = 0; i < sources.size(); ++i) {
    const SourceTensor& s = sources[i];
    if (s.name.ends_with(".index_qk_proj.weight")) {
      const std::string stem = s.name.substr(0, s.name.rfind("index_qk_proj"));
      const int64_t q = int64_t{config.indexer.n_heads} * config.indexer.d_head;
      tensors.add(s, stem + "q_proj.weight", {q, s.cols()}, 0);
      tensors.add(s, stem + "k_proj.weight", {config.indexer.d_head, s.cols()}, q);
    } else if (s.name == "mtp.fc_embedding.weight") {
      QUERN_CHECK(i + 1 < sources.size() && sources[i + 1].name == "mtp.fc_hidden.weight",
                  "convert: fc_hidden does not follow fc_embedding");
      tensors.add_joined(s, sources[++i]);
    } else if (s.name.ends_with(".experts.gate_proj")) {
      QUERN_CHECK(i + 1 < sources.size() && sources[i + 1].name.ends_with(".experts.up_proj"),
                  "convert: up_proj does not follow gate_proj");
      tensors.add_pair(s, sources[++i]);
    } else {
      std::vector<int64_t> shape = s.shape;
      if (s.shape.size() == 3 && s.shape[1] == 1) shape = {s.shape[0], s.shape[2]};  // conv1d
      if (s.name.ends_with("shared_expert_gate.weight")) shape = {s.shape.back()};   // one row
      const bool expert = s.name.find(".experts.") != std::string::npos;
      tensors.add(s, expert ? s.name + ".weight" : s.name, std::move(shape), 0);
    }
  }
  tensors.overrides.check_all_taken();
  return std::move(tensors.out);
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

}  // namespace quern

// Checkpoints as Hugging Face folders: the released layout in BF16, F16 or F32, the official FP8 one, and ModelOpt's NVFP4.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "model/convert.h"
#include "model/convert_piece.h"
#include "ops/quant_encode.h"
#include "ops/quant_formats.h"

namespace quern {
namespace {

constexpr int64_t kBlock = 128;  // rows and columns that share an FP8 scale
// What ModelOpt's files say of activations, where the source says nothing: values up to 6 · 448 / 64 = 42 are
// representable.
constexpr float kInputScale = 1.0f / 64;

float to_bf16(float x) { return quant::bf16_to_float(float_to_bf16(x)); }
// A matrix by its rows, under the name it will have without ".weight".
struct Matrix {
  std::string name;
  int64_t n = 0, k = 0;
  std::function<void(int64_t r, float* out)> row;
  // The source, where the rows are its rows from `first` on, of its part `part`.
  const SourceTensor* source = nullptr;
  int64_t first = 0, part = 0;
  Fp4Rows fp4;  // the rows as NVFP4, where they are stored so
};

// name.weight F8_E4M3 and name.weight_scale_inv BF16, a scale for each 128 × 128 block: its largest value becomes 448.
// What is FP8 already is copied, with its scales and their type.
void add_fp8(std::vector<ExportTensor>& out, const Matrix& m) {
  const int64_t rows = (m.n + kBlock - 1) / kBlock, cols = (m.k + kBlock - 1) / kBlock;
  if (m.source != nullptr && m.source->fp8) {
    ExportTensor w;
    w.name = m.name + ".weight";
    w.dtype = DType::F8E4M3;
    w.shape = {m.n, m.k};
    w.encoded = [m](int64_t begin, int64_t end, std::byte* to) {
      for (int64_t r = begin; r < end; ++r, to += m.k)
        std::memcpy(to, m.source->row(m.first + r), static_cast<size_t>(m.k));
    };
    std::vector<float> scales;
    for (int64_t i = 0; i < rows * cols; ++i)
      scales.push_back(m.source->fp8->scale(m.part, i / cols, i % cols));
    out.push_back(std::move(w));
    out.push_back(
        scale_tensor(m.name + ".weight_scale_inv", m.source->fp8->type, {rows, cols}, std::move(scales)));
    return;
  }
  const auto scales = std::make_shared<Lazy>([m, rows, cols] {
    std::vector<float> top(static_cast<size_t>(rows * cols)), row(static_cast<size_t>(m.k));
    for (int64_t r = 0; r < m.n; ++r) {
      m.row(r, row.data());
      for (int64_t b = 0; b < cols; ++b) {
        float& t = top[static_cast<size_t>(r / kBlock * cols + b)];
        t = std::max(t, largest_magnitude(row.data() + b * kBlock, std::min(kBlock, m.k - b * kBlock)));
      }
    }
    for (float& t : top) t = t > 0 ? to_bf16(t / kLargestE4m3) : 1;
    return top;
  });
  ExportTensor w;
  w.name = m.name + ".weight";
  w.dtype = DType::F8E4M3;
  w.shape = {m.n, m.k};
  w.rows = [m, scales, cols](int64_t begin, int64_t end, float* to) {
    for (int64_t r = begin; r < end; ++r, to += m.k) {
      m.row(r, to);
      for (int64_t i = 0; i < m.k; ++i)
        to[i] /= scales->get()[static_cast<size_t>(r / kBlock * cols + i / kBlock)];
    }
  };
  out.push_back(std::move(w));
  out.push_back(scale_tensor(m.name + ".weight_scale_inv", DType::BF16, {rows, cols}, scales));
}

// name.weight and .weight_scale by a function of the row that writes its codes and its scales.
void add_codes(std::vector<ExportTensor>& out, const Matrix& m, const Fp4Rows& encode) {
  for (const bool codes : {true, false}) {
    ExportTensor t;
    t.name = m.name + (codes ? ".weight" : ".weight_scale");
    t.dtype = codes ? DType::F4E2M1 : DType::F8E4M3;
    t.shape = {m.n, codes ? m.k : m.k / 16};
    t.encoded = [encode, codes, k = m.k](int64_t begin, int64_t end, std::byte* to) {
      std::vector<std::byte> other(static_cast<size_t>(codes ? k / 16 : k / 2));
      for (int64_t r = begin; r < end; ++r, to += codes ? k / 2 : k / 16)
        encode(r, codes ? to : other.data(), codes ? other.data() : to);
    };
    out.push_back(std::move(t));
  }
}

// ModelOpt's four tensors for each matrix; those of one call share weight_scale_2, so that the largest scale of 16
// columns is 448. What is stored so already is copied, with its factors and scales of activations.
void add_nvfp4(std::vector<ExportTensor>& out, const std::vector<Matrix>& group) {
  if (std::all_of(group.begin(), group.end(), [](const Matrix& m) { return bool(m.fp4); })) {
    for (const Matrix& m : group) {
      const Fp4Form& form = *m.source->fp4;
      const auto part = static_cast<size_t>(m.part);
      add_codes(out, m, m.fp4);
      out.push_back(
          scale_tensor(m.name + ".weight_scale_2", DType::F32, {}, std::vector{form.factors[part]}));
      out.push_back(scale_tensor(m.name + ".input_scale", DType::F32, {},
                                 std::vector{form.inputs.empty() ? kInputScale : form.inputs[part]}));
    }
    return;
  }
  const auto global = std::make_shared<Lazy>([group] {
    float top = 0;
    for (const Matrix& m : group) {
      std::vector<float> row(static_cast<size_t>(m.k));
      for (int64_t r = 0; r < m.n; ++r) {
        m.row(r, row.data());
        top = std::max(top, largest_magnitude(row.data(), m.k));
      }
    }
    return std::vector<float>{top > 0 ? top / (kLargestE2m1 * kLargestE4m3) : 1};
  });
  for (const Matrix& m : group) {
    add_codes(out, m, [m, global](int64_t r, std::byte* codes, std::byte* scales) {
      std::vector<float> row(static_cast<size_t>(m.k));
      m.row(r, row.data());
      encode_fp4_row(row.data(), m.k, global->get()[0], codes, scales);
    });
    out.push_back(scale_tensor(m.name + ".weight_scale_2", DType::F32, {}, global));
    out.push_back(scale_tensor(m.name + ".input_scale", DType::F32, {}, std::vector{kInputScale}));
  }
}

// How the folder stores a tensor: a plain type, F8E4M3, or F4E2M1 for NVFP4.
DType stored_type(const SourceTensor& s, const std::string& name, const Recipe& recipe,
                  Overrides& overrides) {
  DType type = recipe.type;
  if (!is_plain(type)) {
    const bool fp8 = type == DType::F8E4M3;
    type = DType::BF16;
    if (s.group == TensorGroup::Expert) type = fp8 ? DType::F8E4M3 : DType::F4E2M1;
    if (s.group == TensorGroup::MtpExpert && fp8) type = DType::F8E4M3;
    if (s.group == TensorGroup::Table) type = DType::F8E4M3;
  }
  type = overrides.apply(type, s, name);
  if (type == DType::NVFP4) {
    if (s.group == TensorGroup::Table)
      throw Error(fmt::format("{}: an n-gram table in NVFP4 is not supported", name));
    type = DType::F4E2M1;
  }
  if (!is_plain(type) && is_vector(s)) return DType::BF16;
  if (type == DType::F4E2M1 && s.cols() % 16 != 0) return DType::BF16;
  return type;
}

// The one scale of an FP8 table, as BF16, with which the largest value becomes 448.
float table_scale(const SourceTensor& s, ThreadPool& pool) {
  float top = 0;
  std::mutex mutex;
  const int64_t stretch = std::max<int64_t>(1, (int64_t{64} << 20) / s.cols());
  for (int64_t first = 0; first < s.n_rows(); first += stretch) {
    pool.parallel_for(std::min(stretch, s.n_rows() - first), 1024, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(s.cols()));
      float mine = 0;
      for (int64_t r = begin; r < end; ++r) {
        s.decode(first + r, row.data());
        mine = std::max(mine, largest_magnitude(row.data(), s.cols()));
      }
      const std::lock_guard lock(mutex);
      top = std::max(top, mine);
    });
    if (s.drop_pages) s.drop_pages();
  }
  return top > 0 ? to_bf16(top / kLargestE4m3) : 1;
}

class Folder {
 public:
  Folder(const Config& config, const NgramHash& hash, const Recipe& recipe, int64_t table_parts,
         ThreadPool& pool)
      : overrides(recipe.overrides),
        config_(config),
        hash_(hash),
        recipe_(recipe),
        table_parts_(table_parts),
        pool_(pool) {}

  // Gate and up of all experts: in one tensor, or an expert at a time with one weight_scale_2 for both.
  void add_gate_up(const SourceTensor& gate, const SourceTensor& up) {
    const std::string stem = hugging_face_name(gate.name.substr(0, gate.name.size() - 9));
    const DType type = stored_type(gate, stem + "gate_up_proj", recipe_, overrides);
    if (!is_plain(type)) return add_experts(stem, {{"gate_proj", &gate}, {"up_proj", &up}}, type);
    ExportTensor t;
    t.name = stem + "gate_up_proj";
    t.shape = {gate.shape[0], 2 * gate.shape[1], gate.shape[2]};
    t.dtype = type;
    t.rows = [&gate, &up, n = gate.shape[1], k = gate.cols()](int64_t begin, int64_t end, float* to) {
      for (int64_t r = begin; r < end; ++r, to += k) {
        const int64_t e = r / (2 * n), i = r % (2 * n);
        (i < n ? gate : up).decode(e * n + i % n, to);
      }
    };
    out.push_back(std::move(t));
  }
  void add_down(const SourceTensor& s) {
    const std::string name = hugging_face_name(s.name);
    const DType type = stored_type(s, name, recipe_, overrides);
    if (!is_plain(type)) return add_experts(name.substr(0, name.size() - 9), {{"down_proj", &s}}, type);
    out.push_back(piece(s, name, s.shape, type, WeightForm::Plain, {}, 0));
  }

  void add_table(const SourceTensor& s) {
    const std::string name = hugging_face_name(s.name);
    const DType type = stored_type(s, name, recipe_, overrides);
    ExportTensor t = piece(s, name, s.shape, type, WeightForm::Plain, {}, 0);
    DType scale_type = DType::BF16;
    float scale = 1;
    if (type == DType::F8E4M3 && s.fp8) {  // copied, like its scale
      scale_type = s.fp8->type;
      scale = s.fp8->scale(0, 0, 0);
      t.rows = nullptr;
      t.encoded = [&s, k = s.cols()](int64_t begin, int64_t end, std::byte* to) {
        for (int64_t r = begin; r < end; ++r, to += k) std::memcpy(to, s.row(r), static_cast<size_t>(k));
      };
    } else if (type == DType::F8E4M3) {
      scale = table_scale(s, pool_);
      t.rows = [&s, scale, k = s.cols()](int64_t begin, int64_t end, float* to) {
        for (int64_t r = begin; r < end; ++r, to += k) {
          s.decode(r, to);
          for (int64_t i = 0; i < k; ++i) to[i] /= scale;
        }
      };
    }
    for (ExportTensor& part : split_rows(t, table_parts_)) out.push_back(std::move(part));
    if (type == DType::F8E4M3)
      out.push_back(scale_tensor(name + "_scale", scale_type, {1}, std::vector{scale}));
    const std::string stem = name.substr(0, name.find("ngram_embedding"));
    add_constants(stem + "layer_multipliers", hash_.multiplier);
    add_constants(stem + "ngram_heads_vocab_sizes", hash_.vocab);
    add_constants(stem + "ngram_heads_offsets", hash_.offset);
  }

  void add(const SourceTensor& s) {
    const std::string name = hugging_face_name(s.name);
    const HeadMaps maps = config_.delta.tiled_value_heads ? head_maps(config_.delta, s.name) : HeadMaps{};
    const DType type = stored_type(s, name, recipe_, overrides);
    if (is_plain(type)) {
      out.push_back(piece(s, name, s.shape, type, WeightForm::Plain, maps, 0));
      return;
    }
    const ExportTensor floats = piece(s, name, s.shape, DType::F32, WeightForm::Plain, maps, 0);
    const Matrix m{name.substr(0, name.size() - 7),
                   s.n_rows(),
                   s.cols(),
                   row_of(floats),
                   &s,
                   0,
                   0,
                   fp4_rows(s, maps, 0)};
    type == DType::F8E4M3 ? add_fp8(out, m) : add_nvfp4(out, {m});
  }

  std::vector<ExportTensor> out;
  Overrides overrides;

 private:
  static std::function<void(int64_t, float*)> row_of(const ExportTensor& floats) {
    if (floats.rows) return [rows = floats.rows](int64_t r, float* to) { rows(r, r + 1, to); };
    return [encoded = floats.encoded](int64_t r, float* to) {
      encoded(r, r + 1, reinterpret_cast<std::byte*>(to));
    };
  }

  void add_experts(const std::string& stem,
                   const std::vector<std::pair<const char*, const SourceTensor*>>& kinds, DType type) {
    for (int64_t e = 0; e < kinds[0].second->shape[0]; ++e) {
      std::vector<Matrix> group;
      for (const auto& [which, s] : kinds) {
        const int64_t n = s->shape[1];
        group.push_back({fmt::format("{}{}.{}", stem, e, which), n, s->cols(),
                         [s = s, first = e * n](int64_t r, float* to) { s->decode(first + r, to); }, s, e * n,
                         e, fp4_rows(*s, {}, e * n)});
      }
      if (type == DType::F4E2M1) {
        add_nvfp4(out, group);
      } else {
        for (const Matrix& m : group) add_fp8(out, m);
      }
    }
  }

  void add_constants(std::string name, std::span<const int64_t> values) {
    ExportTensor c;
    c.name = std::move(name);
    c.dtype = DType::I64;
    c.shape = {static_cast<int64_t>(values.size())};
    c.owned.resize(values.size() * 8);
    std::memcpy(c.owned.data(), values.data(), c.owned.size());
    out.push_back(std::move(c));
  }

  const Config& config_;
  const NgramHash& hash_;
  const Recipe& recipe_;
  int64_t table_parts_;
  ThreadPool& pool_;
};

// The type of what is not quantised: that of the mixers' norms, which nothing quantises.
DType main_type(const std::vector<ExportTensor>& tensors) {
  for (const ExportTensor& t : tensors) {
    if (t.name.ends_with(".hc_norm.weight")) return t.dtype;
  }
  return DType::BF16;
}
const char* torch_name(DType type) {
  return type == DType::F32 ? "float32" : type == DType::F16 ? "float16" : "bfloat16";
}

}  // namespace

std::vector<ExportTensor> hugging_face_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                               const NgramHash& hash, const Recipe& recipe,
                                               int64_t table_parts, ThreadPool& pool) {
  check_recipe(recipe, false);
  Folder folder(config, hash, recipe, table_parts, pool);
  for (size_t i = 0; i < sources.size(); ++i) {
    const SourceTensor& s = sources[i];
    if (s.name.ends_with(".experts.gate_proj")) {
      QUERN_CHECK(i + 1 < sources.size() && sources[i + 1].name.ends_with(".experts.up_proj"),
                  "convert: up_proj does not follow gate_proj");
      folder.add_gate_up(s, sources[++i]);
    } else if (s.name.ends_with(".experts.down_proj")) {
      folder.add_down(s);
    } else if (s.group == TensorGroup::Table) {
      folder.add_table(s);
    } else {
      folder.add(s);
    }
  }
  folder.overrides.check_all_taken();
  return std::move(folder.out);
}

Json hugging_face_quantization(const std::vector<ExportTensor>& tensors) {
  const auto stem_of = [](const ExportTensor& t) { return t.name.substr(0, t.name.size() - 7); };
  Json::Array plain;
  std::map<std::string, DType> quantised;  // by module; the experts of a layer are one
  bool nvfp4 = false, fp8 = false;
  for (const ExportTensor& t : tensors) {
    if (!t.name.ends_with(".weight")) continue;
    const bool table = t.name.find(".ngram_embedding.") != std::string::npos;
    if (is_plain(t.dtype)) {
      if (t.shape.size() == 2 && !table) plain.emplace_back(stem_of(t));
      continue;
    }
    nvfp4 = nvfp4 || t.dtype == DType::F4E2M1;
    fp8 = fp8 || (t.dtype == DType::F8E4M3 && !table);
    const size_t experts = t.name.find(".mlp.experts.");
    if (!table)
      quantised[experts == std::string::npos ? stem_of(t) : t.name.substr(0, experts + 12)] = t.dtype;
  }
  Json q;
  if (nvfp4) {
    q.set("quant_method", "modelopt");
    q.set("quant_algo", fp8 ? "MIXED_PRECISION" : "NVFP4");
    q.set("group_size", 16);
    q.set("ignore", plain);
    if (!fp8) return q;
    Json layers;
    for (const auto& [module, type] : quantised) {
      Json how;
      how.set("quant_algo", type == DType::F4E2M1 ? "NVFP4" : "FP8_PB_WO");
      how.set("group_size", type == DType::F4E2M1 ? 16 : 128);
      layers.set(module, how);
    }
    q.set("quantized_layers", layers);
  } else if (fp8) {
    q.set("quant_method", "fp8");
    q.set("fmt", "e4m3");
    q.set("activation_scheme", "dynamic");
    q.set("weight_block_size", Json::Array{kBlock, kBlock});
    q.set("modules_to_not_convert", plain);
  }
  return q;
}

Json hugging_face_config(const Config& c, const std::vector<ExportTensor>& tensors, int64_t table_parts) {
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
  Json text = object({
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
  for (const ExportTensor& t : tensors) {
    if (t.dtype == DType::F8E4M3 && t.name.find(".ngram_embedding.") != std::string::npos)
      text.set("ple_embedding_dtype", "float8_e4m3fn");
  }
  Json top = object({{"architectures", Json::Array{"Qwen4ExpForConditionalGeneration"}},
                     {"model_type", "qwen4_exp"},
                     {"dtype", torch_name(main_type(tensors))},
                     {"tie_word_embeddings", c.tied_embeddings},
                     {"language_model_only", true},
                     {"text_config", text}});
  const Json quantization = hugging_face_quantization(tensors);
  if (!quantization.is_null()) top.set("quantization_config", quantization);
  if (c.image_token_id) top.set("image_token_id", *c.image_token_id);
  if (c.video_token_id) top.set("video_token_id", *c.video_token_id);
  if (c.vision_start_id) top.set("vision_start_token_id", *c.vision_start_id);
  if (c.vision_end_id) top.set("vision_end_token_id", *c.vision_end_id);
  return top;
}

}  // namespace quern

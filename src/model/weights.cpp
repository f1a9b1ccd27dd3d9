#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "model/ngram_hash.h"
#include "ops/quant_formats.h"

namespace quern {
namespace {

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  uint32_t bits;
  if (e == 0) {
    const float v = std::ldexp(static_cast<float>(m), -24);
    return sign ? -v : v;
  }
  bits = e == 31 ? sign | 0x7F800000 | (m << 13) : sign | ((e + 112) << 23) | (m << 13);
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}

// Binds names to places. `prefix` ends in a dot or is empty.
class Binder {
 public:
  Binder(Checkpoint& checkpoint, const Config& config, Stream& stream, ModelWeights& weights)
      : checkpoint_(checkpoint), c_(config), stream_(stream), w_(weights) {}

  // A small tensor as f32 on the device. Shapes with more than one dimension are [rows, cols].
  Tensor vector(const std::string& name, int64_t n) { return upload(floats(name, {n}), {n}); }
  Tensor table(const std::string& name, int64_t rows, int64_t cols) {
    return upload(floats(name, {rows, cols}), {rows, cols});
  }

  Tensor decay(const std::string& name, int64_t n) {
    std::vector<float> v = floats(name, {n});
    if (checkpoint_.find(name)->form != WeightForm::NegExp)
      for (float& x : v) x = static_cast<float>(-std::exp(static_cast<double>(x)));
    return upload(v, {n});
  }

  Weight matrix(const std::string& name, int64_t n, int64_t k) {
    Weight w = view(name, n, k);
    w.data = place(w.data);
    if (w.scale) w.scale = place(w.scale);
    return w;
  }

  MixerWeights mixer(const std::string& prefix, bool inject) {
    MixerWeights m;
    m.norm = vector(prefix + "hc_norm.weight", c_.wide());
    m.down = matrix(prefix + "input_mix_weight_down.weight", c_.hc_rank, c_.wide());
    m.up = matrix(prefix + "input_mix_weight_up.weight", c_.wide(), c_.hc_rank);
    if (inject) m.inject = matrix(prefix + "block_inject_weight.weight", c_.streams, c_.wide());
    return m;
  }

  DeltaLayer delta_layer(const std::string& prefix) {
    const DeltaNetConfig& d = c_.delta;
    const std::string p = prefix + "linear_attn.";
    DeltaLayer l;
    l.mix = mixer(prefix + "attn_hyper_connection.", true);
    l.qkv = matrix(p + "in_proj_qkv.weight", d.qkv_width(), c_.d_model);
    l.z = matrix(p + "in_proj_z.weight", d.value_width(), c_.d_model);
    l.b = matrix(p + "in_proj_b.weight", d.n_value_heads, c_.d_model);
    l.a = matrix(p + "in_proj_a.weight", d.n_value_heads, c_.d_model);
    l.delta.conv = table(p + "conv1d.weight", d.qkv_width(), d.conv);
    l.delta.decay = decay(p + "A_log", d.n_value_heads);
    l.delta.dt_bias = vector(p + "dt_bias", d.n_value_heads);
    l.delta.norm = vector(p + "norm.weight", d.d_value);
    l.out = matrix(p + "out_proj.weight", c_.d_model, d.value_width());
    return l;
  }

  AttentionLayer attention_layer(const std::string& prefix) {
    const std::string p = prefix + "self_attn.";
    AttentionLayer l;
    l.mix = mixer(prefix + "attn_hyper_connection.", true);
    l.q_gate = matrix(p + "q_proj.weight", int64_t{c_.n_heads} * 2 * c_.d_head, c_.d_model);
    l.k = matrix(p + "k_proj.weight", int64_t{c_.n_kv_heads} * c_.d_head, c_.d_model);
    l.v = matrix(p + "v_proj.weight", int64_t{c_.n_kv_heads} * c_.d_head, c_.d_model);
    l.index_qk = matrix(p + "indexer.index_qk_proj.weight",
                        int64_t{c_.indexer.n_heads + 1} * c_.indexer.d_head, c_.d_model);
    l.norms.q = vector(p + "q_norm.weight", c_.d_head);
    l.norms.k = vector(p + "k_norm.weight", c_.d_head);
    l.norms.index_q = vector(p + "indexer.q_layernorm.weight", c_.indexer.d_head);
    l.norms.index_k = vector(p + "indexer.k_layernorm.weight", c_.indexer.d_head);
    l.out = matrix(p + "o_proj.weight", c_.d_model, int64_t{c_.n_heads} * c_.d_head);
    // ModelOpt's scales for keys and values in FP8, which our cache does without.
    checkpoint_.take_if(p + "k_proj.k_scale", {1});
    checkpoint_.take_if(p + "v_proj.v_scale", {1});
    return l;
  }

  MoeLayer moe_layer(const std::string& prefix) {
    const std::string p = prefix + "mlp.";
    MoeLayer l;
    l.mix = mixer(prefix + "mlp_hyper_connection.", true);
    MoeWeights& m = l.moe;
    m.router = matrix(p + "gate.weight", c_.n_experts, c_.d_model);
    const std::vector<Weight> gate_up = fused(p + "experts.gate_up_proj", 2 * c_.d_expert, c_.d_model);
    if (!gate_up.empty()) {
      m.gate = experts(rows_of(gate_up, 0, c_.d_expert));
      m.up = experts(rows_of(gate_up, c_.d_expert, 2 * c_.d_expert));
    } else {
      m.gate = experts(any_layout(p, "gate_proj", c_.d_expert, c_.d_model));
      m.up = experts(any_layout(p, "up_proj", c_.d_expert, c_.d_model));
    }
    m.down = experts(any_layout(p, "down_proj", c_.d_model, c_.d_expert));
    m.shared_gate = matrix(p + "shared_expert.gate_proj.weight", c_.d_shared, c_.d_model);
    m.shared_up = matrix(p + "shared_expert.up_proj.weight", c_.d_shared, c_.d_model);
    m.shared_down = matrix(p + "shared_expert.down_proj.weight", c_.d_model, c_.d_shared);
    m.shared_expert_gate = matrix(p + "shared_expert_gate.weight", 1, c_.d_model);
    m.top_k = c_.top_k;
    m.renormalise = c_.norm_topk_prob;
    return l;
  }

  PleLayer ple_layer(const std::string& prefix) {
    const std::string p = prefix + "ple.";
    PleLayer l;
    const NgramTable constants = read_ngram_table(checkpoint_, c_);
    l.hash = constants.hash;
    l.table.d_row = c_.ple.d_row;
    for (const TensorView* part :
         checkpoint_.take_rows(p + "ple_embedding.ngram_embedding", constants.rows, c_.ple.d_row)) {
      Weight w;
      if (stream_.device().type == DeviceType::Cpu) checkpoint_.read_sparsely(*part);
      w.data = host_place(as_tensor(*part, part->shape[0], c_.ple.d_row));
      if (part->dtype == DType::F8E4M3) w.global_scale = table_scale(p);
      w_.bytes += w.data.bytes();
      l.table.parts.push_back(w);
    }
    l.table.rows_per_part = l.table.parts.front().n();
    for (size_t i = 0; i + 1 < l.table.parts.size(); ++i)
      if (l.table.parts[i].n() != l.table.rows_per_part)
        throw Error(fmt::format("{}: n-gram table part {}: expected {} rows like part 0, found {}",
                                checkpoint_.path().string(), i, l.table.rows_per_part, l.table.parts[i].n()));
    l.key = matrix(p + "key_proj.weight", c_.wide(), c_.ple.d_embed());
    l.value = matrix(p + "value_proj.weight", c_.d_model, c_.ple.d_embed());
    l.ple.norm_key = vector(p + "norm_key.weight", c_.wide());
    l.ple.norm_query = vector(p + "norm_query.weight", c_.wide());
    l.ple.norm_conv = vector(p + "norm_conv.weight", c_.wide());
    l.ple.conv = table(p + "conv1d.weight", c_.wide(), c_.ple.conv);
    return l;
  }

  DraftBlock draft_block() {
    DraftBlock d;
    d.norm_embedding = vector("mtp.pre_fc_norm_embedding.weight", c_.d_model);
    d.norm_hidden = vector("mtp.pre_fc_norm_hidden.weight", c_.wide());
    if (checkpoint_.find("mtp.eh_proj.weight")) {  // GGUF: the columns of both side by side
      d.fc_embedding = half_of_columns("mtp.eh_proj.weight", 0);
      d.fc_hidden = half_of_columns("mtp.eh_proj.weight", 1);
    } else {
      d.fc_embedding = matrix("mtp.fc_embedding.weight", c_.d_model, c_.d_model);
      d.fc_hidden = matrix("mtp.fc_hidden.weight", c_.d_model, c_.d_model);
    }
    d.attention = attention_layer("mtp.layers.0.");
    d.moe = moe_layer("mtp.layers.0.");
    // Some GGUF files leave the draft's mixer out: it is the trunk's.
    d.mix = checkpoint_.kind() == Checkpoint::Kind::Gguf &&
                    !checkpoint_.find("mtp.hyper_connection_mixer.hc_norm.weight")
                ? w_.mix
                : mixer("mtp.hyper_connection_mixer.", false);
    return d;
  }

 private:
  static Tensor as_tensor(const TensorView& t, int64_t n, int64_t k) {
    return Tensor(const_cast<std::byte*>(t.bytes.data()), t.dtype, {n, k});  // ops never write to weights
  }

  // The one scale of an FP8 n-gram table.
  float table_scale(const std::string& p) {
    const TensorView& t = checkpoint_.take(p + "ple_embedding.ngram_embedding.weight_scale", {1});
    float v = 0;
    if (t.dtype != DType::F32 && t.dtype != DType::BF16)
      throw Error(fmt::format("{}: expected an F32 or BF16 scale, found {}", checkpoint_.where(t),
                              quern::name(t.dtype)));
    decode_row(t.dtype, t.bytes.data(), 1, &v);
    return v;
  }

  // The matrix where the file has it.
  Weight view(const std::string& name, int64_t n, int64_t k) {
    if (const TensorView* t = checkpoint_.find(name); t && t->dtype == DType::U8) return nibbles(name, n, k);
    const TensorView& t = checkpoint_.take(name, {n, k});
    if (t.form != WeightForm::Plain || t.dtype == DType::I64 || t.dtype == DType::I32 || t.dtype == DType::U8)
      throw Error(fmt::format("{}: a weight matrix of type {} is not supported", checkpoint_.where(t),
                              quern::name(t.dtype)));
    Weight w;
    w.data = as_tensor(t, n, k);
    if (t.dtype == DType::F8E4M3) {
      // A scale per block of 128 × 128, or (ModelOpt's FP8) one for the matrix.
      const TensorView* whole = checkpoint_.take_if(name + "_scale", {1});
      const int64_t rows = whole ? 1 : (n + 127) / 128, cols = whole ? 1 : (k + 127) / 128;
      const TensorView& scale = whole ? *whole : checkpoint_.take(name + "_scale_inv", {rows, cols});
      if (scale.dtype != DType::F32 && scale.dtype != DType::BF16)
        throw Error(fmt::format("{}: expected F32 or BF16 scales, found {}", checkpoint_.where(scale),
                                quern::name(scale.dtype)));
      if (whole) checkpoint_.take_if(name.substr(0, name.rfind('.')) + ".input_scale");
      w.scale = as_tensor(scale, rows, cols);
      w_.bytes += w.scale.bytes();
    }
    if (const std::vector<float> scales = companion(t, 1); !scales.empty()) w.global_scale = scales[0];
    w_.bytes += w.data.bytes();
    return w;
  }

  // GGUF's ….scale beside ….weight, one number or `n`: what multiplies an NVFP4 matrix, or each expert's. Empty where
  // there is none. What the file says of activations (….input_scale) is not used.
  std::vector<float> companion(const TensorView& t, int64_t n) {
    if (!t.name.ends_with(".weight") || checkpoint_.kind() != Checkpoint::Kind::Gguf) return {};
    const std::string stem = t.name.substr(0, t.name.size() - 6);
    checkpoint_.take_if(stem + "input_scale");
    const TensorView* scale = checkpoint_.take_if(stem + "scale");
    if (!scale) return {};
    if (scale->dtype != DType::F32 || (scale->elements() != 1 && scale->elements() != n))
      throw Error(fmt::format("{}: expected 1 or {} F32 scales, found {} {}", checkpoint_.where(*scale), n,
                              quern::name(scale->dtype), scale->shape_text()));
    if (t.dtype != DType::NVFP4)
      throw Error(fmt::format("{}: a scale beside a {} matrix is not supported", checkpoint_.where(*scale),
                              quern::name(t.dtype)));
    std::vector<float> values(scale->elements());
    std::memcpy(values.data(), scale->bytes.data(), scale->bytes.size());
    values.resize(n, values[0]);
    return values;
  }

  // ModelOpt's NVFP4: two E2M1 values a byte, an E4M3 scale per 16 columns, an F32 scale of the matrix; the scale
  // it found for activations is not used.
  Weight nibbles(const std::string& name, int64_t n, int64_t k) {
    const TensorView& t = checkpoint_.take(name, {n, k / 2});
    const TensorView& scale = checkpoint_.take(name + "_scale", {n, k / 16});
    const TensorView& global = checkpoint_.take(name + "_scale_2", {1});
    if (k % 16 != 0 || scale.dtype != DType::F8E4M3 || global.dtype != DType::F32)
      throw Error(fmt::format("{}: expected F8_E4M3 scales of 16 columns and an F32 scale, found {} and {}",
                              checkpoint_.where(t), quern::name(scale.dtype), quern::name(global.dtype)));
    checkpoint_.take_if(name.substr(0, name.rfind('.')) + ".input_scale");
    Weight w;
    w.data = Tensor(const_cast<std::byte*>(t.bytes.data()), DType::F4E2M1, {n, k});
    w.scale = as_tensor(scale, n, k / 16);
    std::memcpy(&w.global_scale, global.bytes.data(), sizeof(float));
    w_.bytes += static_cast<int64_t>(t.bytes.size() + scale.bytes.size() + global.bytes.size());
    return w;
  }

  // [E, n, k] in one piece, as E views; empty where the file stores experts one by one.
  std::vector<Weight> fused(const std::string& name, int64_t n, int64_t k) {
    const TensorView* t = checkpoint_.take_if(name, {c_.n_experts, n, k});
    if (!t) t = checkpoint_.take_if(name + ".weight", {c_.n_experts, n, k});
    std::vector<Weight> items;
    if (!t) return items;
    if (t->form != WeightForm::Plain || dtype_info(t->dtype).bytes == 0 || t->dtype == DType::I64 ||
        t->dtype == DType::I32 || t->dtype == DType::U8 || t->dtype == DType::F8E4M3)
      throw Error(fmt::format("{}: experts in one piece of type {} are not supported", checkpoint_.where(*t),
                              quern::name(t->dtype)));
    const int64_t bytes = n * row_bytes(t->dtype, k);
    const std::vector<float> scales = companion(*t, c_.n_experts);
    for (int64_t e = 0; e < c_.n_experts; ++e) {
      Weight w;
      w.data = Tensor(const_cast<std::byte*>(t->bytes.data()) + e * bytes, t->dtype, {n, k});
      if (!scales.empty()) w.global_scale = scales[e];
      items.push_back(w);
    }
    w_.bytes += c_.n_experts * bytes;
    return items;
  }
  // One kind of expert matrix, in one piece or one by one.
  std::vector<Weight> any_layout(const std::string& p, const std::string& which, int64_t n, int64_t k) {
    std::vector<Weight> items = fused(p + "experts." + which, n, k);
    if (items.empty() && checkpoint_.kind() == Checkpoint::Kind::Gguf)
      checkpoint_.take(p + "experts." + which + ".weight");  // throws: GGUF knows no other layout
    return items.empty() ? one_by_one(p, which, n, k) : items;
  }
  std::vector<Weight> one_by_one(const std::string& p, const std::string& which, int64_t n, int64_t k) {
    std::vector<Weight> items;
    for (int e = 0; e < c_.n_experts; ++e)
      items.push_back(view(fmt::format("{}experts.{}.{}.weight", p, e, which), n, k));
    return items;
  }
  static std::vector<Weight> rows_of(const std::vector<Weight>& items, int64_t begin, int64_t end) {
    std::vector<Weight> rows;
    for (const Weight& w : items) {
      Weight r = w;
      r.data = w.data.slice_rows(begin, end);
      rows.push_back(r);
    }
    return rows;
  }

  ExpertWeights experts(std::vector<Weight> items) {
    ExpertWeights e;
    e.n_experts = static_cast<int64_t>(items.size());
    e.n = items[0].n();
    e.k = items[0].k();
    if (stream_.device().type == DeviceType::Cpu) {
      e.items = std::move(items);
      return e;
    }
    const auto pack = [&](const auto& part) {
      const Tensor first = part(items[0]);
      Tensor packed =
          w_.owned
              .emplace_back(stream_.device(), first.dtype,
                            std::initializer_list<int64_t>{e.n_experts, first.shape[0], first.shape[1]})
              .tensor;
      for (int64_t i = 0; i < e.n_experts; ++i)
        stream_.upload(packed.data + i * first.bytes(), part(items[i]).data, first.bytes());
      return packed;
    };
    e.packed.data = pack([](const Weight& w) { return w.data; });
    if (items[0].scale) e.packed.scale = pack([](const Weight& w) { return w.scale; });
    const bool scaled =
        std::any_of(items.begin(), items.end(), [](const Weight& w) { return w.global_scale != 1; });
    if (items[0].data.dtype == DType::F4E2M1 || scaled) {
      std::vector<float> scales;
      for (const Weight& w : items) scales.push_back(w.global_scale);
      e.global_scales = upload(scales, {e.n_experts});
    }
    return e;
  }

  // Columns [which·H, (which + 1)·H) of [H, 2H], copied: products want packed rows.
  Weight half_of_columns(const std::string& name, int which) {
    const TensorView& t = checkpoint_.take(name, {c_.d_model, 2 * c_.d_model});
    if (c_.d_model % dtype_info(t.dtype).block != 0)
      throw Error(
          fmt::format("{}: {} blocks straddle its two halves", checkpoint_.where(t), quern::name(t.dtype)));
    const int64_t half = row_bytes(t.dtype, c_.d_model);
    std::vector<std::byte> bytes(c_.d_model * half);
    for (int64_t r = 0; r < c_.d_model; ++r)
      std::memcpy(bytes.data() + r * half, t.bytes.data() + (2 * r + which) * half, half);
    Weight w;
    w.data =
        w_.owned
            .emplace_back(stream_.device(), t.dtype, std::initializer_list<int64_t>{c_.d_model, c_.d_model})
            .tensor;
    stream_.upload(w.data.data, bytes.data(), w.data.bytes());
    if (const std::vector<float> scales = companion(t, 1); !scales.empty()) w.global_scale = scales[0];
    w_.bytes += w.data.bytes();
    return w;
  }

  // Where a matrix lives: in the mapped file on the CPU, in memory of its own on a device.
  Tensor place(Tensor t) {
    if (stream_.device().type == DeviceType::Cpu) return t;
    const Tensor there =
        w_.owned
            .emplace_back(stream_.device(), t.dtype, std::initializer_list<int64_t>{t.shape[0], t.shape[1]})
            .tensor;
    stream_.upload(there.data, t.data, t.bytes());
    return there;
  }

  // The n-gram table stays in host memory: mapped on the CPU, pinned where a device reads its rows over the bus.
  Tensor host_place(Tensor t) {
    if (stream_.device().type == DeviceType::Cpu) return t;
    Buffer& there = w_.host.emplace_back(stream_.device(), t.bytes(), BufferKind::Pinned);
    std::memcpy(there.data(), t.data, static_cast<size_t>(t.bytes()));
    t.data = there.data();
    return t;
  }

  std::vector<float> floats(const std::string& name, std::initializer_list<int64_t> shape) {
    const TensorView& t = checkpoint_.take(name, shape);
    const int64_t n = t.elements();
    std::vector<float> v(n);
    for (int64_t i = 0; i < n; ++i) {
      const std::byte* from = t.bytes.data();
      uint16_t h = 0;
      uint32_t bits = 0;
      switch (t.dtype) {
        case DType::F32:
          std::memcpy(&v[i], from + 4 * i, 4);
          break;
        case DType::BF16:
          std::memcpy(&h, from + 2 * i, 2);
          bits = static_cast<uint32_t>(h) << 16;
          std::memcpy(&v[i], &bits, 4);
          break;
        case DType::F16:
          std::memcpy(&h, from + 2 * i, 2);
          v[i] = half_to_float(h);
          break;
        default:
          throw Error(fmt::format("{}: expected F32, F16 or BF16, found {}", checkpoint_.where(t),
                                  quern::name(t.dtype)));
      }
      if (t.form == WeightForm::OnePlus) v[i] -= 1;
    }
    w_.bytes += static_cast<int64_t>(t.bytes.size());
    return v;
  }

  Tensor upload(const std::vector<float>& v, std::initializer_list<int64_t> shape) {
    const Tensor t = w_.owned.emplace_back(stream_.device(), DType::F32, shape).tensor;
    stream_.upload(t.data, v.data(), t.bytes());
    return t;
  }

  Checkpoint& checkpoint_;
  const Config& c_;
  Stream& stream_;
  ModelWeights& w_;
};

// Sums over the matrices of the trunk: bytes, or multiply-adds of one row.
int64_t bytes_of(const Weight& w) { return (w.data ? w.data.bytes() : 0) + (w.scale ? w.scale.bytes() : 0); }

}  // namespace

StepCost cost_of(const ModelWeights& w, const Config& c) {
  StepCost cost;
  cost.n_experts = c.n_experts;
  cost.top_k = c.top_k;
  cost.n_expert_layers = c.n_layers;
  const auto every = [&](std::initializer_list<const Weight*> all) {
    for (const Weight* m : all) {
      if (!*m) continue;
      cost.dense_bytes += bytes_of(*m);
      cost.row_products += m->n() * m->k();
    }
  };
  for (const DeltaLayer& l : w.delta)
    every({&l.mix.down, &l.mix.up, &l.mix.inject, &l.qkv, &l.z, &l.b, &l.a, &l.out});
  for (const AttentionLayer& l : w.attention)
    every({&l.mix.down, &l.mix.up, &l.mix.inject, &l.q_gate, &l.k, &l.v, &l.index_qk, &l.out});
  every({&w.ple.key, &w.ple.value});
  for (const MoeLayer& l : w.moe) {
    const MoeWeights& m = l.moe;
    every({&l.mix.down, &l.mix.up, &l.mix.inject, &m.router, &m.shared_gate, &m.shared_up, &m.shared_down,
           &m.shared_expert_gate});
    for (const ExpertWeights* e : {&m.gate, &m.up, &m.down}) {
      cost.expert_bytes += e->items.empty() ? (bytes_of(e->packed)) / e->n_experts : bytes_of(e->items[0]);
      cost.row_products += c.top_k * e->n * e->k;
    }
  }
  cost.expert_bytes /= std::max<int64_t>(1, c.n_layers);
  const int64_t products = cost.row_products;
  every({&w.mix.down, &w.mix.up, &w.lm_head});
  cost.logit_products = cost.row_products - products;
  cost.row_products = products;
  return cost;
}

bool has_draft_block(const Checkpoint& checkpoint) {
  return checkpoint.find("mtp.fc_hidden.weight") != nullptr ||
         checkpoint.find("mtp.eh_proj.weight") != nullptr;
}

ModelWeights bind_weights(Checkpoint& checkpoint, const Config& config, bool with_draft, Stream& stream) {
  ModelWeights w;
  Binder bind(checkpoint, config, stream, w);
  w.embed = bind.matrix("embed_tokens.weight", config.vocab, config.d_model);
  for (int i = 0; i < config.n_layers; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    if (i == config.ple.layer) w.ple = bind.ple_layer(prefix);
    if (config.layers[i] == LayerKind::DeltaNet) {
      w.layers.push_back({LayerKind::DeltaNet, static_cast<int>(w.delta.size())});
      w.delta.push_back(bind.delta_layer(prefix));
    } else {
      w.layers.push_back({LayerKind::SparseAttention, static_cast<int>(w.attention.size())});
      w.attention.push_back(bind.attention_layer(prefix));
    }
    w.moe.push_back(bind.moe_layer(prefix));
  }
  w.mix = bind.mixer("hyper_connection_mixer.", false);
  w.lm_head = config.tied_embeddings ? w.embed : bind.matrix("lm_head.weight", config.vocab, config.d_model);
  if (with_draft)
    w.draft = bind.draft_block();
  else
    checkpoint.skip("mtp.");
  checkpoint.skip("visual.");
  checkpoint.check_all_used();
  stream.synchronize();
  w.cost = cost_of(w, config);
  return w;
}

}  // namespace quern

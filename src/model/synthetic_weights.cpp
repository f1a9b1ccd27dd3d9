#include "model/synthetic_weights.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "tensor/random_fill.h"

namespace quern {
namespace {

// Without a stream it only counts.
class Maker {
 public:
  Maker(const Config& c, const SyntheticWeightOptions& options, Stream* stream, ModelWeights& w)
      : c_(c), o_(options), s_(stream), w_(w) {}

  void make_all();
  SyntheticBytes bytes() const { return bytes_; }

 private:
  Tensor vector(std::initializer_list<int64_t> shape, float amplitude) {
    const Tensor t = own(DType::F32, shape);
    fill(t, Fill::F32, amplitude);
    return t;
  }
  Tensor constant(int64_t n, float value) {
    const Tensor t = own(DType::F32, {n});
    repeat(t, value);
    return t;
  }
  // Values keep the size of what they multiply: uniform in ±sqrt(3 / k).
  Weight matrix(SyntheticType type, int64_t n, int64_t k) { return make(type, {n, k}, n, k); }
  Weight dense(int64_t n, int64_t k) { return matrix(o_.dense, n, k); }
  ExpertWeights experts(int64_t n, int64_t k) {
    ExpertWeights e;
    e.n_experts = c_.n_experts;
    e.n = n;
    e.k = k;
    e.packed = make(o_.experts, {c_.n_experts, n, k}, n, k);
    if (o_.experts == SyntheticType::NVFP4) e.global_scales = constant(c_.n_experts, e.packed.global_scale);
    if (s_ && s_->device().type == DeviceType::Cpu) {
      for (int64_t i = 0; i < c_.n_experts; ++i) {
        Weight w = e.packed;
        w.data = e.packed.data.item(i);
        if (w.scale) w.scale = e.packed.scale.item(i);
        e.items.push_back(w);
      }
    }
    return e;
  }

  MixerWeights mixer(bool inject) {
    MixerWeights m;
    m.norm = vector({c_.wide()}, 0.1F);
    m.down = dense(c_.hc_rank, c_.wide());
    m.up = dense(c_.wide(), c_.hc_rank);
    if (inject) m.inject = dense(c_.streams, c_.wide());
    return m;
  }
  DeltaLayer delta_layer() {
    const DeltaNetConfig& d = c_.delta;
    DeltaLayer l;
    l.mix = mixer(true);
    l.qkv = dense(d.qkv_width(), c_.d_model);
    l.z = dense(d.value_width(), c_.d_model);
    l.b = dense(d.n_value_heads, c_.d_model);
    l.a = dense(d.n_value_heads, c_.d_model);
    l.delta = {vector({d.qkv_width(), d.conv}, 0.8F), constant(d.n_value_heads, -0.1F),
               vector({d.n_value_heads}, 1), constant(d.d_value, 1)};
    l.out = dense(c_.d_model, d.value_width());
    return l;
  }
  AttentionLayer attention_layer() {
    AttentionLayer l;
    l.mix = mixer(true);
    l.q_gate = dense(int64_t{c_.n_heads} * 2 * c_.d_head, c_.d_model);
    l.k = dense(int64_t{c_.n_kv_heads} * c_.d_head, c_.d_model);
    l.v = dense(int64_t{c_.n_kv_heads} * c_.d_head, c_.d_model);
    l.index_qk = dense(int64_t{c_.indexer.n_heads + 1} * c_.indexer.d_head, c_.d_model);
    l.norms = {vector({c_.d_head}, 0.1F), vector({c_.d_head}, 0.1F), vector({c_.indexer.d_head}, 0.1F),
               vector({c_.indexer.d_head}, 0.1F)};
    l.out = dense(c_.d_model, int64_t{c_.n_heads} * c_.d_head);
    return l;
  }
  MoeLayer moe_layer() {
    MoeLayer l;
    l.mix = mixer(true);
    MoeWeights& m = l.moe;
    m.router = matrix(SyntheticType::BF16, c_.n_experts, c_.d_model);
    m.gate = experts(c_.d_expert, c_.d_model);
    m.up = experts(c_.d_expert, c_.d_model);
    m.down = experts(c_.d_model, c_.d_expert);
    m.shared_gate = dense(c_.d_shared, c_.d_model);
    m.shared_up = dense(c_.d_shared, c_.d_model);
    m.shared_down = dense(c_.d_model, c_.d_shared);
    m.shared_expert_gate = dense(1, c_.d_model);
    m.top_k = c_.top_k;
    m.renormalise = c_.norm_topk_prob;
    return l;
  }
  PleLayer ple_layer() {
    PleLayer l;
    const int heads = c_.ple.n_heads();
    const int64_t per_head = o_.table_rows / heads;
    l.hash.multiplier = {23703573157769, 20109073645365, 8052911324071};
    for (int h = 0; h < heads; ++h) {
      l.hash.vocab.push_back(per_head);
      l.hash.offset.push_back(h * per_head);
    }
    l.hash.eos = c_.ple.eos_id;
    l.table.d_row = c_.ple.d_row;
    l.table.rows_per_part = per_head * heads;
    bytes_.table += per_head * heads * c_.ple.d_row;
    Weight table;
    if (s_) {
      Buffer& host = w_.host.emplace_back(s_->device(), per_head * heads * c_.ple.d_row, BufferKind::Pinned);
      table.data = Tensor(host.data(), DType::F8E4M3, {per_head * heads, c_.ple.d_row});
      fill(table.data, Fill::E4M3, 1);  // a device writes it over the bus
    }
    table.scale = constant(1, 1);
    if (s_) table.scale = table.scale.reshape({1, 1});
    l.table.parts.push_back(table);
    l.key = dense(c_.wide(), c_.ple.d_embed());
    l.value = dense(c_.d_model, c_.ple.d_embed());
    l.ple = {vector({c_.wide()}, 0.1F), vector({c_.wide()}, 0.1F), vector({c_.wide()}, 0.1F),
             vector({c_.wide(), c_.ple.conv}, 0.5F)};
    return l;
  }

  uint64_t next() { return o_.seed * 1000003 + ++n_; }
  Tensor own(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor counted(nullptr, dtype, shape);
    bytes_.device += counted.bytes();
    return s_ ? w_.owned.emplace_back(s_->device(), dtype, shape).tensor : counted;
  }
  void fill(const Tensor& t, Fill how, float amplitude) {
    if (s_) random_fill(*s_, t, how, amplitude, next());
  }
  void upload(std::byte* to, const void* from, int64_t bytes) {
    if (s_) s_->upload(to, from, bytes);
  }
  void repeat(const Tensor& t, float value) {
    if (!s_) return;
    const std::vector<float> v(static_cast<size_t>(t.elements()), value);
    upload(t.data, v.data(), t.bytes());
    s_->synchronize();
  }
  Weight make(SyntheticType type, std::initializer_list<int64_t> shape, int64_t n, int64_t k) {
    const float amplitude = std::sqrt(3.0F / static_cast<float>(k));
    const int64_t pieces = shape.size() == 3 ? *shape.begin() : 1;
    const auto scales = [&](DType dtype, int64_t rows, int64_t cols) {
      return shape.size() == 3 ? own(dtype, {pieces, rows, cols}) : own(dtype, {rows, cols});
    };
    Weight w;
    switch (type) {
      case SyntheticType::BF16:
        w.data = own(DType::BF16, shape);
        fill(w.data, Fill::BF16, amplitude);
        break;
      case SyntheticType::FP8: {
        w.data = own(DType::F8E4M3, shape);
        fill(w.data, Fill::E4M3, 2);
        w.scale = scales(DType::F32, (n + 127) / 128, (k + 127) / 128);
        repeat(w.scale, amplitude / 2);
        break;
      }
      case SyntheticType::NVFP4:
        w.data = own(DType::F4E2M1, shape);
        fill(w.data, Fill::Bytes, 1);
        w.scale = scales(DType::F8E4M3, n, k / 16);
        fill(w.scale, Fill::E4M3, 1);
        w.global_scale = amplitude / 3;
        break;
      case SyntheticType::Q4_0: {
        // Blocks of a half scale and 32 codes: random bytes would make wild scales, so blocks repeat one good one.
        w.data = own(DType::Q4_0, shape);
        if (!s_) break;
        const int64_t bytes = w.data.bytes();
        std::vector<std::byte> pattern(static_cast<size_t>(std::min<int64_t>(bytes, 18 * 65536)));
        uint64_t x = next();
        const auto half = static_cast<uint16_t>(0x2000);  // 2^-7
        for (size_t i = 0; i < pattern.size(); ++i) {
          x = x * 6364136223846793005ull + 1442695040888963407ull;
          pattern[i] = i % 18 == 0   ? static_cast<std::byte>(half & 255)
                       : i % 18 == 1 ? static_cast<std::byte>(half >> 8)
                                     : static_cast<std::byte>(x >> 56);
        }
        for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(pattern.size()))
          upload(w.data.data + at, pattern.data(),
                 std::min<int64_t>(static_cast<int64_t>(pattern.size()), bytes - at));
        s_->synchronize();
        break;
      }
    }
    return w;
  }

  const Config& c_;
  const SyntheticWeightOptions& o_;
  Stream* s_;
  ModelWeights& w_;
  SyntheticBytes bytes_;
  uint64_t n_ = 0;
};

void Maker::make_all() {
  w_.embed = matrix(SyntheticType::BF16, c_.vocab, c_.d_model);
  for (int i = 0; i < c_.n_layers; ++i) {
    if (i == c_.ple.layer) w_.ple = ple_layer();
    if (c_.layers[i] == LayerKind::DeltaNet) {
      w_.layers.push_back({LayerKind::DeltaNet, static_cast<int>(w_.delta.size())});
      w_.delta.push_back(delta_layer());
    } else {
      w_.layers.push_back({LayerKind::SparseAttention, static_cast<int>(w_.attention.size())});
      w_.attention.push_back(attention_layer());
    }
    w_.moe.push_back(moe_layer());
  }
  w_.mix = mixer(false);
  w_.lm_head = dense(c_.vocab, c_.d_model);
}

}  // namespace

SyntheticType parse_synthetic_type(const std::string& option, const std::string& name) {
  if (name == "bf16") return SyntheticType::BF16;
  if (name == "fp8") return SyntheticType::FP8;
  if (name == "nvfp4") return SyntheticType::NVFP4;
  if (name == "q4") return SyntheticType::Q4_0;
  throw Error(fmt::format("{}: expected bf16, fp8, nvfp4 or q4, found '{}'", option, name));
}

SyntheticBytes synthetic_bytes(const Config& config, const SyntheticWeightOptions& options) {
  ModelWeights none;
  Maker count(config, options, nullptr, none);
  count.make_all();
  return count.bytes();
}

ModelWeights synthetic_weights(const Config& config, const SyntheticWeightOptions& options, Stream& stream) {
  ModelWeights w;
  Maker(config, options, &stream, w).make_all();
  stream.synchronize();
  for (const OwnedTensor& t : w.owned) w.bytes += t.buffer.size();
  for (const Buffer& b : w.host) w.bytes += b.size();
  w.cost = cost_of(w, config);
  return w;
}

}  // namespace quern

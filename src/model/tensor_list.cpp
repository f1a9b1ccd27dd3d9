#include "model/tensor_list.h"

#include <fmt/core.h>

#include <initializer_list>
#include <string_view>
#include <utility>

#include "model/ngram_hash.h"

namespace quern {
namespace {

struct Lister {
  const Config& c;
  std::vector<ListedTensor> list;

  void add(TensorGroup group, std::string name, std::initializer_list<int64_t> shape) {
    list.push_back({std::move(name), shape, group});
  }

  void mixer(TensorGroup group, const std::string& stem, bool inject) {
    add(group, stem + ".hc_norm.weight", {c.wide()});
    add(group, stem + ".input_mix_weight_down.weight", {c.hc_rank, c.wide()});
    add(group, stem + ".input_mix_weight_up.weight", {c.wide(), c.hc_rank});
    if (inject) add(group, stem + ".block_inject_weight.weight", {c.streams, c.wide()});
  }

  void delta_net(const std::string& stem) {
    const DeltaNetConfig& d = c.delta;
    const TensorGroup g = TensorGroup::Dense;
    add(g, stem + ".in_proj_qkv.weight", {d.qkv_width(), c.d_model});
    add(g, stem + ".in_proj_z.weight", {d.value_width(), c.d_model});
    add(g, stem + ".in_proj_b.weight", {d.n_value_heads, c.d_model});
    add(g, stem + ".in_proj_a.weight", {d.n_value_heads, c.d_model});
    add(g, stem + ".conv1d.weight", {d.qkv_width(), 1, d.conv});
    add(g, stem + ".A_log", {d.n_value_heads});
    add(g, stem + ".dt_bias", {d.n_value_heads});
    add(g, stem + ".norm.weight", {d.d_value});
    add(g, stem + ".out_proj.weight", {c.d_model, d.value_width()});
  }

  void sparse_attention(TensorGroup g, const std::string& stem) {
    add(g, stem + ".q_proj.weight", {int64_t{2} * c.n_heads * c.d_head, c.d_model});
    add(g, stem + ".k_proj.weight", {int64_t{1} * c.n_kv_heads * c.d_head, c.d_model});
    add(g, stem + ".v_proj.weight", {int64_t{1} * c.n_kv_heads * c.d_head, c.d_model});
    add(g, stem + ".o_proj.weight", {c.d_model, int64_t{1} * c.n_heads * c.d_head});
    add(g, stem + ".q_norm.weight", {c.d_head});
    add(g, stem + ".k_norm.weight", {c.d_head});
    const int64_t d = c.indexer.d_head;
    add(g, stem + ".indexer.index_qk_proj.weight", {(c.indexer.n_heads + 1) * d, c.d_model});
    add(g, stem + ".indexer.q_layernorm.weight", {d});
    add(g, stem + ".indexer.k_layernorm.weight", {d});
  }

  void moe(TensorGroup g, TensorGroup experts, const std::string& stem) {
    add(g, stem + ".gate.weight", {c.n_experts, c.d_model});
    add(experts, stem + ".experts.gate_up_proj", {c.n_experts, int64_t{2} * c.d_expert, c.d_model});
    add(experts, stem + ".experts.down_proj", {c.n_experts, c.d_model, c.d_expert});
    add(g, stem + ".shared_expert.gate_proj.weight", {c.d_shared, c.d_model});
    add(g, stem + ".shared_expert.up_proj.weight", {c.d_shared, c.d_model});
    add(g, stem + ".shared_expert.down_proj.weight", {c.d_model, c.d_shared});
    add(g, stem + ".shared_expert_gate.weight", {1, c.d_model});
  }

  void ple(const std::string& stem) {
    const int64_t heads = c.ple.n_heads();
    add(TensorGroup::Dense, stem + ".key_proj.weight", {c.wide(), c.ple.d_embed()});
    add(TensorGroup::Dense, stem + ".value_proj.weight", {c.d_model, c.ple.d_embed()});
    for (const std::string_view norm : {"norm_key", "norm_query", "norm_conv"})
      add(TensorGroup::Dense, fmt::format("{}.{}.weight", stem, norm), {c.wide()});
    add(TensorGroup::Dense, stem + ".conv1d.weight", {c.wide(), 1, c.ple.conv});
    add(TensorGroup::Constant, stem + ".ple_embedding.layer_multipliers", {c.ple.ngram});
    add(TensorGroup::Constant, stem + ".ple_embedding.ngram_heads_vocab_sizes", {heads});
    add(TensorGroup::Constant, stem + ".ple_embedding.ngram_heads_offsets", {heads});
    add(TensorGroup::Table, stem + ".ple_embedding.ngram_embedding.weight",
        {compute_ngram_table(c).rows, c.ple.d_row});
  }

  void layer(TensorGroup g, TensorGroup experts, const std::string& stem, LayerKind kind) {
    mixer(g, stem + ".attn_hyper_connection", true);
    if (kind == LayerKind::DeltaNet)
      delta_net(stem + ".linear_attn");
    else
      sparse_attention(g, stem + ".self_attn");
    mixer(g, stem + ".mlp_hyper_connection", true);
    moe(g, experts, stem + ".mlp");
  }
};

}  // namespace

int64_t ListedTensor::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<ListedTensor> list_tensors(const Config& c) {
  Lister l{c, {}};
  l.add(TensorGroup::Embedding, "embed_tokens.weight", {c.vocab, c.d_model});
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string stem = fmt::format("layers.{}", i);
    if (i == c.ple.layer) l.ple(stem + ".ple");
    l.layer(TensorGroup::Dense, TensorGroup::Expert, stem, c.layers[static_cast<size_t>(i)]);
  }
  l.mixer(TensorGroup::Dense, "hyper_connection_mixer", false);
  if (!c.tied_embeddings) l.add(TensorGroup::Head, "lm_head.weight", {c.vocab, c.d_model});
  if (c.mtp_layers > 0) {
    const TensorGroup g = TensorGroup::Mtp;
    l.add(g, "mtp.fc_embedding.weight", {c.d_model, c.d_model});
    l.add(g, "mtp.fc_hidden.weight", {c.d_model, c.d_model});
    l.add(g, "mtp.pre_fc_norm_embedding.weight", {c.d_model});
    l.add(g, "mtp.pre_fc_norm_hidden.weight", {c.wide()});
    l.layer(g, TensorGroup::MtpExpert, "mtp.layers.0", LayerKind::SparseAttention);
    l.mixer(g, "mtp.hyper_connection_mixer", false);
  }
  return std::move(l.list);
}

}  // namespace quern

#include "checkpoint/gguf_names.h"

#include <fmt/core.h>

#include <charconv>

#include "base/check.h"

namespace quern {
namespace {

struct Pair {
  std::string_view gguf, logical;
};

constexpr Pair kTop[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight"},
    {"output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight"},
    {"output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight"},
};

constexpr Pair kLayer[] = {
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight"},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight"},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight"},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight"},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight"},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight"},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight"},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.experts.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"indexer.q_proj.weight", "self_attn.indexer.q_proj.weight"},
    {"indexer.k_proj.weight", "self_attn.indexer.k_proj.weight"},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight"},
    {"ple_key.weight", "ple.key_proj.weight"},
    {"ple_value.weight", "ple.value_proj.weight"},
    {"ple_norm_key.weight", "ple.norm_key.weight"},
    {"ple_norm_query.weight", "ple.norm_query.weight"},
    {"ple_norm_conv.weight", "ple.norm_conv.weight"},
    {"ple_conv1d.weight", "ple.conv1d.weight"},
};

// Of the draft block, after "blk.N.nextn.". The first spelling of a logical name is the one we write.
constexpr Pair kDraft[] = {
    {"enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
    {"hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
    {"eh_proj.weight", "mtp.eh_proj.weight"},
    {"hc_head_norm.weight", "mtp.hyper_connection_mixer.hc_norm.weight"},
    {"hc_head_down.weight", "mtp.hyper_connection_mixer.input_mix_weight_down.weight"},
    {"hc_head_up.weight", "mtp.hyper_connection_mixer.input_mix_weight_up.weight"},
    {"fc_embd.weight", "mtp.fc_embedding.weight"},
    {"fc_hidden.weight", "mtp.fc_hidden.weight"},
    {"hc_norm.weight", "mtp.hyper_connection_mixer.hc_norm.weight"},
    {"hc_down.weight", "mtp.hyper_connection_mixer.input_mix_weight_down.weight"},
    {"hc_up.weight", "mtp.hyper_connection_mixer.input_mix_weight_up.weight"},
};

constexpr std::string_view kTable = "ple.ple_embedding.ngram_embedding.weight";

// Takes "N." off the front.
bool take_number(std::string_view& text, int& n) {
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n);
  const auto used = static_cast<size_t>(r.ptr - text.data());
  if (r.ec != std::errc() || n < 0 || used >= text.size() || text[used] != '.') return false;
  text.remove_prefix(used + 1);
  return true;
}

std::string layer_name(std::string_view name, const GgufLayout& layout) {
  std::string_view rest = name.substr(4);
  int block = 0;
  if (!take_number(rest, block)) return "";
  const bool draft = block >= layout.n_layers;
  if (draft && block > layout.n_layers)
    throw Error(fmt::format("tensor '{}': more than one draft block is not supported", name));
  if (rest.starts_with("nextn.")) {
    if (!draft) return "";
    rest.remove_prefix(6);
    for (const std::string_view refused :
         {"embed_tokens.weight", "shared_head_head.weight", "shared_head_norm.weight"}) {
      if (rest == refused)
        throw Error(
            fmt::format("tensor '{}': a draft block with its own embedding or head is not supported", name));
    }
    for (const Pair& p : kDraft) {
      if (rest == p.gguf) return std::string(p.logical);
    }
    return "";
  }
  for (const Pair& p : kLayer) {
    if (rest == p.gguf)
      return draft ? fmt::format("mtp.layers.0.{}", p.logical)
                   : fmt::format("layers.{}.{}", block, p.logical);
  }
  return "";
}

}  // namespace

WeightForm gguf_form(std::string_view logical) {
  if (logical.ends_with(".linear_attn.A_log")) return WeightForm::NegExp;
  if (logical.ends_with(".linear_attn.norm.weight")) return WeightForm::Plain;
  const auto dot = logical.rfind('.', logical.size() - 8);  // before the last word in front of ".weight"
  const std::string_view word = dot == std::string_view::npos ? logical : logical.substr(dot + 1);
  for (const std::string_view norm :
       {"hc_norm.weight", "q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight",
        "norm_key.weight", "norm_query.weight", "norm_conv.weight", "pre_fc_norm_embedding.weight",
        "pre_fc_norm_hidden.weight"}) {
    if (word == norm) return WeightForm::OnePlus;
  }
  return WeightForm::Plain;
}

LogicalName logical_of_gguf(std::string_view file_name, const GgufLayout& layout) {
  std::string logical;
  // The scales of NVFP4 files, of a matrix and of its activations, keep the matrix's name.
  std::string name(file_name);
  std::string_view last;
  for (const std::string_view scale : {".input_scale", ".scale"}) {
    if (!file_name.ends_with(scale)) continue;
    last = scale;
    name.replace(name.size() - scale.size(), scale.size(), ".weight");
    break;
  }
  if (name == "per_layer_token_embd.weight") logical = fmt::format("layers.{}.{}", layout.ple_layer, kTable);
  for (const Pair& p : kTop) {
    if (name == p.gguf) logical = p.logical;
  }
  if (name.starts_with("blk.")) logical = layer_name(name, layout);
  if (logical.empty() || (!last.empty() && !logical.ends_with(".weight")))
    return {fmt::format("gguf.{}", file_name), WeightForm::Plain};
  if (last.empty()) return {logical, gguf_form(logical)};
  return {logical.substr(0, logical.size() - 7) + std::string(last), WeightForm::Plain};
}

std::string gguf_of_logical(std::string_view logical, const GgufLayout& layout) {
  if (logical.ends_with(".scale")) {
    const std::string_view stem = logical.substr(0, logical.size() - 5);
    const std::string weight = gguf_of_logical(fmt::format("{}weight", stem), layout);
    return weight.empty() ? "" : weight.substr(0, weight.size() - 6) + "scale";
  }
  for (const Pair& p : kTop) {
    if (logical == p.logical) return std::string(p.gguf);
  }
  for (const Pair& p : kDraft) {
    if (logical == p.logical) return fmt::format("blk.{}.nextn.{}", layout.n_layers, p.gguf);
  }
  int block = layout.n_layers;
  std::string_view rest = logical;
  if (rest.starts_with("mtp.layers.0.")) {
    rest.remove_prefix(13);
  } else if (rest.starts_with("layers.")) {
    rest.remove_prefix(7);
    if (!take_number(rest, block)) return "";
  } else {
    return "";
  }
  if (rest == kTable) return "per_layer_token_embd.weight";
  for (const Pair& p : kLayer) {
    if (rest == p.logical) return fmt::format("blk.{}.{}", block, p.gguf);
  }
  return "";
}

}  // namespace quern

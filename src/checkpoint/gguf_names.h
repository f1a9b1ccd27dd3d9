// GGUF's names of this model's tensors (architecture qwen4exp, MODEL.md §1.3, §1.6) and the logical ones.
//
//   blk.3.attn_q.weight ↔ layers.3.self_attn.q_proj.weight      blk.N of N ≥ trunk layers ↔ mtp.layers.0
//
// A matrix's NVFP4 companions keep its name: ….scale (the factor of all its values; of experts one each) and
// ….input_scale (of activations).
// Where GGUF cuts what Hugging Face keeps whole, the parts have logical names of their own:
//   mlp.experts.{gate_proj,up_proj,down_proj}.weight [E, n, k]; indexer.{q_proj,k_proj}.weight;
//   mtp.eh_proj.weight [H, 2H], whose columns are [fc_embedding | fc_hidden]
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace quern {

struct GgufLayout {
  int n_layers = 0;   // of the trunk; blocks from here on are draft blocks
  int ple_layer = 0;  // whose table per_layer_token_embd is
};

struct LogicalName {
  std::string name;
  WeightForm form = WeightForm::Plain;
};

// A name nothing maps is returned with "gguf." in front, so that the model can name it as unread. Throws Error
// (without the file's name) for layouts that are refused by name.
LogicalName logical_of_gguf(std::string_view file_name, const GgufLayout& layout);
// "" for a name GGUF has no place for.
std::string gguf_of_logical(std::string_view logical, const GgufLayout& layout);
// How GGUF stores the tensor of that logical name.
WeightForm gguf_form(std::string_view logical);

}  // namespace quern

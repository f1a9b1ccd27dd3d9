// The weights, one struct per kind of layer. Binding is closed-world: every tensor of the checkpoint is taken once with
// the right shape, or belongs to a skipped group (`visual.`; `mtp.` when the model does not draft).
//
// Matrices keep the file's format; on the CPU they are views into the mapped file, on CUDA they are uploaded (place()).
// Norms, convolutions and decays are small: they become f32 at load.
#pragma once

#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/step_cost.h"
#include "ops/delta_net.h"
#include "ops/hyper_connection.h"
#include "ops/moe.h"
#include "ops/ple.h"
#include "ops/sparse_attention.h"
#include "ops/weight.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern {

struct DeltaLayer {
  MixerWeights mix;
  Weight qkv, z, b, a;  // [C, H], [n_v·d_v, H], [n_v, H], [n_v, H]
  DeltaNetWeights delta;
  Weight out;  // [H, n_v·d_v]
};

struct AttentionLayer {
  MixerWeights mix;
  Weight q_gate;    // [n_heads·2·d_head, H]: per head [q | gate]
  Weight k, v;      // [n_kv·d_head, H]
  Weight index_qk;  // [(index_heads + 1)·d_index, H]
  QsaNorms norms;
  Weight out;  // [H, n_heads·d_head]
};

struct MoeLayer {
  MixerWeights mix;
  MoeWeights moe;
};

struct PleLayer {
  NgramHash hash;
  PleTable table;
  Weight key, value;  // [S·H, d_embed], [H, d_embed]
  PleWeights ple;
};

struct DraftBlock {
  Tensor norm_embedding, norm_hidden;  // [H], [W]
  Weight fc_embedding, fc_hidden;      // [H, H]
  AttentionLayer attention;
  MoeLayer moe;
  MixerWeights mix;  // before lm_head
};

struct LayerRef {
  LayerKind kind = LayerKind::DeltaNet;
  int index = 0;  // into delta or attention
};

struct ModelWeights {
  Weight embed;                  // [V, H]
  std::vector<LayerRef> layers;  // n_layers
  std::vector<DeltaLayer> delta;
  std::vector<AttentionLayer> attention;
  std::vector<MoeLayer> moe;  // n_layers
  PleLayer ple;
  MixerWeights mix;  // final
  Weight lm_head;    // [V, H]
  std::optional<DraftBlock> draft;

  std::vector<OwnedTensor> owned;  // what is not in the mapped file
  std::vector<Buffer> host;        // pinned: the n-gram table where a device reads it
  int64_t bytes = 0;               // of all tensors taken
  StepCost cost;
};

// Throws Error naming the tensor, what was expected and what was found.
ModelWeights bind_weights(Checkpoint& checkpoint, const Config& config, bool with_draft, Stream& stream);
// What a step over these weights reads and multiplies.
StepCost cost_of(const ModelWeights& weights, const Config& config);
// Whether the checkpoint holds a draft block.
bool has_draft_block(const Checkpoint& checkpoint);

}  // namespace quern

// Every buffer of a step, named, allocated once for the largest step; the tensors are views of the rows in use.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "ops/sparse_attention.h"
#include "tensor/buffer.h"

namespace quern {

struct Activations {
  Activations(Device device, const Config& config, const BatchCapacity& capacity, bool drafts);

  // Views for n_rows rows.
  void use_rows(int64_t n_rows);
  void use_logits(int64_t n_logits);

  Tensor x;    // [T, S·H] the wide residual
  Tensor h;    // [T, H] a block's input
  Tensor inj;  // [T, S]
  // Delta net.
  Tensor qkv, z, b, a;  // [T, C], [T, n_v·d_v], [T, n_v] twice
  Tensor o;             // [T, n_v·d_v]
  // Sparse attention.
  Tensor q_gate, k, v;  // [T, n_heads·2·d_head], [T, n_kv·d_head] twice
  Tensor index_qk;      // [T, (index_heads + 1)·d_index]
  Tensor qi, ki;        // its columns
  Selection selection;  // [T, budget_blocks], [T, 1]
  Tensor attn;          // [T, n_heads·d_head]
  // Experts.
  Tensor expert_ids, expert_p;  // [T, K] i32, f32
  // PLE.
  Tensor ngram, ple_key, ple_value;  // [T, d_embed], [T, S·H], [T, H]
  // Draft block.
  Tensor draft_x, draft_hidden, draft_e, draft_ones;  // [T, S·H] twice, [T, H], [T, S] all 1
  // Rows that want logits.
  Tensor logit_x, final_h, logits;  // [L, S·H], [L, H], [L, V]

 private:
  Tensor own(Tensor& view, DType dtype, int64_t rows, int64_t cols, bool per_logit = false);

  Device device_;
  int index_width_ = 0, d_index_ = 0;
  std::vector<OwnedTensor> memory_;
  std::vector<std::pair<Tensor*, Tensor>> per_row_, per_logit_;  // a view and the whole it is cut from
};

}  // namespace quern

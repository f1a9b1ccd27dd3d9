#include "model/activations.h"

#include "base/check.h"

namespace quern {

Activations::Activations(Device device, const Config& c, const BatchCapacity& capacity, bool drafts)
    : device_(device) {
  const int64_t T = capacity.rows, L = capacity.logits, H = c.d_model, W = c.wide();
  const DType f32 = DType::F32, i32 = DType::I32;
  own(x, f32, T, W);
  own(h, f32, T, H);
  own(inj, f32, T, c.streams);

  own(qkv, f32, T, c.delta.qkv_width());
  own(z, f32, T, c.delta.value_width());
  own(b, f32, T, c.delta.n_value_heads);
  own(a, f32, T, c.delta.n_value_heads);
  own(o, f32, T, c.delta.value_width());

  own(q_gate, f32, T, int64_t{c.n_heads} * 2 * c.d_head);
  own(k, f32, T, int64_t{c.n_kv_heads} * c.d_head);
  own(v, f32, T, int64_t{c.n_kv_heads} * c.d_head);
  own(index_qk, f32, T, int64_t{c.indexer.n_heads + 1} * c.indexer.d_head);
  own(selection.blocks, i32, T, c.indexer.n_blocks());
  own(selection.counts, i32, T, 1);
  own(attn, f32, T, int64_t{c.n_heads} * c.d_head);
  index_width_ = c.indexer.n_heads * c.indexer.d_head;
  d_index_ = c.indexer.d_head;

  own(expert_ids, i32, T, c.top_k);
  own(expert_p, f32, T, c.top_k);

  own(ngram, f32, T, c.ple.d_embed());
  own(ple_key, f32, T, W);
  own(ple_value, f32, T, H);

  if (drafts) {
    own(draft_x, f32, T, W);
    own(draft_hidden, f32, T, W);
    own(draft_e, f32, T, H);
    own(draft_ones, f32, T, c.streams);
  }

  own(logit_x, f32, L, W, true);
  own(final_h, f32, L, H, true);
  own(logits, f32, L, c.vocab, true);
  use_rows(T);
  use_logits(L);
}

Tensor Activations::own(Tensor& view, DType dtype, int64_t rows, int64_t cols, bool per_logit) {
  const Tensor whole =
      memory_.emplace_back(device_, dtype, std::initializer_list<int64_t>{rows, cols}).tensor;
  (per_logit ? per_logit_ : per_row_).emplace_back(&view, whole);
  return view = whole;
}

void Activations::use_rows(int64_t n_rows) {
  for (auto& [view, whole] : per_row_) *view = whole.slice_rows(0, n_rows);
  qi = index_qk.slice_cols(0, index_width_);
  ki = index_qk.slice_cols(index_width_, index_width_ + d_index_);
}

void Activations::use_logits(int64_t n_logits) {
  for (auto& [view, whole] : per_logit_) *view = whole.slice_rows(0, n_logits);
}

}  // namespace quern

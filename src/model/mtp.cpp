// The draft block (MTP, MODEL.md §0): from the wide hidden row of position p and the id of p + 1, logits of the id of
// p + 2. Its entry of position p lies at index p + 1 of the sequence's pages (QsaCache::shift).
#include "base/check.h"
#include "model/activations.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rows.h"

namespace quern {

void Model::draft_block(const BatchView& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const DraftBlock& w = *weights_->draft;
  const int64_t T = batch.n_rows, S = config_.streams, H = config_.d_model;

  embed(s, a.draft_e, batch, weights_->embed, 1);                            // [T, H]
  rms_norm(s, a.draft_e, a.draft_e, w.norm_embedding, 1, config_.norm_eps);  // [T, H]
  rms_norm(s, a.draft_hidden, a.draft_hidden, w.norm_hidden, 1,
           config_.norm_eps);  // [T, S·H], one norm over all of it
  linear(s, a.draft_x.reshape({T * S, H}), a.draft_hidden.reshape({T * S, H}), w.fc_hidden,
         batch.n_decode_rows * S);  // x_s = fc_hidden · n_s
  linear_inject(s, a.draft_x, a.draft_ones, a.draft_e, w.fc_embedding,
                batch.n_decode_rows);  // x_s += fc_embedding · e
  attention_layer(w.attention, memory_->kv.layer(cache_shape().draft_layer()), a.draft_x, batch, -1);
  moe_layer(w.moe, a.draft_x, batch, -1);
}

// Fills the draft block's caches for the prefill rows, whose hidden rows are at hand, then keeps the step's last hidden
// rows for later. In that order: a long step's rows replace in the ring the row before it.
void Model::draft_prefill(const Batch& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const Tensor ring = memory_->state.hidden_ring(), x = a.x;
  const BatchView& rows = batch.draft_view();
  if (rows.n_rows > 0) {
    a.use_rows(rows.n_rows);
    hidden_load(s, a.draft_hidden, x, ring, batch.draft_source(), rows);
    draft_block(rows);
    if (tap_) {
      const OwnedTensor h(s.device(), DType::F32, {rows.n_rows, config_.d_model});
      const OwnedTensor logits(s.device(), DType::F32, {rows.n_rows, config_.vocab});
      hc_mix(s, h.tensor, {}, a.draft_x, weights_->draft->mix, config_.streams, config_.norm_eps, 0);
      linear(s, logits.tensor, h.tensor, weights_->lm_head, 0);
      tap_("mtp.logits", logits.tensor);
      s.synchronize();  // h and logits go
    }
  }
  hidden_store(s, ring, x, batch.view());
}

Tensor Model::draft(Batch& batch) {
  QUERN_CHECK(options_.drafts, "draft of a model without a draft block");
  Stream& s = stream_;
  Activations& a = *activations_;
  batch.upload(s);
  const BatchView& rows = batch.draft_view();
  a.use_rows(rows.n_rows);
  a.use_logits(batch.n_logits());
  hidden_load(s, a.draft_hidden, a.draft_x, memory_->state.hidden_ring(), batch.draft_source(), rows);
  draft_block(rows);
  hidden_store_draft(s, memory_->state.hidden_ring(), a.draft_x, rows);
  lm_head(weights_->draft->mix, a.draft_x, batch);  // [items, V]
  return a.logits;
}

}  // namespace quern

// A sparse attention block (QSA, MODEL.md §0): x += inj ⊗ o_proj · attention(h). The trunk's and the draft block's.
#include "model/activations.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/linear.h"

namespace quern {

void Model::attention_layer(const AttentionLayer& w, const QsaCache& cache, Tensor x, const BatchView& batch,
                            int layer) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const int64_t n_decode = batch.n_decode_rows;

  hc_mix(s, a.h, a.inj, x, w.mix, config_.streams, config_.norm_eps, n_decode);  // [T, H], [T, S]
  tap("hcmix", layer, a.h);
  const Product in[] = {{a.q_gate, &w.q_gate},             // [T, n_heads·2·d_head]
                        {a.k, &w.k},                       // [T, n_kv·d_head]
                        {a.v, &w.v},                       // [T, n_kv·d_head]
                        {a.index_qk, &w.index_qk, true}};  // [T, (index_heads + 1)·d_index]
  linear(s, in, a.h, n_decode);
  qsa_write(s, a.q_gate, a.k, a.v, a.qi, a.ki, qsa_shape_, w.norms, cache, batch, config_.norm_eps);
  qsa_select(s, a.selection, a.qi, qsa_shape_, cache, batch);  // [T, budget_blocks]
  tap("select", layer, a.selection.blocks);
  tap("select.counts", layer, a.selection.counts);
  tap("index", layer, a.qi);
  qsa_attend(s, a.attn, a.q_gate, a.selection, qsa_shape_, cache, batch);  // [T, n_heads·d_head]
  tap_linear("attn", layer, a.attn, w.out, n_decode);
  linear_inject(s, x, a.inj, a.attn, w.out, n_decode);  // [T, S·H]
}

}  // namespace quern

// A mixture of experts (MODEL.md §0): x += inj ⊗ ( Σ p_e · expert_e(h) + gated shared expert ).
#include "model/activations.h"
#include "model/model.h"
#include "model/weights.h"

namespace quern {

void Model::moe_layer(const MoeLayer& w, Tensor x, const BatchView& batch, int layer) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const int64_t n_decode = batch.n_decode_rows;

  OwnedTensor y;
  if (tap_ && layer >= 0) y = OwnedTensor(s.device(), DType::F32, {batch.n_rows, config_.d_model});

  hc_mix(s, a.h, a.inj, x, w.mix, config_.streams, config_.norm_eps, n_decode);       // [T, H], [T, S]
  moe_routed(s, x, a.inj, a.h, a.expert_ids, a.expert_p, w.moe, n_decode, y.tensor);  // x: [T, S·H]
  if (y) {
    tap("moe", layer, y.tensor);
    s.synchronize();  // y goes
  }
}

}  // namespace quern

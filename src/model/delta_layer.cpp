// A gated delta net block (MODEL.md §0): x += inj ⊗ out_proj · delta_net(h).
#include "model/activations.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/linear.h"

namespace quern {

void Model::delta_layer(int layer, const BatchView& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const int index = weights_->layers[layer].index;
  const DeltaLayer& w = weights_->delta[index];
  const int64_t n_decode = batch.n_decode_rows;

  hc_mix(s, a.h, a.inj, a.x, w.mix, config_.streams, config_.norm_eps, n_decode);  // [T, H], [T, S]
  tap("hcmix", layer, a.h);
  const Product in[] = {{a.qkv, &w.qkv},  // [T, 2·n_k·d_k + n_v·d_v]
                        {a.z, &w.z},      // [T, n_v·d_v]
                        {a.b, &w.b},      // [T, n_v]
                        {a.a, &w.a}};     // [T, n_v]
  linear(s, in, a.h, n_decode);
  delta_net(s, a.o, a.qkv, a.z, a.a, a.b, delta_shape_, w.delta, memory_->state.delta(index), batch,
            config_.norm_eps);  // [T, n_v·d_v]
  tap_linear("gdn", layer, a.o, w.out, n_decode);
  linear_inject(s, a.x, a.inj, a.o, w.out, n_decode);  // [T, S·H]
}

}  // namespace quern

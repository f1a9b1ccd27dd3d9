// Mixture of experts with a gated shared expert (MODEL.md §0).
//
// moe_route:  l = gate·h in f32;  p = softmax(l) over E;  the K largest p, largest first;
//             p_j = p_j / Σ p where `renormalise`          ids: [T, K] i32      p: [T, K] f32
//
// moe:        y_e  = down_e · ( silu(gate_e·h) ⊙ up_e·h )                       one complete f32 vector
//             y    = ((p_0·y_0 + p_1·y_1) + …) + sigmoid(shared_gate·h) · shared(h)
//             x[t, s, :] += inj[t, s] · y[t, :]             x: [T, S·H] f32 in place      inj: [T, S]      h:
//             [T, H]
//
// moe_routed: both, bit for bit; `ids` and `p` are written. On CUDA one decode row's experts so begin sooner.
//
// Equal p go to the lower id. On CUDA the logits are compared, which tell apart p that are equal as f32.
//
// Rows are grouped by expert so that a step reads each chosen expert once; a row's result does not depend on
// the others.
#pragma once

#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern {

struct MoeWeights {
  Weight router;                 // [E, H], BF16 or better
  ExpertWeights gate, up, down;  // [I, H], [I, H], [H, I] each
  Weight shared_gate, shared_up, shared_down;
  Weight shared_expert_gate;  // [1, H]
  int top_k = 0;
  bool renormalise = true;
};

void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w, int64_t n_decode_rows);
// `y`, if given ([T, H] f32), receives the block's output as well, for comparison with golden files.
void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
         int64_t n_decode_rows, Tensor y = {});
void moe_routed(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
                int64_t n_decode_rows, Tensor y = {});

namespace cpu {
void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w);
void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w, Tensor y);
}  // namespace cpu
namespace cuda {
void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w, int64_t n_decode_rows);
void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
         int64_t n_decode_rows, Tensor y);
void moe_routed(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
                int64_t n_decode_rows, Tensor y);
}  // namespace cuda

}  // namespace quern

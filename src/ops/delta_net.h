// The gated delta net between its projections (Yang, Kautz, Hatamizadeh 2024; MODEL.md §0).
//
//   c[t, :]  = silu( Σ_j conv[:, j] · qkv[t - 3 + j, :] )            causal; rows before position 0 are zero
//   q, k, v  = split of c into n_k heads of d_k, n_k heads of d_k, n_v heads of d_v
//   q = q · rsqrt(Σ q² + 1e-6) / sqrt(d_k)      k = k · rsqrt(Σ k² + 1e-6)
//   beta = sigmoid(b)      g = decay · softplus(a + dt_bias)          per value head; decay = -exp(A_log)
//   per value head, with its key head's q, k and state M [d_k, d_v]:
//     M = exp(g)·M;   d = beta·(v - Mᵀk);   M = M + k dᵀ;   o = Mᵀq
//   y = norm ⊙ o · rsqrt(mean o² + eps) ⊙ gate(z)                     gate: sigmoid or silu
//
//   y, z: [T, n_v·d_v] f32      qkv: [T, 2·n_k·d_k + n_v·d_v] f32      a, b: [T, n_v] f32; inputs may be
//   column slices
//
// State, one slot a sequence, f32:
//   M       [slots, n_v, d_k, d_v]
//   ring    [slots, kConvRing, C]: raw qkv rows at position mod kConvRing; nothing to roll back
//   pending [slots, kMaxDrafts + 1, …]: what the rows of the last decode segment did (k, v, g, beta: see
//   pending_width)
//
// A segment first replays its n_pending accepted pending rows into M, then runs its own rows. A prefill
// segment leaves M after its last row. A decode segment leaves M where the replay left it and its own rows in
// pending: how many of them count is the next step's n_pending. Replay and first run are the same arithmetic
// in the same order, so any accepted count gives the bits of the undrafted run.
//
// Decode rows use the one-token form. Prefill rows: the one-token form on the CPU; on CUDA chunks at absolute
// multiples of 64 positions, a short last chunk padded with zero rows (k = q = v = 0, beta = 0, g = 0).
#pragma once

#include "ops/batch_view.h"
#include "tensor/stream.h"

namespace quern {

enum class HeadOrder : uint8_t {
  Grouped,
  Tiled
};  // value head j uses key head j div (n_v/n_k), or j mod n_k (GGUF)
enum class GateType : uint8_t { Sigmoid, Silu };

struct DeltaNetShape {
  int n_k = 0, n_v = 0, d_k = 0, d_v = 0;
  HeadOrder order = HeadOrder::Grouped;
  GateType gate = GateType::Sigmoid;
  int conv_channels() const { return 2 * n_k * d_k + n_v * d_v; }
  int pending_width() const { return n_k * d_k + n_v * d_v + 2 * n_v; }  // normalised k, v, g, beta
};

struct DeltaNetWeights {
  Tensor conv;     // [C, 4] f32
  Tensor decay;    // [n_v] f32, -exp(A_log)
  Tensor dt_bias;  // [n_v] f32
  Tensor norm;     // [d_v] f32, plain weight
};

struct DeltaNetState {
  Tensor M, ring, pending;
};

void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps);

// Replays `n_pending` pending rows of `slot` into M, for a snapshot, fork or swap of it.
void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending);

namespace cpu {
void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps);
void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending);
}  // namespace cpu
namespace cuda {
void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps);
void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending);
}  // namespace cuda

}  // namespace quern

// Attention over the blocks an indexer selects (QSA; MODEL.md §0), between its projections. Three ops in
// order.
//
// qsa_write, per row at position p:
//   q = rope(rms(q; q_norm), p) per query head      k = rope(rms(k; k_norm), p) per kv head      in place
//   qi = rope(rms(qi; index_q_norm), p) per index head, in place
//   k and v go to the sequence's page of p; the raw index key ki to the slot's ring at p mod kConvRing
//   a row with p mod 4 = 3 completes block b = p div 4:
//     pooled[b] = rope( rms( ((ki[4b] + ki[4b+1]) + ki[4b+2] + ki[4b+3]) / 4 ; index_k_norm ), 4b )
//   rms is zero-centred; rope turns the first d_rope dimensions, pairs (i, i + d_rope/2), by p ·
//   theta^(-2i/d_rope).
//
// qsa_select, per row with n = (p + 1) div 4 complete blocks visible:
//   score(b) = Σ_heads relu(qi · pooled[b]) / sqrt(d_index)      f32
//   blocks[t, :] = the best min(budget_blocks, n) blocks, ascending; ties go to the lowest block
//   n ≤ budget_blocks: all blocks, without scoring. counts[t] = how many.
//
// qsa_attend: the row's keys are the tokens of its blocks in ascending order, then the (p + 1) mod 4 tokens
// after the last complete block, itself the last; per query head with its kv head (n_heads / n_kv query heads
// share one):
//   o = softmax(q·k / sqrt(d_head)) v        y = o ⊙ sigmoid(gate)
//   The list is cut by rank into runs of kRunTokens entries, merged left to right (online softmax), so a
//   row's result depends on its list only.
//   The selection is qsa_select's of the same rows: counts follow from positions and are not read on CUDA.
//
//   q: [T, n_heads, d_head] and gate likewise are views into q_proj's rows [q | gate] per head: `q_gate` [T,
//   n_heads·2·d_head] k, v: [T, n_kv·d_head]      qi: [T, index_heads·d_index]      ki: [T, d_index]      y:
//   [T, n_heads·d_head]; all f32 pages: K, V [pages, n_kv, 64, d_head] f32 | bf16 | f16, pooled [pages, 16,
//   d_index] f32; ring [slots, kConvRing, d_index] f32 Entries of pages at or beyond a row's length are never
//   read: they may hold anything.
#pragma once

#include "ops/batch_view.h"
#include "tensor/stream.h"

namespace quern {

inline constexpr int kRunTokens = 64;

struct QsaShape {
  int n_heads = 0, n_kv = 0, d_head = 0, d_rope = 0;
  int index_heads = 0, d_index = 0;
  int budget_blocks = 0;  // 512 in the release
  double rope_theta = 1e7;
};

struct QsaNorms {
  Tensor q, k;              // [d_head] f32
  Tensor index_q, index_k;  // [d_index] f32
};

struct QsaCache {
  Tensor k, v, pooled;  // pages
  Tensor ring;          // slots
  // Position p lies at entry p + shift of its sequence's pages and block b at pooled key b + shift; the ring
  // and all arithmetic keep p and b. 1 for the draft block, whose entry of position p needs the id of p + 1
  // (so that a page depends on its own ids only); 0 otherwise.
  int shift = 0;
};

struct Selection {
  Tensor blocks;  // [T, budget_blocks] i32
  Tensor counts;  // [T, 1] i32
};

void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps);
void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);
void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);

namespace cpu {
void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps);
void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);
void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);
}  // namespace cpu
namespace cuda {
void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps);
void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);
void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch);
}  // namespace cuda

}  // namespace quern

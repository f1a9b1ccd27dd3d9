// The hashed n-gram block (PLE; MODEL.md §0): table rows chosen by the last three ids, gated into the wide
// residual.
//
// ple_rows: with t0 the row's id and t1, t2 the two before it (BatchView::windows), walking back from t0: the
// first missing id or the first eos among t1, t2, and everything before it, count as eos. In wrapping 64-bit
// arithmetic
//
//   m2 = (t0·a0) ^ (t1·a1)      m3 = m2 ^ (t2·a2)
//   row_h = (h < heads ? m2 : m3) mod vocab_h + offset_h      with a non-negative modulus, 2·heads rows in
//   all emb[t, :] = concatenation of the rows                     [T, 2·heads·d_row] f32
//
// ple_add: with key = key_proj·emb [T, S·H], value = value_proj·emb [T, H] computed by linear,
//
//   k = rms per stream (key; norm_key)      q = rms per stream (x; norm_query)
//   g = (k · q over H) / sqrt(H)            g = sign(g) · sqrt(max(|g|, 1e-6))        per stream
//   v = sigmoid(g) · value                  u = rms per stream (v; norm_conv)
//   x += v + silu( Σ_j conv[c, j] · u[t - 3·(3 - j), c] )       taps before position 0 are zero
//
// The last kPleRing rows of u stay in the slot's ring at position mod kPleRing; a row reads taps of its own
// segment from the batch and earlier ones from the ring. All f32.
#pragma once

#include <array>
#include <vector>

#include "ops/batch_view.h"
#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern {

struct NgramHash {
  std::array<int64_t, 3> multiplier{};
  std::vector<int64_t> vocab, offset;  // one a head, 2-gram heads first
  int32_t eos = 0;
};

struct PleTable {
  std::vector<Weight> parts;  // row ranges of the table in order, each [rows, d_row]; one part when whole
  int64_t rows_per_part = 0;  // of all parts but the last
  int64_t d_row = 0;
};

struct PleWeights {
  Tensor norm_key, norm_query, norm_conv;  // [S·H] f32
  Tensor conv;                             // [S·H, 4] f32
};

void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table);
// x: [T, S·H] in place; ring: [slots, kPleRing, S·H] f32
void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps);

namespace cpu {
void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table);
void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps);
}  // namespace cpu
namespace cuda {
void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table);
void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps);
}  // namespace cuda

}  // namespace quern

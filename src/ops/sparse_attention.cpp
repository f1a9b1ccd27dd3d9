#include "ops/sparse_attention.h"

#include "base/check.h"

namespace quern {
namespace {

bool is_rows(const Tensor& t, int64_t rows, int64_t cols) {
  return t.rank == 2 && t.dtype == DType::F32 && t.shape[0] == rows && t.shape[1] == cols;
}

void check_cache(const QsaShape& shape, const QsaCache& cache) {
  QUERN_CHECK(shape.n_kv > 0 && shape.n_heads % shape.n_kv == 0, "qsa: n_heads is a multiple of n_kv");
  QUERN_CHECK(shape.d_rope % 2 == 0 && shape.d_rope <= shape.d_head && shape.d_rope <= shape.d_index,
              "qsa: d_rope is even and fits both heads");
  const auto pages_ok = [&](const Tensor& t) {
    return t.rank == 4 && t.shape[1] == shape.n_kv && t.shape[2] == kPageTokens &&
           t.shape[3] == shape.d_head && t.packed();
  };
  QUERN_CHECK(pages_ok(cache.k) && pages_ok(cache.v) && cache.k.dtype == cache.v.dtype,
              "qsa: K and V are [pages, n_kv, 64, d_head] of one type");
  QUERN_CHECK(cache.k.dtype == DType::F32 || cache.k.dtype == DType::BF16 || cache.k.dtype == DType::F16,
              "qsa: K and V are f32, bf16 or f16");
  QUERN_CHECK(cache.pooled.rank == 3 && cache.pooled.dtype == DType::F32 &&
                  cache.pooled.shape[1] == kPageBlocks && cache.pooled.cols() == shape.d_index &&
                  cache.pooled.packed(),
              "qsa: pooled is f32 [pages, 16, d_index]");
}

void check_selection(const Selection& selection, const QsaShape& shape, const BatchView& batch) {
  QUERN_CHECK(selection.blocks.dtype == DType::I32 && selection.blocks.rank == 2 &&
                  selection.blocks.shape[0] == batch.n_rows && selection.blocks.cols() == shape.budget_blocks,
              "qsa: blocks is i32 [T, budget_blocks]");
  QUERN_CHECK(selection.counts.dtype == DType::I32 && selection.counts.elements() == batch.n_rows,
              "qsa: counts is i32 [T, 1]");
}

}  // namespace

void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps) {
  check_cache(shape, cache);
  QUERN_CHECK(is_rows(q_gate, batch.n_rows, int64_t{shape.n_heads} * 2 * shape.d_head),
              "qsa_write: q_gate is f32 [T, n_heads·2·d_head]");
  QUERN_CHECK(is_rows(k, batch.n_rows, int64_t{shape.n_kv} * shape.d_head) &&
                  is_rows(v, batch.n_rows, int64_t{shape.n_kv} * shape.d_head),
              "qsa_write: k and v are f32 [T, n_kv·d_head]");
  QUERN_CHECK(is_rows(qi, batch.n_rows, int64_t{shape.index_heads} * shape.d_index) &&
                  is_rows(ki, batch.n_rows, shape.d_index),
              "qsa_write: qi is f32 [T, index_heads·d_index], ki is f32 [T, d_index]");
  QUERN_CHECK(norms.q.elements() == shape.d_head && norms.k.elements() == shape.d_head &&
                  norms.index_q.elements() == shape.d_index && norms.index_k.elements() == shape.d_index,
              "qsa_write: norms are [d_head], [d_head], [d_index], [d_index]");
  QUERN_CHECK(cache.ring.rank == 3 && cache.ring.dtype == DType::F32 && cache.ring.shape[1] == kConvRing &&
                  cache.ring.cols() == shape.d_index,
              "qsa_write: ring is f32 [slots, kConvRing, d_index]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::qsa_write(s, q_gate, k, v, qi, ki, shape, norms, cache, batch, eps);
  }
  cpu::qsa_write(s, q_gate, k, v, qi, ki, shape, norms, cache, batch, eps);
}

void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  check_cache(shape, cache);
  check_selection(selection, shape, batch);
  QUERN_CHECK(is_rows(qi, batch.n_rows, int64_t{shape.index_heads} * shape.d_index),
              "qsa_select: qi is f32 [T, index_heads·d_index]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::qsa_select(s, selection, qi, shape, cache, batch);
  }
  cpu::qsa_select(s, selection, qi, shape, cache, batch);
}

void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  check_cache(shape, cache);
  check_selection(selection, shape, batch);
  QUERN_CHECK(is_rows(q_gate, batch.n_rows, int64_t{shape.n_heads} * 2 * shape.d_head),
              "qsa_attend: q_gate is f32 [T, n_heads·2·d_head]");
  QUERN_CHECK(is_rows(y, batch.n_rows, int64_t{shape.n_heads} * shape.d_head),
              "qsa_attend: y is f32 [T, n_heads·d_head]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::qsa_attend(s, y, q_gate, selection, shape, cache, batch);
  }
  cpu::qsa_attend(s, y, q_gate, selection, shape, cache, batch);
}

}  // namespace quern

#include "ops/ple.h"

#include "base/check.h"

namespace quern {

void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table) {
  const auto heads = static_cast<int64_t>(hash.vocab.size());
  QUERN_CHECK(heads > 0 && heads % 2 == 0 && hash.offset.size() == hash.vocab.size(),
              "ple_rows: vocab and offset have one value a head, 2-grams then 3-grams");
  QUERN_CHECK(emb.rank == 2 && emb.dtype == DType::F32 && emb.shape[0] == batch.n_rows &&
                  emb.cols() == heads * table.d_row,
              "ple_rows: emb is f32 [T, 2·heads·d_row]");
  QUERN_CHECK(!table.parts.empty() && table.rows_per_part > 0, "ple_rows: the table has no parts");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::ple_rows(s, emb, batch, hash, table);
  }
  cpu::ple_rows(s, emb, batch, hash, table);
}

void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps) {
  const auto is = [&](const Tensor& t, int64_t cols) {
    return t.rank == 2 && t.dtype == DType::F32 && t.shape[0] == batch.n_rows && t.shape[1] == cols;
  };
  const int64_t wide = x.cols();
  QUERN_CHECK(is(x, wide) && is(key, wide) && wide % streams == 0 && is(value, wide / streams),
              "ple_add: x and key are f32 [T, S·H], value is f32 [T, H]");
  QUERN_CHECK(w.norm_key.elements() == wide && w.norm_query.elements() == wide &&
                  w.norm_conv.elements() == wide && w.conv.rows() == wide && w.conv.cols() == 4,
              "ple_add: norms are [S·H], conv is [S·H, 4]");
  QUERN_CHECK(ring.rank == 3 && ring.dtype == DType::F32 && ring.shape[1] == kPleRing && ring.cols() == wide,
              "ple_add: ring is f32 [slots, kPleRing, S·H]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::ple_add(s, x, key, value, w, ring, batch, streams, eps);
  }
  cpu::ple_add(s, x, key, value, w, ring, batch, streams, eps);
}

}  // namespace quern

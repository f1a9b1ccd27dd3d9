#include "ops/rows.h"

#include "base/check.h"

namespace quern {
namespace {

void check_rows(const Tensor& y, const Tensor& x) {
  QUERN_CHECK(y.dtype == DType::F32 && x.dtype == DType::F32 && y.cols() == x.cols(),
              "rows: y and x are f32 of one width");
}

}  // namespace

void gather_rows(Stream& s, Tensor y, Tensor x, const int32_t* index) {
  check_rows(y, x);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::gather_rows(s, y, x, index);
  }
  cpu::gather_rows(s, y, x, index);
}

void hidden_load(Stream& s, Tensor y, Tensor x, Tensor ring, const int32_t* source, const BatchView& batch) {
  check_rows(y, x);
  QUERN_CHECK(
      ring.rank == 3 && ring.shape[1] == kHiddenRing && ring.cols() == y.cols() && ring.dtype == DType::F32,
      "hidden_load: ring is [slots, kHiddenRing, W] f32");
  QUERN_CHECK(y.rows() == batch.n_rows, "hidden_load: y has a row per batch row");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::hidden_load(s, y, x, ring, source, batch);
  }
  cpu::hidden_load(s, y, x, ring, source, batch);
}

void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch, int shift, int last) {
  QUERN_CHECK(ring.rank == 3 && ring.shape[1] == kHiddenRing && ring.cols() == x.cols() &&
                  ring.dtype == DType::F32 && x.dtype == DType::F32,
              "hidden_store: ring is [slots, kHiddenRing, W] f32, x [T, W] f32");
  QUERN_CHECK(x.rows() == batch.n_rows && last >= 1 && last <= kHiddenRing, "hidden_store: rows");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::hidden_store(s, ring, x, batch, shift, last);
  }
  cpu::hidden_store(s, ring, x, batch, shift, last);
}

}  // namespace quern

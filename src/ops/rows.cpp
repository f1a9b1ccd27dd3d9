#include "ops/rows.h"

#include "base/check.h"

namespace quern {
namespace {

void check_rows(const Tensor& y, const Tensor& x) {
  QUERN_CHECK(y.dtype == DType::F32 && x.dtype == DType::F32 && y.cols() == x.cols(),
              "rows: y and x are f32 of one width");
}

void check_ring(const Tensor& ring, const Tensor& x, const BatchView& batch) {
  QUERN_CHECK(ring.rank == 3 && ring.shape[1] == kHiddenRing + 1 && ring.cols() == x.cols() &&
                  ring.dtype == DType::F32 && x.dtype == DType::F32,
              "hidden rows: ring is [slots, kHiddenRing + 1, W] f32, x [T, W] f32");
  QUERN_CHECK(x.rows() == batch.n_rows, "hidden rows: one for each row of the batch");
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
  check_ring(ring, y, batch);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::hidden_load(s, y, x, ring, source, batch);
  }
  cpu::hidden_load(s, y, x, ring, source, batch);
}

void hidden_store(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  check_ring(ring, x, batch);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::hidden_store(s, ring, x, batch);
  }
  cpu::hidden_store(s, ring, x, batch);
}

void hidden_store_draft(Stream& s, Tensor ring, Tensor x, const BatchView& batch) {
  check_ring(ring, x, batch);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::hidden_store_draft(s, ring, x, batch);
  }
  cpu::hidden_store_draft(s, ring, x, batch);
}

}  // namespace quern

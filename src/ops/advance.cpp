#include "ops/advance.h"

#include "base/check.h"

namespace quern {

void advance(Stream& s, const BatchView& batch, SamplingRow* rows, Tensor chosen) {
  QUERN_CHECK(batch.n_rows == batch.n_segments && batch.n_rows == batch.n_decode_rows,
              "advance: decode segments of one row each");
  QUERN_CHECK(chosen.dtype == DType::I32 && chosen.elements() >= batch.n_segments,
              "advance: an id a segment");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::advance(s, batch, rows, chosen);
  }
  cpu::advance(s, batch, rows, chosen);
}

}  // namespace quern

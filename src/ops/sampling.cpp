#include "ops/sampling.h"

#include "base/check.h"

namespace quern {

void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows) {
  QUERN_CHECK(logits.rank == 2 && logits.dtype == DType::F32 && logits.shape[0] == n_rows,
              "sample: logits is f32 [R, V]");
  QUERN_CHECK(ids.dtype == DType::I32 && ids.elements() == n_rows && ids.packed(), "sample: ids is i32 [R]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::sample(s, ids, logits, rows, n_rows);
  }
  cpu::sample(s, ids, logits, rows, n_rows);
}

}  // namespace quern

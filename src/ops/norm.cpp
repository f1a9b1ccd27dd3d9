#include "ops/norm.h"

#include "base/check.h"

namespace quern {

void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps) {
  QUERN_CHECK(x.rank == 2 && y.rank == 2 && y.shape == x.shape,
              "rms_norm: y and x are matrices of one shape");
  QUERN_CHECK(x.dtype == DType::F32 && y.dtype == DType::F32 && w.dtype == DType::F32,
              "rms_norm: all is f32");
  QUERN_CHECK(groups >= 1 && x.cols() % groups == 0, "rms_norm: the row is not a whole number of groups");
  QUERN_CHECK(w.elements() == x.cols() && w.packed(), "rms_norm: w has one value per column");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::rms_norm(s, y, x, w, groups, eps);
  }
  cpu::rms_norm(s, y, x, w, groups, eps);
}

}  // namespace quern

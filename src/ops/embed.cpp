#include "ops/embed.h"

#include "base/check.h"

namespace quern {

void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams) {
  QUERN_CHECK(x.rank == 2 && x.dtype == DType::F32, "embed: x is no f32 matrix");
  QUERN_CHECK(x.shape[0] == batch.n_rows && x.shape[1] == streams * table.k(), "embed: x is not [T, S·H]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::embed(s, x, batch, table, streams);
  }
  cpu::embed(s, x, batch, table, streams);
}

}  // namespace quern

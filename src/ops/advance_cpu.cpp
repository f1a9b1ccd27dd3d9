#include "ops/advance.h"
#include "ops/advance_row.h"

namespace quern::cpu {

void advance(Stream&, const BatchView& batch, SamplingRow* rows, Tensor chosen) {
  for (int64_t i = 0; i < batch.n_segments; ++i) advance_row(batch, rows, chosen.as<int32_t>(), i);
}

}  // namespace quern::cpu

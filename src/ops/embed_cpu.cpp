#include <cstring>

#include "base/check.h"
#include "ops/cpu/matmul.h"
#include "ops/embed.h"

namespace quern::cpu {

void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams) {
  const int64_t h = table.k();
  s.pool().parallel_for(batch.n_rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t id = batch.ids[t];
      QUERN_CHECK(id >= 0 && id < table.n(), "embed: id " + std::to_string(id) + " is outside the table");
      float* row = x.row<float>(t);
      weight_row(table, id, row);
      for (int i = 1; i < streams; ++i) std::memcpy(row + i * h, row, static_cast<size_t>(h) * sizeof(float));
    }
  });
}

}  // namespace quern::cpu

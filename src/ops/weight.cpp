#include "ops/weight.h"

#include <fmt/core.h>

#include "base/check.h"

namespace quern {

Weight Weight::slice_rows(int64_t begin, int64_t end) const {
  Weight part = *this;
  part.data = data.slice_rows(begin, end);
  if (!scale) return part;
  if (scale.shape[0] == data.shape[0]) {
    part.scale = scale.slice_rows(begin, end);
    return part;
  }
  QUERN_CHECK(begin % 128 == 0 && (end % 128 == 0 || end == n()),
              fmt::format("slice_rows [{}, {}) cuts a block of 128 rows that share scales", begin, end));
  part.scale = scale.slice_rows(begin / 128, (end + 127) / 128);
  return part;
}

}  // namespace quern

// Not an op: advance for one segment, host and device. The arrays of a BatchView are read-only to every other op.
#pragma once

#include "ops/advance.h"
#include "ops/quant_formats.h"  // QUERN_HD

namespace quern {

QUERN_HD void advance_row(const BatchView& batch, SamplingRow* rows, const int32_t* chosen, int64_t i) {
  auto* segment = const_cast<Segment*>(batch.segments) + i;
  if (segment->role == Role::Pad) return;
  const int32_t row = segment->row, id = chosen[i] < 0 ? 0 : chosen[i];
  auto* windows = const_cast<int32_t*>(batch.windows) + 3 * int64_t{row};
  windows[2] = windows[1];
  windows[1] = windows[0];
  windows[0] = id;
  const_cast<int32_t*>(batch.ids)[row] = id;
  ++const_cast<int32_t*>(batch.positions)[row];
  ++segment->position;
  segment->n_pending = 1;
  ++rows[i].position;
}

}  // namespace quern

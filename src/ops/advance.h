// The next decode step's inputs, made from this step's choices where the step runs: with it a step is launched before
// the ids of the last one have reached the host.
//
// For a batch of decode segments of one row each, in the order of `ids`:
//   ids[row] = ids_chosen[i]      windows[row] = (chosen, w0, w1)      positions[row] += 1
//   segment.position += 1         segment.n_pending = 1                every row of a step so far counts
// and SamplingRow::position += 1 of row i.
//
//   chosen: [n_segments] i32. The batch's arrays and `rows` are overwritten; a padding segment is left alone. An id of -1
//   (a row that failed) is carried as 0: whoever reads `chosen` stops that sequence.
#pragma once

#include "ops/batch_view.h"
#include "ops/sampling.h"
#include "tensor/stream.h"

namespace quern {

void advance(Stream& s, const BatchView& batch, SamplingRow* rows, Tensor chosen);

namespace cpu {
void advance(Stream& s, const BatchView& batch, SamplingRow* rows, Tensor chosen);
}
namespace cuda {
void advance(Stream& s, const BatchView& batch, SamplingRow* rows, Tensor chosen);
}

}  // namespace quern

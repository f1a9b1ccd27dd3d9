// The next id of each row of logits, by Gumbel-max keyed by (seed, position, id).
//
// Per row, in this order:
//   l[i] += bias[i]                                             listed ids only
//   l[i]  = l[i] > 0 ? l[i] / repetition : l[i] · repetition    ids of prompt or reply
//   l[i] -= presence · [count_i > 0] + frequency · count_i      count_i: occurrences in the reply
//   l[i]  = -inf where the mask bit of i is 0
//   temperature 0: the argmax, ties to the lower id. Otherwise l /= temperature, then the cuts, each on what
//   is left: top-k: the k largest, ties to the lower id; top-p: the smallest set of most likely ids whose
//   probability reaches p; min-p: ids at least min_p times as likely as the most likely id = argmax_i ( l[i]
//   - log(-log u_i) ),  u_i in (0, 1) from a counter-based generator at (seed, position, i)
//
// `position` is the position the chosen id will take, so a drafted row draws what the undrafted one would.
// A row with a NaN, a +inf, or nothing left to choose gives id -1: an error of that row and of no other.
//
//   logits: [R, V] f32, not changed      ids: [R] i32      rows: R of them; ids and rows are memory of the
//   stream's device, rows written as the batch is: by copies and at the end of a step
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/stream.h"

namespace quern {

struct SamplingRow {
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float repetition = 1, presence = 0, frequency = 0;
  uint64_t seed = 0;
  int64_t position = 0;
  // Sorted by id, unique; memory of the stream's device.
  const int32_t* seen_ids = nullptr;  // ids of prompt or reply, with how often the reply holds each
  const int32_t* seen_counts = nullptr;
  int32_t n_seen = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias = nullptr;
  int32_t n_bias = 0;
  const uint32_t* mask = nullptr;  // bit i of word i/32 set: allowed; null: all
};

void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows);

namespace cpu {
void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows);
}
namespace cuda {
void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows);
}

}  // namespace quern

// From rows of logits to ids: everything a request asks of its sampling (ops/sampling.h), for committed rows,
// rows behind drafts, and the draft block's own rows alike. The one place ids are chosen, so a drafted row is
// judged by the rules, and the noise, of the undrafted one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/reply.h"
#include "ops/sampling.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern {

// The id that follows the reply's ids and then `after` (drafts), from row `logits_row`.
struct ChoiceRow {
  const Reply* reply = nullptr;
  std::span<const int32_t> after;
  int64_t logits_row = 0;
};

class TokenChooser {
 public:
  TokenChooser(Stream& stream, int64_t vocab, int64_t max_rows);

  // Appends an id for each row to `out`; -1 where the row has NaN or +inf or nothing is left to choose. Waits
  // for the device.
  void choose(Tensor logits, std::span<const ChoiceRow> rows, std::vector<int32_t>& out);
  // Log-probabilities of the raw logits of a row: of `id` and of the k most likely.
  TokenLogprob logprob(Tensor logits, int64_t row, int32_t id, int32_t k);

 private:
  void fill(SamplingRow& row, const ChoiceRow& choice);
  template <typename T>
  const T* stage(std::span<const T> values);

  Stream& stream_;
  int64_t vocab_;
  OwnedTensor ids_;
  std::vector<SamplingRow> rows_;
  std::vector<std::byte> staged_;  // what the rows point to, uploaded in one piece
  Buffer on_device_;
  std::vector<float> logits_;
  std::vector<uint32_t> mask_;
};

// Sorted insertion of one id that the reply now holds.
void count_id(std::vector<int32_t>& seen_ids, std::vector<int32_t>& seen_counts, int32_t id);
// What penalties need of the prompt, if there are any.
void start_counts(Reply& reply);
bool has_penalties(const SamplingParams& p);

}  // namespace quern

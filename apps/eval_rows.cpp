#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "eval.h"

namespace quern {

std::vector<int32_t> read_ids(const Checkpoint& file, const TensorView& t, int64_t vocab) {
  std::vector<int32_t> ids(t.elements());
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (t.dtype == DType::I32) {
      std::memcpy(&narrow, t.bytes.data() + 4 * i, 4);
      id = narrow;
    } else if (t.dtype == DType::I64) {
      std::memcpy(&id, t.bytes.data() + 8 * i, 8);
    } else {
      throw Error(fmt::format("{}: expected I32 or I64, found {}", file.where(t), name(t.dtype)));
    }
    if (id < 0 || id >= vocab)
      throw Error(
          fmt::format("{}: entry {}: expected an id below {}, found {}", file.where(t), i, vocab, id));
    ids[i] = static_cast<int32_t>(id);
  }
  return ids;
}

Rows download(Stream& s, Tensor t, int64_t last) {
  const int64_t n = std::min(last, t.rows());
  Rows rows{n, t.cols(), std::vector<float>(n * t.cols())};
  for (int64_t i = 0; i < n; ++i)
    s.download(rows.values.data() + i * t.cols(), t.row<float>(t.rows() - n + i), t.cols() * 4);
  s.synchronize();
  return rows;
}

int32_t argmax(const float* logits, int64_t n, const std::vector<int32_t>& banned) {
  int32_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (std::find(banned.begin(), banned.end(), static_cast<int32_t>(i)) != banned.end()) continue;
    if (best < 0 || logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  return best;
}

double log_sum_exp(const float* logits, int64_t n) {
  const double top = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[i] - top);
  return top + std::log(sum);
}

double divergence(const float* got, const float* expected, int64_t n) {
  const double zg = log_sum_exp(got, n), ze = log_sum_exp(expected, n);
  double kl = 0;
  for (int64_t i = 0; i < n; ++i) kl += std::exp(expected[i] - ze) * ((expected[i] - ze) - (got[i] - zg));
  return kl;
}

}  // namespace quern

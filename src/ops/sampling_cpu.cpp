#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/sampling.h"
#include "ops/scalar.h"

namespace quern::cpu {
namespace {

struct Candidate {
  float l;
  int32_t id;
};
// Most likely first, ties to the lower id: the order of every cut.
bool before(const Candidate& a, const Candidate& b) { return a.l != b.l ? a.l > b.l : a.id < b.id; }

// The logits after bias, penalties and mask. False if one of them is NaN or +inf.
bool adjusted(float* l, const float* logits, int64_t n, const SamplingRow& row) {
  std::memcpy(l, logits, static_cast<size_t>(n) * sizeof(float));
  for (int32_t i = 0; i < row.n_bias; ++i) {
    if (row.bias_ids[i] >= 0 && row.bias_ids[i] < n) l[row.bias_ids[i]] += row.bias[i];
  }
  for (int32_t i = 0; i < row.n_seen; ++i) {
    if (row.seen_ids[i] < 0 || row.seen_ids[i] >= n) continue;
    l[row.seen_ids[i]] = scalar::penalised(l[row.seen_ids[i]], row.seen_counts[i], row.repetition,
                                           row.presence, row.frequency);
  }
  bool fine = true;
  for (int64_t i = 0; i < n; ++i) fine &= l[i] < HUGE_VALF;
  if (row.mask) {
    for (int64_t i = 0; i < n; ++i) {
      if (!((row.mask[i / 32] >> (i % 32)) & 1u)) l[i] = -HUGE_VALF;
    }
  }
  return fine;
}

int32_t argmax(const float* l, int64_t n) {
  int64_t best = -1;
  float top = -HUGE_VALF;
  for (int64_t i = 0; i < n; ++i) {
    if (l[i] > top) {
      top = l[i];
      best = i;
    }
  }
  return static_cast<int32_t>(best);
}

// Applies the cuts to candidates [0, n), of which some may be -inf; leaves the survivors at the front in any
// order and returns their number.
int64_t cut(Candidate* c, int64_t n, const SamplingRow& row) {
  n = std::partition(c, c + n, [](const Candidate& a) { return a.l > -HUGE_VALF; }) - c;
  if (row.top_k > 0 && row.top_k < n) {
    std::nth_element(c, c + row.top_k - 1, c + n, before);
    n = row.top_k;
  }
  if (n == 0) return 0;
  const float top = std::min_element(c, c + n, before)->l;
  if (row.top_p < 1) {
    // Summed in the order of likelihood, so the total does not depend on how the candidates lie. Sorted piece
    // by piece: the set is usually short.
    double total = 0;
    std::sort(c, c + n, before);
    for (int64_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(c[i].l - top));
    double sum = 0;
    int64_t keep = 0;
    while (keep < n) {
      sum += std::exp(static_cast<double>(c[keep++].l - top));
      if (sum >= static_cast<double>(row.top_p) * total) break;
    }
    n = keep;
  }
  if (row.min_p > 0) {
    const float least = top + std::log(row.min_p);
    n = std::partition(c, c + n, [&](const Candidate& a) { return a.l >= least; }) - c;
  }
  return n;
}

int32_t draw(const Candidate* c, int64_t n, const SamplingRow& row) {
  const uint64_t key = scalar::noise_key(row.seed, row.position);
  int32_t best = -1;
  float top = -HUGE_VALF;
  for (int64_t i = 0; i < n; ++i) {
    const float l = c[i].l + scalar::gumbel(scalar::noise_bits(key, c[i].id));
    if (best < 0 || l > top || (l == top && c[i].id < best)) {
      top = l;
      best = c[i].id;
    }
  }
  return best;
}

}  // namespace

void sample(Stream& s, Tensor ids, Tensor logits, const SamplingRow* rows, int64_t n_rows) {
  const int64_t vocab = logits.cols();
  s.pool().parallel_for(n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const SamplingRow& row = rows[r];
      int32_t& id = ids.as<int32_t>()[r];
      float* l = thread_scratch(0, vocab);
      if (!adjusted(l, logits.row<float>(r), vocab, row)) {
        id = -1;
        continue;
      }
      if (row.temperature == 0) {
        id = argmax(l, vocab);
        continue;
      }
      auto* candidates = reinterpret_cast<Candidate*>(thread_scratch(1, 2 * vocab));
      for (int64_t i = 0; i < vocab; ++i) candidates[i] = {l[i] / row.temperature, static_cast<int32_t>(i)};
      id = draw(candidates, cut(candidates, vocab, row), row);
    }
  });
}

}  // namespace quern::cpu

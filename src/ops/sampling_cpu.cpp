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

// Collects the ids with l ≥ least into c.
int64_t at_least(Candidate* c, const float* l, int64_t n, float least) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    c[count] = {l[i], static_cast<int32_t>(i)};
    count += l[i] >= least && l[i] > -HUGE_VALF;
  }
  return count;
}

// The k best in any order: a heap of them whose worst turns most ids away with one comparison.
int64_t best(Candidate* c, const float* l, int64_t n, int64_t k) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Candidate a{l[i], static_cast<int32_t>(i)};
    if (count == k ? !before(a, c[0]) : !(a.l > -HUGE_VALF)) continue;
    if (count == k) std::pop_heap(c, c + count--, before);
    c[count++] = a;
    std::push_heap(c, c + count, before);
  }
  return count;
}

// The shortest prefix of the sorted candidates whose weight reaches p · total, or n if none does.
int64_t prefix(const Candidate* c, int64_t n, float top, double wanted, bool& reached) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += std::exp(static_cast<double>(c[i].l - top));
    reached = sum >= wanted;
    if (reached) return i + 1;
  }
  return n;
}

// The ids of l that survive the cuts, in any order; `top` is the largest l.
int64_t cut(Candidate* c, const float* l, int64_t n, float top, const SamplingRow& row) {
  const float least = row.min_p > 0 ? top + std::log(row.min_p) : -HUGE_VALF;
  const bool limited = row.top_k > 0 && row.top_k < n;
  int64_t count;
  bool reached = false;
  if (row.top_p < 1 && !limited) {
    // Weights below e^-40 of the largest change no sum; the set is usually within a few units of the top, so it is
    // sought in growing distances from there.
    double total = 0;
    for (int64_t i = 0; i < n; ++i)
      if (l[i] - top > -40) total += std::exp(static_cast<double>(l[i] - top));
    for (float reach = 4; !reached; reach *= 2) {
      count = at_least(c, l, n, reach < 64 ? top - reach : -HUGE_VALF);
      std::sort(c, c + count, before);
      count = prefix(c, count, top, static_cast<double>(row.top_p) * total, reached);
      if (reach >= 64) break;
    }
  } else if (limited) {
    count = best(c, l, n, row.top_k);
    if (row.top_p < 1) {
      std::sort(c, c + count, before);
      double total = 0;
      for (int64_t i = 0; i < count; ++i) total += std::exp(static_cast<double>(c[i].l - top));
      count = prefix(c, count, top, static_cast<double>(row.top_p) * total, reached);
    }
  } else {
    return at_least(c, l, n, least);
  }
  return std::partition(c, c + count, [&](const Candidate& a) { return a.l >= least; }) - c;
}

// argmax of l + noise. An id's noise is at most (leading zeros of its bits + 1) · log 2, which turns most away before
// a logarithm is taken.
int32_t draw(const Candidate* c, int64_t n, const SamplingRow& row) {
  const uint64_t key = scalar::noise_key(row.seed, row.position);
  int32_t chosen = -1;
  float top = -HUGE_VALF;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = scalar::noise_bits(key, c[i].id);
    if (c[i].l + static_cast<float>(std::countl_zero(bits) + 1) * 0.6932f < top) continue;
    const float l = c[i].l + scalar::gumbel(bits);
    if (chosen < 0 || l > top || (l == top && c[i].id < chosen)) {
      top = l;
      chosen = c[i].id;
    }
  }
  return chosen;
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
      const int32_t first = argmax(l, vocab);
      if (first < 0) {
        id = -1;
        continue;
      }
      for (int64_t i = 0; i < vocab; ++i) l[i] /= row.temperature;
      if (!(std::abs(l[first]) < HUGE_VALF)) {  // so cold that the quotient overflows
        id = first;
        continue;
      }
      auto* candidates = reinterpret_cast<Candidate*>(thread_scratch(1, 2 * (vocab + 1)));
      id = draw(candidates, cut(candidates, l, vocab, l[first], row), row);
    }
  });
}

}  // namespace quern::cpu

#include "engine/ngram_draft.h"

#include <algorithm>

namespace quern {

// Exact: an id has 21 bits and more in no vocabulary this model has (248 320 < 2^21).
uint64_t NgramDraft::gram(std::span<const int32_t> ids, int64_t end) {
  uint64_t g = 0;
  for (int64_t i = end - kLookupGram; i < end; ++i) g = g << 21 | static_cast<uint32_t>(ids[i]);
  return g;
}

void NgramDraft::extend(std::span<const int32_t> ids) {
  const auto n = static_cast<int64_t>(ids.size());
  // An n-gram is entered once something follows it.
  for (int64_t end = std::max<int64_t>(seen_, kLookupGram); end < n; ++end) {
    Places& p = places_[gram(ids, end)];
    p.n = std::min(p.n + 1, kPlaces);
    std::copy_backward(p.end, p.end + p.n - 1, p.end + p.n);
    p.end[0] = static_cast<int32_t>(end);
  }
  seen_ = std::max<int64_t>(seen_, std::max<int64_t>(n, kLookupGram));
}

NgramDraft::Proposal NgramDraft::propose(std::span<const int32_t> ids, int n) const {
  Proposal best;
  const auto size = static_cast<int64_t>(ids.size());
  if (size < kLookupGram || n <= 0) return best;
  const auto it = places_.find(gram(ids, size));
  if (it == places_.end()) return best;
  int64_t from = -1;
  for (int32_t i = 0; i < it->second.n; ++i) {
    const int64_t end = it->second.end[i];
    int match = kLookupGram;
    while (match < kLookupLongest && match < end && ids[end - match - 1] == ids[size - match - 1]) ++match;
    if (match > best.match) {
      best.match = match;
      from = end;
    }
  }
  // Past the known ids the proposal goes on with itself: a loop repeats.
  for (int i = 0; i < n; ++i) {
    const int64_t at = from + i;
    best.ids.push_back(at < size ? ids[at] : best.ids[static_cast<size_t>(at - size)]);
  }
  return best;
}

}  // namespace quern

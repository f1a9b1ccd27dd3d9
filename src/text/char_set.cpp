#include "text/char_set.h"

#include <algorithm>

namespace quern {

CharSet::CharSet(std::initializer_list<Range> ranges) {
  for (const auto& [first, last] : ranges) add(first, last);
}

const CharSet& CharSet::all() {
  static const CharSet set{{0, 0x10FFFF}};
  return set;
}

void CharSet::add(char32_t first, char32_t last) {
  if (first > last) return;
  if (first < 0xD800 && last > 0xDFFF) {  // around the surrogates
    add(first, 0xD7FF);
    add(0xE000, last);
    return;
  }
  if (first >= 0xD800 && first <= 0xDFFF) first = 0xE000;
  if (last >= 0xD800 && last <= 0xDFFF) last = 0xD7FF;
  if (first > last) return;
  // Replaces the ranges that touch [first, last] by their union.
  auto from = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                               [](const Range& r, char32_t c) { return r.second + 1 < c; });
  auto to = from;
  while (to != ranges_.end() && to->first <= last + 1) {
    first = std::min(first, to->first);
    last = std::max(last, to->second);
    ++to;
  }
  from = ranges_.erase(from, to);
  ranges_.insert(from, {first, last});
}

void CharSet::add(const CharSet& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= 0x10FFFF) out.add(next, 0x10FFFF);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  auto a = ranges_.begin(), b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const char32_t first = std::max(a->first, b->first), last = std::min(a->second, b->second);
    if (first <= last) out.ranges_.emplace_back(first, last);
    (a->second < b->second ? a : b)++;
  }
  return out;
}

bool CharSet::contains(char32_t c) const {
  const auto r = std::lower_bound(ranges_.begin(), ranges_.end(), c,
                                  [](const Range& x, char32_t y) { return x.second < y; });
  return r != ranges_.end() && r->first <= c;
}

}  // namespace quern

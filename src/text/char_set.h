// A set of Unicode scalar values (no surrogates) as sorted, disjoint, non-adjacent ranges.
#pragma once

#include <utility>
#include <vector>

namespace quern {

class CharSet {
 public:
  using Range = std::pair<char32_t, char32_t>;  // first and last

  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges);
  static const CharSet& all();

  void add(char32_t first, char32_t last);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  CharSet minus(const CharSet& other) const { return intersect(other.complement()); }
  bool contains(const CharSet& other) const { return other.minus(*this).empty(); }
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace quern

// Drafts by look-up: where the last ids occurred before in the request's own tokens, what followed then is
// proposed again (prompt lookup decoding; Saxena 2023). Costs no model pass; good at edits, quotes and tables.
//
// The index maps every n-gram of kLookupGram ids to its latest ends; a look-up takes the one whose match with the
// current end is longest, the latest on a tie.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace quern {

inline constexpr int kLookupGram = 3;
inline constexpr int kLookupLongest = 32;  // match lengths beyond this are not told apart

class NgramDraft {
 public:
  struct Proposal {
    std::vector<int32_t> ids;
    int match = 0;  // how many ids before them agree: kLookupGram … kLookupLongest; 0: nothing found
  };

  // `ids` are all ids so far; the same prefix as at the last call, grown.
  void extend(std::span<const int32_t> ids);
  // At most n ids that may follow `ids`, which extend has seen.
  Proposal propose(std::span<const int32_t> ids, int n) const;

 private:
  static uint64_t gram(std::span<const int32_t> ids, int64_t end);
  static constexpr int kPlaces = 4;

  struct Places {
    int32_t end[kPlaces];  // latest first; positions after the n-gram
    int32_t n = 0;
  };
  std::unordered_map<uint64_t, Places> places_;
  int64_t seen_ = 0;
};

}  // namespace quern

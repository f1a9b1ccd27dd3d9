// Only the stretch around a character that may change is taken apart: from the last starter before it up to
// the next starter that cannot join (nfc_index 0). Everything between such stretches is copied as bytes.
#include "text/nfc.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace quern {
namespace {

using unicode::combining_class;

constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

void decompose(std::vector<char32_t>& out, char32_t c) {
  if (c - kSyllables < kSyllableCount) {
    const char32_t s = c - kSyllables;
    out.push_back(kLeads + s / (kVowelCount * kTrailCount));
    out.push_back(kVowels + s / kTrailCount % kVowelCount);
    if (s % kTrailCount) out.push_back(kTrails + s % kTrailCount);
    return;
  }
  const auto* end = unicode::kDecompositions + unicode::kDecompositionCount;
  const auto* d = std::lower_bound(unicode::kDecompositions, end, c,
                                   [](const auto& a, char32_t b) { return a.composed < b; });
  if (d == end || d->composed != c) {
    out.push_back(c);
    return;
  }
  decompose(out, d->first);  // at most three deep in Unicode's data
  if (d->second) decompose(out, d->second);
}

// 0 where the two do not compose.
char32_t compose(char32_t a, char32_t b) {
  if (a - kLeads < kLeadCount && b - kVowels < kVowelCount)
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTrailCount;
  if (a - kSyllables < kSyllableCount && (a - kSyllables) % kTrailCount == 0 &&
      b - kTrails - 1 < kTrailCount - 1)
    return a + (b - kTrails);
  const auto* end = unicode::kCompositions + unicode::kCompositionCount;
  const auto* c =
      std::lower_bound(unicode::kCompositions, end, std::pair(a, b), [](const auto& x, const auto& y) {
        return x.first != y.first ? x.first < y.first : x.second < y.second;
      });
  return c != end && c->first == a && c->second == b ? c->composed : 0;
}

// Normalises the stretch in place.
void normalise(std::vector<char32_t>& s) {
  // Canonical order: runs of non-starters sorted by class, stably.
  for (size_t i = 0; i < s.size();) {
    if (combining_class(s[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < s.size() && combining_class(s[end]) != 0) ++end;
    auto less = [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); };
    if (!std::is_sorted(s.begin() + i, s.begin() + end, less))
      std::stable_sort(s.begin() + i, s.begin() + end, less);
    i = end;
  }
  // Composition: a character joins the last starter unless one of its class or higher stands between.
  size_t out = 0, starter = SIZE_MAX;
  int last_class = -1;  // of the last character kept after the starter; -1: none
  for (size_t i = 0; i < s.size(); ++i) {
    const char32_t c = s[i];
    const int cls = combining_class(c);
    if (starter != SIZE_MAX && last_class < cls) {
      if (const char32_t joined = compose(s[starter], c)) {
        s[starter] = joined;
        continue;
      }
    }
    if (cls == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = cls;
    }
    s[out++] = c;
  }
  s.resize(out);
}

// The length of the ASCII at the front.
size_t ascii_prefix(std::string_view s) {
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    if (word & 0x8080808080808080) break;
  }
  while (i < s.size() && static_cast<unsigned char>(s[i]) < 0x80) ++i;
  return i;
}

// The first byte at or after `at` of a character that may change, or the end; `starter` becomes the start of
// the last character before it.
size_t find_change(std::string_view text, size_t at, size_t& starter) {
  while (at < text.size()) {
    if (const size_t n = ascii_prefix(text.substr(at))) {
      at += n;
      starter = at - 1;
      continue;
    }
    const Utf8Char c = decode_utf8(text, at);
    if (unicode::nfc_index(c.code_point) != 0) return at;
    starter = at;
    at += c.size;
  }
  return at;
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  size_t starter = 0;
  return find_change(text, 0, starter) == text.size();
}

void append_nfc(std::string& out, std::string_view text) {
  std::vector<char32_t> stretch;
  size_t copied = 0;
  while (copied < text.size()) {
    size_t from = copied;
    const size_t change = find_change(text, copied, from);
    if (change == text.size()) break;
    if (change == copied) from = copied;
    out.append(text, copied, from - copied);
    stretch.clear();
    size_t at = from;
    while (at < text.size()) {
      const Utf8Char c = decode_utf8(text, at);
      if (at > change && unicode::nfc_index(c.code_point) == 0) break;
      decompose(stretch, c.code_point);
      at += c.size;
    }
    normalise(stretch);
    for (const char32_t c : stretch) append_utf8(out, c);
    copied = at;
  }
  out.append(text, copied);
}

}  // namespace quern

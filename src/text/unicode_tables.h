// What the pre-tokenizer and NFC need to know of Unicode 14.0, as two-stage tables: blocks of 128 code
// points, equal blocks stored once. The data (unicode_tables.cpp) is written by tools/make_unicode_tables.py.
//
// Why 14.0: it is the version of the regex engine behind the reference tokenizer and of PCRE2 10.42, the
// tests' oracle. A letter that a later version assigned counts as a symbol here.
#pragma once

#include <cstdint>

namespace quern::unicode {

inline constexpr char32_t kReplacement = 0xFFFD;

// The classes the split patterns tell apart. Newline is \r and \n only; Space is the rest of White_Space.
enum class CharClass : uint8_t { Other, Letter, Mark, Number, Space, Newline };

struct NfcKind {
  uint8_t combining_class;
  bool may_change;  // NFC may replace it, or join it to what precedes it
};
struct Decomposition {
  char32_t composed, first, second;  // second 0: a singleton
};
struct Composition {
  char32_t first, second, composed;
};

extern const uint8_t kClassIndex[0x110000 / 128];
extern const uint8_t kClassBlocks[];
extern const uint8_t kNfcIndex[0x110000 / 128];
extern const uint8_t kNfcBlocks[];
extern const NfcKind kNfcKinds[];
extern const Decomposition kDecompositions[];  // by `composed`
extern const int kDecompositionCount;
extern const Composition kCompositions[];  // by `first`, then `second`
extern const int kCompositionCount;

// c < 0x110000 in both.
inline CharClass char_class(char32_t c) {
  return static_cast<CharClass>(kClassBlocks[kClassIndex[c >> 7] << 7 | (c & 127)]);
}
// 0: a starter that NFC neither changes nor joins to what precedes it; else an index into kNfcKinds.
inline uint8_t nfc_index(char32_t c) { return kNfcBlocks[kNfcIndex[c >> 7] << 7 | (c & 127)]; }
inline uint8_t combining_class(char32_t c) { return kNfcKinds[nfc_index(c)].combining_class; }

}  // namespace quern::unicode

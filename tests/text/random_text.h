// Random text over alphabets chosen to hurt: every class of the split patterns, characters that compose,
// joiners.
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace quern::test {

inline const std::vector<std::u32string>& alphabets() {
  static const std::vector<std::u32string> all = {
      U"ab '\n\r\t1.",
      U"'sStTrReEvVmMlLdDſ x'’",
      U" \t\n\r\v\f\u00a0\u0085\u3000\u2028\u2029\u202f\u180e\u200b\ufeffa",
      U"eéE\u0301\u0300\u0323\u0327ạ \u0344\u0345\u0f71\u0f72ﬁK\u212bΩ",
      U"1२٣四Ⅷ²½a 𝟘",
      U"你好，世界！ a\n1",
      U"\u1100\u1161\u11a8\uac00\uac01\u11a7 각",
      U"🙂👨\u200d👩🇫🇷\ufe0f ,a",
      U"\u093f\u0939\u094d\u0e31\u05b0\u05d0 \u0301a1",
      U"{}[]<>|=+-*/\\\"_.,:;!?#%&() \n\tax1",
      U"\U000e0001\U0010ffff\ue000\u0378\ufffd \U00018d8ba",
  };
  return all;
}

// Up to `length` characters, from one alphabet or from all of Unicode.
inline std::string random_text(std::mt19937_64& rng, int length) {
  std::string out;
  const size_t kind = rng() % (alphabets().size() + 2);
  const int n = static_cast<int>(rng() % (length + 1));
  for (int i = 0; i < n; ++i) {
    char32_t c;
    if (kind < alphabets().size()) {
      c = alphabets()[kind][rng() % alphabets()[kind].size()];
    } else if (kind == alphabets().size()) {  // a mixture of the alphabets
      const auto& a = alphabets()[rng() % alphabets().size()];
      c = a[rng() % a.size()];
    } else {
      do c = static_cast<char32_t>(rng() % (rng() % 2 ? 0x110000 : 0x3100));
      while (c >= 0xD800 && c < 0xE000);
    }
    append_utf8(out, c);
  }
  return out;
}

}  // namespace quern::test

// NFC against utf8proc, an independent implementation with tables of Unicode 15.0.
#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include "text/random_text.h"
#include "text/unicode_tables.h"

namespace quern {
namespace {

std::string oracle(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &out,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  EXPECT_GE(n, 0);
  std::string s(reinterpret_cast<char*>(out), static_cast<size_t>(n));
  std::free(out);
  return s;
}
std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(out, text);
  return out;
}

// Marks that Unicode 15 added, and whose combining class 14 therefore does not know.
bool is_newer(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class !=
         unicode::combining_class(c);
}

TEST(Nfc, equals_utf8proc_on_every_code_point) {
  int newer = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    append_utf8(s, c);
    ASSERT_EQ(nfc(s), oracle(s)) << "U+" << std::hex << uint32_t(c);
    newer += is_newer(c);
  }
  EXPECT_LE(newer, 30);  // the new marks of 15.0
}

TEST(Nfc, equals_utf8proc_on_random_text) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  std::u32string movers;  // everything that decomposes, composes or is reordered
  for (char32_t c = 0; c < 0x110000; ++c)
    if (unicode::nfc_index(c) && !is_newer(c) && !(c >= 0xD800 && c < 0xE000)) movers += c;
  for (int i = 0; i < unicode::kCompositionCount; ++i) movers += unicode::kCompositions[i].first;
  for (int round = 0; round < 100000; ++round) {
    std::string text;
    if (round % 2) {
      text = test::random_text(rng, 30);
      bool skip = false;
      for (size_t i = 0; i < text.size();) {
        const Utf8Char c = decode_utf8(text, i);
        skip |= is_newer(c.code_point) || c.code_point == 0x11A7;  // utf8proc 2.8 swallows U+11A7
        i += c.size;
      }
      if (skip) continue;
    } else {
      for (int n = rng() % 12; n > 0; --n)
        append_utf8(text, rng() % 5 ? movers[rng() % movers.size()] : U'a');
    }
    ASSERT_EQ(nfc(text), oracle(text)) << "seed " << seed << ", text \"" << text << '"';
    if (is_surely_nfc(text)) {
      ASSERT_EQ(nfc(text), text);
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
}

// UAX #15: a trailing consonant is above TBase, so TBase itself joins nothing.
TEST(Nfc, the_base_of_the_trailing_consonants_does_not_compose) {
  EXPECT_EQ(nfc("\uac00\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
}

TEST(Nfc, ascii_and_latin_are_known_to_be_normal) {
  EXPECT_TRUE(is_surely_nfc("plain text, 123\n"));
  EXPECT_TRUE(is_surely_nfc("naïve café, Привет, 你好"));
  EXPECT_FALSE(is_surely_nfc("cafe\u0301"));
}

}  // namespace
}  // namespace quern

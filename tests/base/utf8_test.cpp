#include "base/utf8.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TEST(Utf8, every_code_point_round_trips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    append_utf8(s, c);
    const Utf8Char d = decode_utf8(s, 0);
    ASSERT_TRUE(d.valid);
    ASSERT_EQ(d.code_point, c);
    ASSERT_EQ(static_cast<size_t>(d.size), s.size());
  }
}

// Unicode 15, table 3-8: each maximal subpart is replaced by one U+FFFD.
TEST(Utf8, invalid_sequences_become_one_replacement_per_maximal_subpart) {
  EXPECT_EQ(repair_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd");
  EXPECT_EQ(repair_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"
            "A");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"
            "A");
  EXPECT_TRUE(decode_utf8("\xF0\x9F\x98", 0).truncated);
  EXPECT_FALSE(decode_utf8("\xF0\x9F\x41", 0).truncated);
}

TEST(Utf8, one_line_commands_no_terminal) {
  EXPECT_EQ(one_line("plain, \u00e9 \u4e16 \U0001f600 and a \\"), "plain, \u00e9 \u4e16 \U0001f600 and a \\");
  EXPECT_EQ(one_line("\x1b[31mred\n\r\t\x7f"), "\\x1b[31mred\\x0a\\x0d\\x09\\x7f");
  EXPECT_EQ(one_line(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(one_line("\u009b31m\u2028"), "\\xc2\\x9b31m\\xe2\\x80\\xa8");  // C1's CSI, a line separator
  EXPECT_EQ(one_line("\xff\xe4\xb8"), "\\xff\\xe4\\xb8");
}

}  // namespace
}  // namespace quern

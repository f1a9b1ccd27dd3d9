#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace quern {
namespace {

// quern-tiny's vocabulary: the 256 bytes are tokens of their own, so any byte string has ids.
const Tokenizer& tiny() {
  static const Tokenizer t = Tokenizer::from_file(QUERN_SOURCE_DIR "/models/quern-tiny/tokenizer.json");
  return t;
}
std::vector<int32_t> byte_ids(std::string_view bytes) {
  static const auto table = [] {
    std::vector<int32_t> t(256);
    for (int32_t id = 0; id < tiny().size(); ++id)
      if (tiny().token_bytes(id).size() == 1) t[static_cast<unsigned char>(tiny().token_bytes(id)[0])] = id;
    return t;
  }();
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(table[static_cast<unsigned char>(c)]);
  return ids;
}
std::vector<std::string> stream(std::span<const int32_t> ids) {
  Detokenizer d(tiny(), false);
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(d.push(id));
  out.push_back(d.finish());
  return out;
}

TEST(Detokenizer, holds_back_only_an_unfinished_character) {
  EXPECT_EQ(stream(byte_ids("a🙂b")), (std::vector<std::string>{"a", "", "", "", "🙂", "b", ""}));
  EXPECT_EQ(stream(byte_ids("你")), (std::vector<std::string>{"", "", "你", ""}));
}

TEST(Detokenizer, invalid_bytes_become_replacements_at_once) {
  EXPECT_EQ(stream(byte_ids("\x80x")), (std::vector<std::string>{"\ufffd", "x", ""}));  // lone continuation
  EXPECT_EQ(stream(byte_ids("\xC0\xAF")), (std::vector<std::string>{"\ufffd", "\ufffd", ""}));  // overlong
  EXPECT_EQ(stream(byte_ids("\xED\xA0\x80")),                                                   // surrogate
            (std::vector<std::string>{"", "\ufffd\ufffd", "\ufffd", ""}));
  EXPECT_EQ(stream(byte_ids("\xF0\x9F\x99")), (std::vector<std::string>{"", "", "", "\ufffd"}));  // cut short
  EXPECT_EQ(stream(byte_ids("\xF0\x9Fz")), (std::vector<std::string>{"", "", "\ufffdz", ""}));
}

TEST(Detokenizer, a_control_token_ends_an_unfinished_character) {
  auto ids = byte_ids("\xF0\x9F");
  ids.push_back(*tiny().find_special("<|im_end|>"));
  EXPECT_EQ(tiny().decode(ids), "\ufffd<|im_end|>");
  EXPECT_EQ(tiny().decode(ids, true), "\ufffd");
}

TEST(Detokenizer, skips_special_tokens_but_not_plain_added_ones) {
  const auto ids = tiny().encode("<think>x</think><|im_end|>", ControlTokens::Recognise);
  EXPECT_EQ(tiny().decode(ids, true), "<think>x</think>");
  EXPECT_EQ(tiny().decode(ids, false), "<think>x</think><|im_end|>");
}

TEST(Detokenizer, any_ids_stream_to_what_they_decode_to) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    std::string bytes;
    for (int n = rng() % 12; n > 0; --n) {
      const auto some = rng() % 2 ? byte_ids(std::string(1, static_cast<char>(0x80 + rng() % 0x80)))
                                  : std::vector<int32_t>{static_cast<int32_t>(rng() % tiny().size())};
      ids.push_back(some[0]);
      bytes += tiny().token_bytes(some[0]);
    }
    std::string joined;
    for (const std::string& s : stream(ids)) {
      ASSERT_TRUE(is_valid_utf8(s)) << "seed " << seed;
      joined += s;
    }
    ASSERT_EQ(joined, repair_utf8(bytes)) << "seed " << seed;
    ASSERT_EQ(tiny().decode(ids), joined) << "seed " << seed;
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
}

}  // namespace
}  // namespace quern

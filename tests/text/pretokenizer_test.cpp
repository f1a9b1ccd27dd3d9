// The linear scanner against PCRE2 running the patterns as tokenizer.json writes them.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/random_text.h"
#include "text/unicode_tables.h"

namespace quern {
namespace {

// White_Space spelled out: PCRE2's \s takes U+180E too, which has not been a space since Unicode 6.3.
#define SPACE \
  R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr const char* kPatterns[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" SPACE
    R"(\p{L}\p{N}]+[\r\n]*|[)" SPACE R"(]*[\r\n]+|[)" SPACE R"(]+(?![^)" SPACE R"(])|[)" SPACE R"(]+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)" SPACE
    R"(\p{L}\p{M}\p{N}]+[\r\n]*|[)" SPACE R"(]*[\r\n]+|[)" SPACE R"(]+(?![^)" SPACE R"(])|[)" SPACE R"(]+)",
};

class Oracle {
 public:
  explicit Oracle(const char* pattern) {
    int error;
    PCRE2_SIZE at;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                          &error, &at, nullptr);
    EXPECT_NE(code_, nullptr) << "at " << at;
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  // The end of the match that must begin at `at`.
  size_t next(const std::string& text, size_t at) {
    const int n = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                              PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match_, nullptr);
    return n > 0 ? pcre2_get_ovector_pointer(match_)[1] : 0;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

std::vector<std::string> split(SplitPattern pattern, std::string_view text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = next_piece(pattern, text, at);
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

TEST(Pretokenizer, equals_pcre2_on_random_text) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 rng(seed);
  Oracle oracles[] = {Oracle(kPatterns[0]), Oracle(kPatterns[1])};
  size_t pieces = 0;
  for (int round = 0; round < 60000; ++round) {
    const std::string text = test::random_text(rng, 40);
    for (const int p : {0, 1})
      for (size_t at = 0; at < text.size(); ++pieces) {
        const size_t end = next_piece(static_cast<SplitPattern>(p), text, at);
        ASSERT_EQ(end, oracles[p].next(text, at))
            << "pattern " << p << ", seed " << seed << ", text \"" << text << "\" from byte " << at;
        at = end;
      }
  }
  std::printf("seed %llu: %zu pieces\n", static_cast<unsigned long long>(seed), pieces);
}

TEST(Pretokenizer, classes_equal_pcre2_on_every_code_point) {
  const char* classes[] = {"\\p{L}", "\\p{M}", "\\p{N}", "[" SPACE "]"};
  const unicode::CharClass ours[] = {unicode::CharClass::Letter, unicode::CharClass::Mark,
                                     unicode::CharClass::Number, unicode::CharClass::Space};
  for (int k = 0; k < 4; ++k) {
    Oracle oracle(classes[k]);
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string s;
      append_utf8(s, c);
      auto cls = unicode::char_class(c);
      if (cls == unicode::CharClass::Newline) cls = unicode::CharClass::Space;
      ASSERT_EQ(cls == ours[k], oracle.next(s, 0) == s.size())
          << classes[k] << " U+" << std::hex << uint32_t(c);
    }
  }
}

TEST(Pretokenizer, the_two_patterns_differ_in_marks) {
  const std::string cafe = "cafe\u0301s";
  EXPECT_EQ(split(SplitPattern::Qwen2, cafe), (std::vector<std::string>{"cafe", "\u0301s"}));
  EXPECT_EQ(split(SplitPattern::Qwen35, cafe), (std::vector<std::string>{cafe}));
}

TEST(Pretokenizer, white_space_is_cut_where_the_next_piece_wants_its_last_character) {
  EXPECT_EQ(split(SplitPattern::Qwen2, "a   b \n\n  c  "),
            (std::vector<std::string>{"a", "  ", " b", " \n\n", " ", " c", "  "}));
}

}  // namespace
}  // namespace quern

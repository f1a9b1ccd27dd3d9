#include "text/pretokenizer.h"

#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace quern {
namespace {

using unicode::CharClass;

struct Char {
  CharClass cls;
  int size;
};

Char char_at(std::string_view text, size_t at) {
  const auto b = static_cast<unsigned char>(text[at]);
  if (b < 0x80) return {unicode::char_class(b), 1};
  const Utf8Char c = decode_utf8(text, at);
  return {unicode::char_class(c.code_point), c.size};
}

// The length of 's 't 're 've 'm 'll 'd at text[at], any case, or 0.
size_t contraction(std::string_view text, size_t at) {
  auto lower = [&](size_t i) -> char { return i < text.size() ? static_cast<char>(text[i] | 0x20) : '\0'; };
  const char a = lower(at + 1), b = lower(at + 2);
  switch (a) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return b == 'e' ? 3 : 0;
    case 'l':
      return b == 'l' ? 3 : 0;
    default:
      return text.substr(at + 1).starts_with("\u017f") ? 3 : 0;  // the long s
  }
}

bool is_word(SplitPattern pattern, CharClass c) {
  return c == CharClass::Letter || (c == CharClass::Mark && pattern == SplitPattern::Qwen35);
}
bool is_space(CharClass c) { return c == CharClass::Space || c == CharClass::Newline; }
// [^\s\p{L}\p{N}], without the marks too in Qwen35.
bool is_symbol(SplitPattern pattern, CharClass c) {
  return c == CharClass::Other || (c == CharClass::Mark && pattern == SplitPattern::Qwen2);
}

template <typename Predicate>
size_t skip(std::string_view text, size_t at, Predicate wanted) {
  while (at < text.size()) {
    const Char c = char_at(text, at);
    if (!wanted(c.cls)) break;
    at += c.size;
  }
  return at;
}

}  // namespace

size_t next_piece(SplitPattern pattern, std::string_view text, size_t at) {
  auto word = [&](CharClass c) { return is_word(pattern, c); };
  auto symbol = [&](CharClass c) { return is_symbol(pattern, c); };
  auto newline = [](CharClass c) { return c == CharClass::Newline; };

  if (text[at] == '\'')
    if (const size_t n = contraction(text, at)) return at + n;

  const Char c = char_at(text, at);
  const size_t next = at + c.size;
  if (word(c.cls)) return skip(text, next, word);
  if (c.cls == CharClass::Number) return next;
  const bool more = next < text.size();
  const CharClass follower = more ? char_at(text, next).cls : CharClass::Newline;
  if (c.cls != CharClass::Newline && more && word(follower)) return skip(text, next, word);
  if (symbol(c.cls) || (text[at] == ' ' && more && symbol(follower)))
    return skip(text, skip(text, next, symbol), newline);

  // White space: up to its last newline; else all of it at the end of the text; else all but the last
  // character, which the next piece may want in front; else that one character.
  size_t end = at, last = at, after_newline = 0;
  while (end < text.size()) {
    const Char w = char_at(text, end);
    if (!is_space(w.cls)) break;
    last = end;
    end += w.size;
    if (w.cls == CharClass::Newline) after_newline = end;
  }
  if (after_newline) return after_newline;
  if (end == text.size() || last == at) return end;
  return last;
}

}  // namespace quern

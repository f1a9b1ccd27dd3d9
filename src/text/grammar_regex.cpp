#include "text/grammar_regex.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace quern {
namespace {

using Id = GrammarSource::Id;

constexpr int kMaxDepth = 100;       // of groups
constexpr int kMaxRepeat = 100'000;  // in {n,m}
constexpr size_t kMaxPattern = 64 * 1024;

CharSet word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet space_chars() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CharSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }
CharSet class_chars(unicode::CharClass cls) {
  CharSet set;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (unicode::char_class(c) != cls) continue;
    const char32_t first = c;
    while (c + 1 < 0x110000 && unicode::char_class(c + 1) == cls) ++c;
    set.add(first, c);
  }
  return set;
}

class Parser {
 public:
  Parser(GrammarSource& source, std::string_view pattern, RegexAnchors anchors, const CharWriter& writer)
      : source_(source), anchors_(anchors), writer_(writer) {
    if (pattern.size() > kMaxPattern)
      throw Error(fmt::format("regular expression: longer than {} bytes", kMaxPattern));
    for (size_t i = 0; i < pattern.size();) {
      const Utf8Char c = decode_utf8(pattern, i);
      if (!c.valid) throw Error("regular expression: not valid UTF-8");
      text_ += c.code_point;
      i += c.size;
    }
  }

  Id parse() {
    const Id id = alternatives(0);
    if (at_ < text_.size()) fail("a ')' without '('");
    return id;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("regular expression: {} at character {}", what, at_));
  }
  bool more() const { return at_ < text_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Id chars(const CharSet& set) { return writer_(source_, set); }
  Id anything() { return source_.repeat(chars(CharSet::all()), 0, GrammarSource::kUnbounded); }

  Id alternatives(int depth) {
    if (depth > kMaxDepth) fail(fmt::format("groups nested deeper than {}", kMaxDepth));
    std::vector<Id> parts;
    do parts.push_back(sequence(depth));
    while (take('|'));
    return source_.alt(std::move(parts));
  }

  // A whole alternative `(…)` of the top level is the top level again, so that `(^a|b$)` is understood.
  bool is_one_group() const {
    if (peek() != '(' || (peek(1) == '?' && peek(2) != ':')) return false;
    int open = 0;
    bool in_class = false;
    for (size_t i = at_; i < text_.size(); ++i) {
      const char32_t c = text_[i];
      if (c == '\\') {
        ++i;
      } else if (in_class) {
        in_class = c != ']';
      } else if (c == '[') {
        in_class = true;
      } else if (c == '(') {
        ++open;
      } else if (c == ')' && --open == 0) {
        return i + 1 == text_.size() || text_[i + 1] == '|' || text_[i + 1] == ')';
      }
    }
    return false;
  }

  Id sequence(int depth) {
    const bool top = depth == top_depth_;
    if (top && is_one_group()) {
      ++at_;
      if (take('?')) take(':');
      ++top_depth_;
      const Id id = alternatives(depth + 1);
      --top_depth_;
      if (!take(')')) fail("a '(' without ')'");
      return id;
    }
    std::vector<Id> parts;
    bool from_start = false, to_end = false;
    while (more() && peek() != '|' && peek() != ')') {
      if (to_end) fail("'$' inside an alternative is not supported");
      if (take('^')) {
        if (!top || !parts.empty()) fail("'^' inside an alternative is not supported");
        from_start = true;
        if (more() && std::u32string_view(U"*+?{").find(peek()) != std::u32string_view::npos)
          fail("a quantifier with nothing before it");
        continue;
      }
      if (take('$')) {
        if (!top) fail("'$' inside a group is not supported");
        to_end = true;
        continue;
      }
      parts.push_back(quantified(depth));
    }
    if (top && anchors_ == RegexAnchors::Search) {
      if (!from_start) parts.insert(parts.begin(), anything());
      if (!to_end) parts.push_back(anything());
    }
    return source_.seq(std::move(parts));
  }

  Id quantified(int depth) {
    Id part = atom(depth);
    bool quantifier = false;
    while (more()) {
      int min, max;
      const size_t before = at_;
      if (take('*')) {
        min = 0, max = GrammarSource::kUnbounded;
      } else if (take('+')) {
        min = 1, max = GrammarSource::kUnbounded;
      } else if (take('?')) {
        min = 0, max = 1;
      } else if (peek() == '{') {
        ++at_;
        min = number();
        max = min;
        if (take(',')) max = peek() == '}' ? GrammarSource::kUnbounded : number();
        if (!take('}')) fail("expected '}'");
        if (max != GrammarSource::kUnbounded && max < min) fail(fmt::format("{{{},{}}} is empty", min, max));
      } else {
        break;
      }
      if (quantifier) {
        at_ = before;
        fail("a quantifier after a quantifier");
      }
      quantifier = true;
      part = source_.repeat(part, min, max);
      take('?');  // laziness changes which match is found, not which texts match
    }
    return part;
  }

  int number() {
    int n = 0;
    if (peek() < '0' || peek() > '9') fail("expected a number");
    while (peek() >= '0' && peek() <= '9') {
      n = n * 10 + static_cast<int>(text_[at_++] - '0');
      if (n > kMaxRepeat) fail(fmt::format("a count beyond {}", kMaxRepeat));
    }
    return n;
  }

  Id atom(int depth) {
    const char32_t c = text_[at_];
    switch (c) {
      case '*':
      case '+':
      case '?':
        fail("a quantifier with nothing before it");
      case '{':
        fail("a '{' with nothing before it");
      case '(':
        return group(depth);
      case '[':
        ++at_;
        return chars(char_class());
      case '.':
        ++at_;
        return chars(line_ends().complement());
      case '\\':
        return chars(escape(false));
      default:
        ++at_;
        if (c >= 0xD800 && c < 0xE000) fail("a surrogate");
        return chars({{c, c}});
    }
  }

  Id group(int depth) {
    ++at_;
    if (take('?')) {
      if (take(':')) {
      } else if (peek() == '<' && peek(1) != '=' && peek(1) != '!') {
        while (more() && peek() != '>') ++at_;
        if (!take('>')) fail("a group's name without '>'");
      } else if (peek() == '=' || peek() == '!' || peek() == '<') {
        fail("look-around is not supported");
      } else {
        fail("flags are not supported");
      }
    }
    const int top = top_depth_;
    top_depth_ = -1;
    const Id id = alternatives(depth + 1);
    top_depth_ = top;
    if (!take(')')) fail("a '(' without ')'");
    return id;
  }

  char32_t hex(int digits) {
    char32_t c = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t d = peek();
      if (d >= '0' && d <= '9')
        c = c * 16 + (d - '0');
      else if ((d | 32) >= 'a' && (d | 32) <= 'f')
        c = c * 16 + ((d | 32) - 'a' + 10);
      else
        fail("expected a hexadecimal digit");
      ++at_;
    }
    return c;
  }

  CharSet property(bool negated) {
    if (!take('{')) fail("expected '{' after \\p");
    std::u32string name;
    while (more() && peek() != '}') name += text_[at_++];
    if (!take('}')) fail("expected '}'");
    CharSet set;
    if (name == U"L" || name == U"Letter")
      set = class_chars(unicode::CharClass::Letter);
    else if (name == U"M" || name == U"Mark")
      set = class_chars(unicode::CharClass::Mark);
    else if (name == U"N" || name == U"Number")
      set = class_chars(unicode::CharClass::Number);
    else
      fail("only \\p{L}, \\p{M} and \\p{N} are supported");
    return negated ? set.complement() : set;
  }

  CharSet escape(bool in_class) {
    ++at_;
    if (!more()) fail("a '\\' at the end");
    const char32_t c = text_[at_++];
    auto one = [](char32_t x) { return CharSet{{x, x}}; };
    switch (c) {
      case 'd':
        return {{'0', '9'}};
      case 'D':
        return CharSet{{'0', '9'}}.complement();
      case 'w':
        return word_chars();
      case 'W':
        return word_chars().complement();
      case 's':
        return space_chars();
      case 'S':
        return space_chars().complement();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (peek() >= '0' && peek() <= '9') fail("octal escapes are not supported");
        return one(0);
      case 'c':
        if ((peek() | 32) < 'a' || (peek() | 32) > 'z') fail("expected a letter after \\c");
        return one(text_[at_++] & 31);
      case 'x':
        return one(hex(2));
      case 'u': {
        if (take('{')) {
          char32_t v = 0;
          for (int n = 0; peek() != '}'; ++n) {
            if (n == 6) fail("a code point beyond U+10FFFF");
            v = v * 16 + hex(1);
          }
          ++at_;
          if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) fail("no character");
          return one(v);
        }
        char32_t v = hex(4);
        if (v >= 0xD800 && v < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
          at_ += 2;
          const char32_t low = hex(4);
          if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
          v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        }
        if (v >= 0xD800 && v < 0xE000) fail("a lone surrogate");
        return one(v);
      }
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'b':
        if (in_class) return one('\b');
        fail("\\b is not supported");
      default:
        if (c >= '1' && c <= '9') fail("back-references are not supported");
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
          fail(fmt::format("\\{} is not supported", static_cast<char>(c)));
        return one(c);
    }
  }

  CharSet class_item() {
    if (peek() == '\\') return escape(true);
    const char32_t c = text_[at_++];
    return {{c, c}};
  }
  CharSet char_class() {
    const bool negated = take('^');
    CharSet set;
    while (!take(']')) {
      if (!more()) fail("a '[' without ']'");
      const CharSet low = class_item();
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        const CharSet high = class_item();
        auto single = [](const CharSet& s) {
          return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].second;
        };
        if (!single(low) || !single(high)) fail("a range between classes");
        if (low.ranges()[0].first > high.ranges()[0].first) fail("a range that runs backwards");
        set.add(low.ranges()[0].first, high.ranges()[0].first);
      } else {
        set.add(low);
      }
    }
    return negated ? set.complement() : set;
  }

  GrammarSource& source_;
  RegexAnchors anchors_;
  const CharWriter& writer_;
  std::u32string text_;
  size_t at_ = 0;
  int top_depth_ = 0;  // alternatives at this depth are the whole expression's
};

}  // namespace

Id write_raw_char(GrammarSource& source, const CharSet& set) { return source.chars(set); }

// Raw where JSON allows it; else the short escape, or \u00XX for the other control characters.
Id write_json_char(GrammarSource& source, const CharSet& set) {
  static const CharSet special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<Id> parts;
  const CharSet raw = set.minus(special);
  if (!raw.empty()) parts.push_back(source.chars(raw));
  const CharSet escaped = set.intersect(special);
  for (const auto& [first, last] : escaped.ranges())
    for (char32_t c = first; c <= last; ++c) {
      const std::string text(1, static_cast<char>(c));
      std::string quoted;
      append_json_string(quoted, text);
      parts.push_back(source.bytes(std::string_view(quoted).substr(1, quoted.size() - 2)));
    }
  return source.alt(std::move(parts));
}

Id parse_regex(GrammarSource& source, std::string_view pattern, RegexAnchors anchors,
               const CharWriter& writer) {
  return Parser(source, pattern, anchors, writer).parse();
}

}  // namespace quern

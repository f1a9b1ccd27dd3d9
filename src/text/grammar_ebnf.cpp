#include "text/grammar_ebnf.h"

#include <fmt/core.h>

#include <unordered_map>

#include "base/check.h"
#include "base/utf8.h"

namespace quern {
namespace {

using Id = GrammarSource::Id;

constexpr int kMaxDepth = 100;
constexpr int kMaxRepeat = 100'000;
constexpr size_t kMaxRules = 10'000;
constexpr size_t kMaxText = 1024 * 1024;

class Parser {
 public:
  Parser(GrammarSource& source, std::string_view text) : source_(source), text_(text) {
    if (text.size() > kMaxText) throw Error(fmt::format("EBNF: longer than {} bytes", kMaxText));
    if (!is_valid_utf8(text)) throw Error("EBNF: not valid UTF-8");
  }

  Id parse() {
    skip(true);
    while (at_ < text_.size()) {
      const std::string_view name = identifier();
      if (name.empty()) fail("expected the name of a rule");
      skip(true);
      if (text_.substr(at_, 3) == "::=")
        at_ += 3;
      else if (peek() == '=')
        ++at_;
      else
        fail(fmt::format("rule '{}': expected '::='", name));
      const int rule = rule_number(name);
      if (source_.rules[rule].body >= 0) fail(fmt::format("rule '{}' is defined twice", name));
      skip(true);
      const Id body = alternatives(0);
      source_.rules[rule].body = body;
      skip(true);
      if (peek() == ';') {
        ++at_;
        skip(true);
      }
    }
    for (const auto& [name, rule] : rules_)
      if (source_.rules[rule].body < 0) throw Error(fmt::format("EBNF: rule '{}' is not defined", name));
    const auto root = rules_.find("root");
    if (root == rules_.end()) throw Error("EBNF: there is no rule 'root'");
    return source_.rule(root->second);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    size_t line = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) line += text_[i] == '\n';
    throw Error(fmt::format("EBNF: {} at line {}", what, line));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string_view identifier() {
    const size_t from = at_;
    while (is_name(peek())) ++at_;
    return text_.substr(from, at_ - from);
  }
  void skip(bool lines) {
    for (;;) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }
  // A new rule starts here: a name and '::=' (or '=').
  bool at_rule() {
    const size_t back = at_;
    const bool name = !identifier().empty();
    skip(false);
    const bool yes = name && (text_.substr(at_, 3) == "::=" || peek() == '=');
    at_ = back;
    return yes;
  }
  int rule_number(std::string_view name) {
    const auto [at, fresh] = rules_.try_emplace(std::string(name), 0);
    if (fresh) {
      if (rules_.size() > kMaxRules) fail(fmt::format("more than {} rules", kMaxRules));
      at->second = source_.add_rule(std::string(name), -1, true);
    }
    return at->second;
  }

  Id alternatives(int depth) {
    if (depth > kMaxDepth) fail(fmt::format("groups nested deeper than {}", kMaxDepth));
    std::vector<Id> parts{sequence(depth)};
    for (skip(true); peek() == '|'; skip(true)) {
      ++at_;
      skip(true);
      parts.push_back(sequence(depth));
    }
    return source_.alt(std::move(parts));
  }

  Id sequence(int depth) {
    std::vector<Id> parts;
    for (;;) {
      skip(true);
      const char c = peek();
      if (at_ >= text_.size() || c == '|' || c == ')' || c == ';') break;
      if (is_name(c) && at_rule()) break;
      parts.push_back(quantified(depth));
    }
    return source_.seq(std::move(parts));
  }

  Id quantified(int depth) {
    Id part = atom(depth);
    for (;;) {
      switch (peek()) {
        case '*':
          part = source_.repeat(part, 0, GrammarSource::kUnbounded);
          ++at_;
          continue;
        case '+':
          part = source_.repeat(part, 1, GrammarSource::kUnbounded);
          ++at_;
          continue;
        case '?':
          part = source_.repeat(part, 0, 1);
          ++at_;
          continue;
        case '{': {
          ++at_;
          const int min = number();
          int max = min;
          skip(false);
          if (peek() == ',') {
            ++at_;
            skip(false);
            max = peek() == '}' ? GrammarSource::kUnbounded : number();
            skip(false);
          }
          if (peek() != '}') fail("expected '}'");
          ++at_;
          if (max != GrammarSource::kUnbounded && max < min)
            fail(fmt::format("{{{},{}}} is empty", min, max));
          part = source_.repeat(part, min, max);
          continue;
        }
        default:
          return part;
      }
    }
  }

  int number() {
    skip(false);
    if (peek() < '0' || peek() > '9') fail("expected a number");
    int n = 0;
    while (peek() >= '0' && peek() <= '9') {
      n = n * 10 + (text_[at_++] - '0');
      if (n > kMaxRepeat) fail(fmt::format("a count beyond {}", kMaxRepeat));
    }
    return n;
  }

  Id atom(int depth) {
    const char c = peek();
    if (is_name(c)) return source_.rule(rule_number(identifier()));
    ++at_;
    switch (c) {
      case '(': {
        const Id id = alternatives(depth + 1);
        skip(true);
        if (peek() != ')') fail("a '(' without ')'");
        ++at_;
        return id;
      }
      case '"':
      case '\'': {
        std::string bytes;
        while (peek() != c) {
          if (at_ >= text_.size() || peek() == '\n') fail("a string without its closing quote");
          append_utf8(bytes, character());
        }
        ++at_;
        return source_.bytes(bytes);
      }
      case '.':
        return source_.chars(CharSet::all());
      case '[': {
        const bool negated = peek() == '^';
        if (negated) ++at_;
        CharSet set;
        while (peek() != ']') {
          if (at_ >= text_.size()) fail("a '[' without ']'");
          const char32_t first = character();
          char32_t last = first;
          if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
            ++at_;
            last = character();
          }
          if (last < first) fail("a range that runs backwards");
          set.add(first, last);
        }
        ++at_;
        return source_.chars(negated ? set.complement() : set);
      }
      default:
        --at_;
        fail(fmt::format("an unexpected '{}'", c));
    }
  }

  char32_t character() {
    if (at_ >= text_.size()) fail("the text ends inside a string or class");
    if (peek() != '\\') {
      const Utf8Char c = decode_utf8(text_, at_);
      at_ += c.size;
      return c.code_point;
    }
    ++at_;
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '\\':
      case '"':
      case '\'':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
      case '.':
        return c;
      default:
        fail("an unknown escape");
    }
  }

  char32_t hex(int digits) {
    uint64_t v = 0;
    for (int i = 0; i < digits; ++i) {
      const char d = peek(), l = static_cast<char>(d | 32);
      if (d >= '0' && d <= '9')
        v = v * 16 + (d - '0');
      else if (l >= 'a' && l <= 'f')
        v = v * 16 + (l - 'a' + 10);
      else
        fail("expected a hexadecimal digit");
      ++at_;
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) fail("an escape that is no character");
    return static_cast<char32_t>(v);
  }

  GrammarSource& source_;
  std::string_view text_;
  size_t at_ = 0;
  std::unordered_map<std::string, int> rules_;
};

}  // namespace

GrammarSource::Id parse_ebnf(GrammarSource& source, std::string_view grammar) {
  return Parser(source, grammar).parse();
}

}  // namespace quern

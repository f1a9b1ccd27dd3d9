#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/check.h"
#include "base/utf8.h"

namespace quern {

void template_error(int line, const std::string& what) {
  throw Error(fmt::format("chat template line {}: {}", line, what));
}

namespace {

using Kind = JinjaToken::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<JinjaToken> run() {
    while (at_ < source_.size()) data();
    push(Kind::End);
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view s) const { return source_.compare(at_, s.size(), s) == 0; }
  bool starts_at(size_t at, std::string_view s) const { return source_.compare(at, s.size(), s) == 0; }

  JinjaToken& push(Kind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text), JinjaValue()});
    return tokens_.back();
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const Utf8Char c = decode_utf8(source_, at);
      if (!c.valid || !is_python_space(c.code_point)) break;
      at += c.size;
    }
    return at;
  }

  // Text up to the next tag, then that tag's opening.
  void data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == source_.npos) {
        push(Kind::Data, source_.substr(at_));
        return advance(source_.size());
      }
      if (tag + 1 < source_.size() &&
          (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#')) {
        break;
      }
    }
    const char type = source_[tag + 1];
    size_t after = tag + 2;
    char sign = 0;
    if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) sign = source_[after++];

    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      text = std::string(strip(JinjaText(text, true), false, true).view());
    } else if (sign != '+' && type != '{') {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == text.npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) && !text.empty() && blank(text, line_start))
        text.resize(line_start);
    }
    if (!text.empty()) push(Kind::Data, text);

    if (type == '%') {
      if (size_t body = raw_begin(after); body != 0) {
        advance(body);
        return raw();
      }
      advance(after);
      push(Kind::BlockBegin);
      return code(true);
    }
    advance(after);
    if (type == '#') return comment();
    push(Kind::VariableBegin);
    code(false);
  }

  static bool blank(const std::string& text, size_t from) {
    for (size_t i = from; i < text.size();) {
      const Utf8Char c = decode_utf8(text, i);
      if (!c.valid || !is_python_space(c.code_point)) return false;
      i += c.size;
    }
    return from < text.size();
  }

  // Where the text of {% raw %} begins, or 0 where this tag is another.
  size_t raw_begin(size_t at) const {
    at = skip_space(at);
    if (!starts_at(at, "raw")) return 0;
    at = skip_space(at + 3);
    if (starts_at(at, "-%}")) return skip_space(at + 3);
    return starts_at(at, "%}") ? at + 2 : 0;
  }

  size_t after_block_end(size_t at) const {  // `at` is behind %}
    return at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) template_error(line_, "missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    advance(sign == '-' ? skip_space(end + 2) : sign == '+' ? end + 2 : after_block_end(end + 2));
  }

  void raw() {
    for (size_t open = at_;; ++open) {
      open = source_.find("{%", open);
      if (open == source_.npos) template_error(line_, "missing end of raw directive");
      size_t p = open + 2;
      char sign = 0;
      if (p < source_.size() && (source_[p] == '-' || source_[p] == '+')) sign = source_[p++];
      p = skip_space(p);
      if (!starts_at(p, "endraw")) continue;
      p = skip_space(p + 6);
      size_t end;
      if (starts_at(p, "+%}"))
        end = p + 3;
      else if (starts_at(p, "-%}"))
        end = skip_space(p + 3);
      else if (starts_at(p, "%}"))
        end = after_block_end(p + 2);
      else
        continue;
      std::string text = source_.substr(at_, open - at_);
      if (sign == '-') {
        text = std::string(strip(JinjaText(text, true), false, true).view());
      } else if (sign != '+') {
        const size_t newline = text.rfind('\n');
        const size_t line_start = newline == text.npos ? 0 : newline + 1;
        if ((line_start > 0 || line_starting_) && blank(text, line_start)) text.resize(line_start);
      }
      if (!text.empty()) push(Kind::Data, text);
      return advance(end);
    }
  }

  // Tokens up to the tag's end, which counts only outside brackets.
  void code(bool block) {
    std::string brackets;
    while (true) {
      if (at_ >= source_.size()) return;  // the parser reports the missing end
      if (brackets.empty()) {
        if (block) {
          size_t end = 0;
          if (starts("+%}"))
            end = at_ + 3;
          else if (starts("-%}"))
            end = skip_space(at_ + 3);
          else if (starts("%}"))
            end = after_block_end(at_ + 2);
          if (end != 0) {
            push(Kind::BlockEnd);
            return advance(end);
          }
        } else if (starts("-}}") || starts("}}")) {
          push(Kind::VariableEnd);
          return advance(source_[at_] == '-' ? skip_space(at_ + 3) : at_ + 2);
        }
      }
      const size_t next = skip_space(at_);
      if (next != at_) {
        advance(next);
        continue;
      }
      const char c = source_[at_];
      if (is_digit(c))
        number();
      else if (is_word(c))
        name();
      else if (c == '\'' || c == '"')
        string(c);
      else
        operator_token(brackets);
    }
  }

  void name() {
    size_t end = at_;
    while (end < source_.size() && is_word(source_[end])) ++end;
    push(Kind::Name, source_.substr(at_, end - at_));
    advance(end);
  }

  // Digits with single underscores between them; returns the end.
  template <class F>
  size_t digits(size_t at, F is) const {
    while (at < source_.size() &&
           (is(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void number() {
    const size_t whole = digits(at_, is_digit);
    size_t end = whole;
    bool is_float = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits(end + 1, is_digit);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          end = digits(exponent, is_digit);
          is_float = true;
        }
      }
    }
    const auto plain = [&](size_t from, size_t to) {
      std::string s = source_.substr(from, to - from);
      std::erase(s, '_');
      return s;
    };
    if (is_float) {
      push(Kind::Float).number = std::strtod(plain(at_, end).c_str(), nullptr);
      return advance(end);
    }
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {  // 0b, 0o, 0x
      const char base = static_cast<char>(source_[at_ + 1] | 0x20);
      const auto is = [&](char c) {
        return base == 'b'   ? c == '0' || c == '1'
               : base == 'o' ? c >= '0' && c <= '7'
                             : std::isxdigit(c) != 0;
      };
      if ((base == 'b' || base == 'o' || base == 'x') && is(source_[at_ + 2 + (source_[at_ + 2] == '_')])) {
        end = digits(at_ + 2, is);
        if (end - at_ > 4300) template_error(line_, "an integer has more than 4300 digits");
        push(Kind::Integer).number = JinjaValue(big_from_digits(plain(at_ + 2, end), base == 'b'   ? 2
                                                                                     : base == 'o' ? 8
                                                                                                   : 16));
        return advance(end);
      }
    }
    end = source_[at_] == '0' ? digits(at_, [](char c) { return c == '0'; }) : whole;
    if (end - at_ > 4300) template_error(line_, "an integer has more than 4300 digits");
    const std::string decimal = source_[at_] == '0' ? "0" : plain(at_, end);
    push(Kind::Integer).number = JinjaValue(big_from_digits(decimal, 10));
    advance(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      template_error(line_, fmt::format("unexpected char {} (an unclosed string)", quote));
    push(Kind::String, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\' || i + 1 >= s.size()) {
        out += s[i];
        continue;
      }
      const char c = s[++i];
      static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t simple = kFrom.find(c); simple != kFrom.npos) {
        out += kTo[simple];
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        size_t n = 0;
        for (; n < 3 && i + n < s.size() && s[i + n] >= '0' && s[i + n] <= '7'; ++n)
          value = value * 8 + (s[i + n] - '0');
        i += n - 1;
        append_utf8(out, value);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const std::string hex(s.substr(i + 1, n));
        if (hex.size() != n ||
            !std::all_of(hex.begin(), hex.end(), [](char h) { return std::isxdigit(h); })) {
          template_error(line_, fmt::format("truncated \\{} escape in a string", c));
        }
        const char32_t value = static_cast<char32_t>(std::strtoul(hex.c_str(), nullptr, 16));
        if (value > 0x10ffff) template_error(line_, "an escape past U+10FFFF in a string");
        append_utf8(out, value >= 0xd800 && value < 0xe000 ? 0xfffd : value);
        i += n;
      } else if (c == 'N') {
        template_error(line_, "\\N{…} escapes are not supported");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void operator_token(std::string& brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (std::string_view op : kOperators) {
      if (!starts(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (brackets.empty()) template_error(line_, fmt::format("unexpected '{}'", c));
        if (brackets.back() != c) {
          template_error(line_, fmt::format("unexpected '{}', expected '{}'", c, brackets.back()));
        }
        brackets.pop_back();
      }
      push(Kind::Operator, std::string(op));
      return advance(at_ + op.size());
    }
    template_error(line_,
                   fmt::format("unexpected char '{}'", source_.substr(at_, decode_utf8(source_, at_).size)));
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

std::vector<JinjaToken> tokenize_template(std::string_view source) { return Lexer(source).run(); }

}  // namespace quern

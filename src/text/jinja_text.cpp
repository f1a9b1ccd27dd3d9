#include "text/jinja_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace quern {

bool JinjaText::all_trusted() const {
  if (bytes_.empty()) return true;
  return marks_.empty() ? trusted_ : marks_.find('\0') == std::string::npos;
}

void JinjaText::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    trusted_ = trusted;
    marks_.clear();
  } else if (!marks_.empty()) {
    marks_.append(bytes.size(), trusted ? 1 : 0);
  } else if (trusted != trusted_) {
    marks_.assign(bytes_.size(), trusted_ ? 1 : 0);
    marks_.append(bytes.size(), trusted ? 1 : 0);
  }
  bytes_.append(bytes);
}

void JinjaText::append(const JinjaText& other, size_t from, size_t count) {
  if (count == 0) return;
  if (other.marks_.empty()) return append(std::string_view(other.bytes_).substr(from, count), other.trusted_);
  if (marks_.empty()) marks_.assign(bytes_.size(), trusted_ ? 1 : 0);
  marks_.append(other.marks_, from, count);
  bytes_.append(other.bytes_, from, count);
}

JinjaText JinjaText::slice(size_t from, size_t count) const {
  JinjaText out;
  if (from >= size()) return out;
  out.append(*this, from, std::min(count, size() - from));
  return out;
}

bool is_python_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_python_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_python_alpha(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_python_digit(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}
bool is_python_upper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_python_lower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); i += decode_utf8(text, i).size) ++n;
  return n;
}

std::vector<size_t> char_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); i += decode_utf8(text, i).size) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

namespace {

bool is_title(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LT;
}
bool is_cased(char32_t c) { return is_python_upper(c) || is_python_lower(c) || is_title(c); }

void append_upper(std::string& out, char32_t c) {
  if (c == 0xdf) return void(out += "SS");
  if (c == 0x149) return void(out += "\xca\xbcN");
  if (c >= 0xfb00 && c <= 0xfb06) {
    static const char* kLigatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};
    return void(out += kLigatures[c - 0xfb00]);
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (c == 0xdf) return void(out += "Ss");
  if (c >= 0xfb00 && c <= 0xfb06) {
    static const char* kLigatures[] = {"Ff", "Fi", "Fl", "Ffi", "Ffl", "St", "St"};
    return void(out += kLigatures[c - 0xfb00]);
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// Σ is ς at the end of a word: after a cased letter and before none (marks between them do not count).
bool is_final_sigma(std::string_view text, size_t at, size_t size) {
  const auto ignorable = [](char32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7;
  };
  bool before = false;
  for (size_t i = at; i > 0 && at - i < 64;) {
    do --i;
    while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80);
    const char32_t c = decode_utf8(text, i).code_point;
    if (ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  if (!before) return false;
  for (size_t i = at + size; i < text.size() && i < at + 64;) {
    const Utf8Char c = decode_utf8(text, i);
    if (!ignorable(c.code_point)) return !is_cased(c.code_point);
    i += c.size;
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t at, const Utf8Char& c) {
  if (c.code_point == 0x130) return void(out += "i\xcc\x87");
  if (c.code_point == 0x3a3) {
    return append_utf8(out, is_final_sigma(text, at, c.size) ? 0x3c2 : 0x3c3);
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point))));
}

}  // namespace

JinjaText change_case(const JinjaText& text, LetterCase to) {
  JinjaText out;
  const std::string_view view = text.view();
  bool after_cased = false;
  std::string piece;
  for (size_t i = 0; i < view.size();) {
    const Utf8Char c = decode_utf8(view, i);
    piece.clear();
    if (!c.valid) {
      piece = view.substr(i, c.size);
    } else {
      const char32_t p = c.code_point;
      switch (to) {
        case LetterCase::Upper:
          append_upper(piece, p);
          break;
        case LetterCase::Lower:
          append_lower(piece, view, i, c);
          break;
        case LetterCase::Swap:
          if (is_python_upper(p))
            append_lower(piece, view, i, c);
          else if (is_python_lower(p))
            append_upper(piece, p);
          else
            piece = view.substr(i, c.size);
          break;
        case LetterCase::Title:
          after_cased ? append_lower(piece, view, i, c) : append_title(piece, p);
          after_cased = is_cased(p);
          break;
        case LetterCase::Capital:
          i == 0 ? append_title(piece, p) : append_lower(piece, view, i, c);
          break;
      }
    }
    out.append(piece, text.trusted_at(i));
    i += c.size;
  }
  return out;
}

JinjaText strip(const JinjaText& text, bool left, bool right, const std::string* chars) {
  std::u32string set;
  if (chars != nullptr) {
    for (size_t i = 0; i < chars->size();) {
      const Utf8Char c = decode_utf8(*chars, i);
      set += c.code_point;
      i += c.size;
    }
  }
  const auto drops = [&](const Utf8Char& c) {
    if (!c.valid) return false;
    return chars == nullptr ? is_python_space(c.code_point) : set.find(c.code_point) != set.npos;
  };
  const std::string_view view = text.view();
  size_t begin = 0, end = view.size();
  while (left && begin < end) {
    const Utf8Char c = decode_utf8(view, begin);
    if (!drops(c)) break;
    begin += c.size;
  }
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(view[start]) & 0xc0) == 0x80) --start;
    if (!drops(decode_utf8(view, start))) break;
    end = start;
  }
  return text.slice(begin, end - begin);
}

std::vector<JinjaText> split(const JinjaText& text, const std::string* separator, int64_t limit,
                             bool from_right) {
  const std::string_view view = text.view();
  std::vector<JinjaText> out;
  if (separator != nullptr) {
    if (!from_right) {
      size_t begin = 0;
      while (limit != 0) {
        const size_t at = view.find(*separator, begin);
        if (at == view.npos) break;
        out.push_back(text.slice(begin, at - begin));
        begin = at + separator->size();
        if (limit > 0) --limit;
      }
      out.push_back(text.slice(begin, view.size() - begin));
      return out;
    }
    size_t end = view.size();
    while (limit != 0 && end >= separator->size()) {
      const size_t at = view.rfind(*separator, end - separator->size());
      if (at == view.npos) break;
      out.push_back(text.slice(at + separator->size(), end - at - separator->size()));
      end = at;
      if (limit > 0) --limit;
    }
    out.push_back(text.slice(0, end));
    std::reverse(out.begin(), out.end());
    return out;
  }
  // White space: runs separate, none at the ends.
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t i = 0; i < view.size();) {
    const Utf8Char c = decode_utf8(view, i);
    if (!c.valid || !is_python_space(c.code_point)) {
      if (words.empty() || words.back().second != i)
        words.emplace_back(i, i + c.size);
      else
        words.back().second = i + c.size;
    }
    i += c.size;
  }
  const size_t keep =
      limit < 0 ? words.size() : std::min<uint64_t>(words.size(), static_cast<uint64_t>(limit));
  if (!from_right) {
    for (size_t i = 0; i < keep; ++i)
      out.push_back(text.slice(words[i].first, words[i].second - words[i].first));
    if (keep < words.size()) {
      out.push_back(text.slice(words[keep].first, view.size()));
    }
    return out;
  }
  const size_t first = words.size() - keep;
  if (first > 0) out.push_back(text.slice(0, words[first - 1].second));
  for (size_t i = first; i < words.size(); ++i) {
    out.push_back(text.slice(words[i].first, words[i].second - words[i].first));
  }
  return out;
}

std::vector<JinjaText> split_lines(const JinjaText& text, bool keep_ends) {
  const std::string_view view = text.view();
  std::vector<JinjaText> out;
  size_t begin = 0;
  for (size_t i = 0; i < view.size();) {
    const Utf8Char c = decode_utf8(view, i);
    size_t next = i + c.size;
    const char32_t p = c.valid ? c.code_point : 0;
    if ((p >= 10 && p <= 13) || (p >= 0x1c && p <= 0x1e) || p == 0x85 || p == 0x2028 || p == 0x2029) {
      if (p == '\r' && next < view.size() && view[next] == '\n') ++next;
      out.push_back(text.slice(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < view.size()) out.push_back(text.slice(begin, view.size() - begin));
  return out;
}

JinjaText replace(const JinjaText& text, std::string_view from, const JinjaText& to, int64_t limit) {
  JinjaText out;
  const std::string_view view = text.view();
  if (from.empty()) {  // Python puts `to` before every character and at the end
    for (size_t i = 0; i < view.size();) {
      const int size = decode_utf8(view, i).size;
      if (limit != 0) out.append(to);
      if (limit > 0) --limit;
      out.append(text, i, size);
      i += size;
    }
    if (limit != 0) out.append(to);
    return out;
  }
  size_t begin = 0;
  while (limit != 0) {
    const size_t at = view.find(from, begin);
    if (at == view.npos) break;
    out.append(text, begin, at - begin);
    out.append(to);
    begin = at + from.size();
    if (limit > 0) --limit;
  }
  out.append(text, begin, view.size() - begin);
  return out;
}

JinjaText repr(const JinjaText& text) {
  const std::string_view view = text.view();
  const bool doubled = view.find('\'') != view.npos && view.find('"') == view.npos;
  const char quote = doubled ? '"' : '\'';
  const bool ends = text.all_trusted();
  JinjaText out(std::string(1, quote), ends);
  for (size_t i = 0; i < view.size();) {
    const Utf8Char c = decode_utf8(view, i);
    const char32_t p = c.code_point;
    std::string piece;
    if (c.valid && (p == static_cast<unsigned char>(quote) || p == '\\'))
      piece = {'\\', static_cast<char>(p)};
    else if (c.valid && (p == '\n' || p == '\r' || p == '\t'))
      piece = p == '\n' ? "\\n" : p == '\r' ? "\\r" : "\\t";
    else if (c.valid && !is_python_printable(p))
      piece = p < 0x100     ? fmt::format("\\x{:02x}", uint32_t{p})
              : p < 0x10000 ? fmt::format("\\u{:04x}", uint32_t{p})
                            : fmt::format("\\U{:08x}", uint32_t{p});
    else
      piece = view.substr(i, c.size);
    out.append(piece, text.trusted_at(i));
    i += c.size;
  }
  out.append(std::string_view(&quote, 1), ends);
  return out;
}

}  // namespace quern

#include "base/utf8.h"

namespace quern {

Utf8Char decode_utf8(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, false, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a range of its own (overlong forms, surrogates, the end of Unicode).
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t code_point = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {0, i, false, true};
    const unsigned char b = byte(at + i);
    if (b < low || b > high) return {0, i, false, false};
    low = 0x80;
    high = 0xBF;
    code_point = code_point << 6 | (b & 0x3F);
  }
  return {code_point, length, true, false};
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (!c.valid) return false;
    i += c.size;
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    append_utf8(out, c.valid ? c.code_point : U'\ufffd');
    i += c.size;
  }
  return out;
}

std::string one_line(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const bool control = c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0) ||
                         c.code_point == 0x2028 || c.code_point == 0x2029;
    for (int k = 0; k < c.size; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if (c.valid && !control)
        out += static_cast<char>(byte);
      else
        out.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
    }
    i += static_cast<size_t>(c.size);
  }
  return out;
}

}  // namespace quern

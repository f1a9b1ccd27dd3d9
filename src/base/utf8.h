// UTF-8, one code point at a time, strict: overlong forms, surrogates and values past U+10FFFF are invalid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quern {

struct Utf8Char {
  char32_t code_point = 0;
  int size = 1;  // bytes used; for an invalid sequence its maximal prefix (Unicode 15, 3.9: one U+FFFD each)
  bool valid = false;
  bool truncated = false;  // invalid only because the text ended inside it
};

// The code point that starts at text[at]; at < text.size().
Utf8Char decode_utf8(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code_point);
bool is_valid_utf8(std::string_view text);
// Every invalid sequence becomes U+FFFD.
std::string repair_utf8(std::string_view text);
// For a terminal: control characters and invalid bytes become \xHH, so that names from a file are one line and command
// nothing.
std::string one_line(std::string_view text);

}  // namespace quern

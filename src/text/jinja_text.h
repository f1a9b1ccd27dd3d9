// A string that knows where each of its bytes came from: written in the template (trusted) or put in by a
// message, a tool or another variable (input). The marks follow the bytes through every operation of the template
// engine, so that a control token is recognised only where the template itself wrote it.
//
// Text is UTF-8 and counted in code points, as Python counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

class JinjaText {
 public:
  JinjaText() = default;
  JinjaText(std::string bytes, bool trusted) : bytes_(std::move(bytes)), trusted_(trusted) {}

  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool trusted_at(size_t i) const { return marks_.empty() ? trusted_ : marks_[i] != 0; }
  // Every byte is trusted (true of an empty text).
  bool all_trusted() const;

  void append(std::string_view bytes, bool trusted);
  void append(const JinjaText& other) { append(other, 0, other.size()); }
  void append(const JinjaText& other, size_t from, size_t count);  // bytes [from, from + count)
  JinjaText slice(size_t from, size_t count) const;                // clipped to the end

 private:
  std::string bytes_;
  std::string marks_;  // one byte each; empty: all are `trusted_`
  bool trusted_ = true;
};

// Python's view of characters.
bool is_python_space(char32_t c);
bool is_python_printable(char32_t c);
bool is_python_alpha(char32_t c);
bool is_python_digit(char32_t c);  // category Nd, and the digits str.isdigit adds are left out
bool is_python_upper(char32_t c);
bool is_python_lower(char32_t c);

enum class LetterCase { Upper, Lower, Swap, Title, Capital };
// str.upper, lower, swapcase, title, capitalize, with the expansions of ß, ŉ, İ and the final sigma.
JinjaText change_case(const JinjaText& text, LetterCase to);

bool is_ascii(std::string_view text);
size_t count_chars(std::string_view text);
// Byte offset of each character, and the size at the end: size() is count_chars + 1.
std::vector<size_t> char_offsets(std::string_view text);

// str.strip and its sides: Python's white space, or any character of `chars`.
JinjaText strip(const JinjaText& text, bool left, bool right, const std::string* chars = nullptr);
// str.split / rsplit: at white space where separator is null; at most `limit` cuts unless negative.
std::vector<JinjaText> split(const JinjaText& text, const std::string* separator, int64_t limit,
                             bool from_right = false);
std::vector<JinjaText> split_lines(const JinjaText& text, bool keep_ends = false);
JinjaText replace(const JinjaText& text, std::string_view from, const JinjaText& to, int64_t limit);
// Python's repr of a str, quotes and all.
JinjaText repr(const JinjaText& text);

}  // namespace quern

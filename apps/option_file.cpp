#include "option_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <iterator>

#include "base/utf8.h"

namespace quern {
namespace {

class Reader {
 public:
  Reader(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  bool at_end() const { return at_ == text_.size(); }
  int line() const { return line_; }
  [[noreturn]] void fail(const std::string& what, int line) const {
    throw CLI::ConfigError(fmt::format("{}:{}: {}", file_, line, what));
  }
  [[noreturn]] void fail(const std::string& what) const { fail(what, line_); }

  // Past white space; with `lines`, past line ends and comments too.
  void skip(bool lines) {
    for (; !at_end(); ++at_) {
      const char c = text_[at_];
      if (c == '#' && lines)
        at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      else if (c == '\n' && lines)
        ++line_;
      else if (c != ' ' && c != '\t' && c != '\r')
        return;
    }
  }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string key() {
    if (take('[')) fail("sections are not known here: keys are the flags' long names");
    if (!at_end() && (text_[at_] == '"' || text_[at_] == '\'')) return string();
    return word("a key");
  }
  // Whether it is true or false is said in `boolean`.
  std::vector<std::string> value(bool& boolean) {
    std::vector<std::string> items;
    boolean = false;
    if (!take('[')) {
      items.push_back(scalar(boolean));
      return items;
    }
    for (skip(true); !take(']'); skip(true)) {
      bool ignored = false;
      items.push_back(scalar(ignored));
      skip(true);
      if (!take(',') && (at_end() || text_[at_] != ']')) fail("expected ',' or ']'");
    }
    return items;
  }
  void end_of_line() {
    skip(false);
    if (!at_end() && text_[at_] != '#' && text_[at_] != '\n') fail("expected a new line after the value");
  }

 private:
  std::string word(const char* what) {
    const size_t begin = at_;
    const auto is_part = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_' || c == '+' || c == '.';
    };
    while (!at_end() && is_part(text_[at_])) ++at_;
    if (at_ == begin) fail(fmt::format("expected {}", what));
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string scalar(bool& boolean) {
    if (!at_end() && (text_[at_] == '"' || text_[at_] == '\'')) return string();
    const std::string found = word("a value");
    boolean = found == "true" || found == "false";
    const bool number = (found[0] >= '0' && found[0] <= '9') || found[0] == '-' || found[0] == '+';
    // What was found may be a key or a password: it stays out of the log.
    if (!boolean && !number) fail("expected a value; text stands in quotes");
    return found;
  }
  std::string string() {
    const char quote = text_[at_];
    if (text_.substr(at_, 3) == std::string(3, quote)) fail("strings of several lines are not read");
    std::string out;
    for (++at_;; ++at_) {
      if (at_end() || text_[at_] == '\n') {
        fail("a string without its closing quote");
      }
      const char c = text_[at_];
      if (c == quote) break;
      if (c != '\\' || quote == '\'') {
        out += c;
        continue;
      }
      escape(out);
    }
    ++at_;
    return out;
  }
  void escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\bfnrt", kMeanings = "\"\\\b\f\n\r\t";
    const char letter = ++at_ < text_.size() ? text_[at_] : '\n';
    if (const size_t i = kLetters.find(letter); i != kLetters.npos) {
      out += kMeanings[i];
      return;
    }
    const size_t digits = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    char32_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char d = at_ + i < text_.size() ? text_[at_ + i] : '\n';
      const int v = d >= '0' && d <= '9'   ? d - '0'
                    : d >= 'a' && d <= 'f' ? d - 'a' + 10
                    : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                           : -1;
      if (v < 0 || code > 0x10FFFF) fail("an escape that is none");
      code = code * 16 + static_cast<char32_t>(v);
    }
    if (digits == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape that is none");
    append_utf8(out, code);
    at_ += digits;
  }

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int line_ = 1;
};

std::string file_of(const CLI::App& app) { return app.get_config_ptr()->as<std::string>(); }

}  // namespace

std::vector<CLI::ConfigItem> OptionFile::from_config(std::istream& in) const {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  Reader reader(text, file_of(app_));
  std::vector<CLI::ConfigItem> items;
  for (reader.skip(true); !reader.at_end(); reader.skip(true)) {
    const int line = reader.line();
    CLI::ConfigItem item;
    item.name = reader.key();
    const std::string name = one_line(item.name.substr(0, 40));
    const CLI::Option* option = app_.get_option_no_throw("--" + item.name);
    if (item.name == "model") option = app_.get_option_no_throw(item.name = "MODEL");
    if (option == nullptr || !option->get_configurable())
      reader.fail(fmt::format("'{}' is no option; keys are the flags' long names, and model", name), line);
    if (!lines_.try_emplace(item.name, line).second)
      reader.fail(fmt::format("'{}' stands in line {} already", name, lines_.at(item.name)), line);
    reader.skip(false);
    if (!reader.take('=')) reader.fail(fmt::format("expected '=' after '{}'", name));
    reader.skip(false);
    bool boolean = false;
    item.inputs = reader.value(boolean);
    reader.end_of_line();
    const bool flag = option->get_expected_min() == 0;
    if (flag && !boolean) reader.fail(fmt::format("{}: expected true or false", name), line);
    if (!flag && boolean)
      reader.fail(fmt::format("{}: expected a value, found {}", name, item.inputs[0]), line);
    if (item.inputs.empty()) continue;  // an empty array: none of them
    if (item.inputs.size() > 1 && option->get_expected_max() == 1)
      reader.fail(fmt::format("{}: expected one value, found {}", name, item.inputs.size()), line);
    items.push_back(std::move(item));
  }
  return items;
}

// CLI11 asks for it; nothing here writes such a file.
std::string OptionFile::to_config(const CLI::App*, bool, bool, std::string) const { return {}; }

std::string OptionFile::place_of(std::string_view key) const {
  const auto at = lines_.find(key);
  return at == lines_.end() ? std::string() : fmt::format("{}:{}: ", file_of(app_), at->second);
}

}  // namespace quern

// An options file: the flags' long names as keys, one "key = value" a line, as TOML has it. `model` is the MODEL.
//
// Values are "strings" with escapes, 'literal strings', whole numbers, decimal numbers, true and false, and arrays of
// these in brackets, which may go over several lines; # begins a comment. Sections, dates, """ and ''' are refused by name.
// Errors name the file and the line.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

class OptionFile : public CLI::Config {
 public:
  explicit OptionFile(const CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override;
  std::string to_config(const CLI::App* app, bool defaults, bool descriptions,
                        std::string prefix) const override;
  // "FILE:LINE: " of a key that was read; empty of others.
  std::string place_of(std::string_view key) const;

 private:
  const CLI::App& app_;
  mutable std::map<std::string, int, std::less<>> lines_;  // by key
};

}  // namespace quern

// A subcommand's options by CLI11, with its faults in our words.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "commands.h"

namespace quern {
namespace {

// NaN is within every range, by the way ranges are checked; and -1 would wrap to the largest unsigned number.
void refuse_no_numbers(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("UINT")) {
      for (const std::string& text : option->results())
        if (text.starts_with('-'))
          throw CLI::ValidationError(option->get_name(), "expected a number from 0 on, found " + text);
    }
    if (!option->get_type_name().starts_with("FLOAT")) continue;
    for (const std::string& text : option->results())
      if (!std::isfinite(std::strtod(text.c_str(), nullptr)))
        throw CLI::ValidationError(option->get_name(), "expected a finite number, found " + text);
  }
}

// "4096.000000" → "4096".
std::string short_number(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// CLI11 prints the bounds of its ranges as they are stored: those of a positive number are 600 digits.
void name_ranges(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    CLI::Validator* range = nullptr;
    try {
      range = option->get_validator(0);
    } catch (const CLI::OptionNotFound&) {
      continue;
    }
    const std::string type = option->get_type_name(), bounds = range->get_description();
    const bool whole = type.starts_with("INT") || type.starts_with("UINT");
    range->operation([before = *range, whole, bounds](std::string& text) {
      std::string said = before(text);
      if (whole && said.empty()) {
        char* end = nullptr;
        std::strtoll(text.c_str(), &end, 0);
        if (*end == '\0') return said;
      } else if (!said.starts_with("Value ")) {
        return said;
      }
      const std::string number = whole ? "expected a whole number" : "expected a number";
      const std::string found = ", found " + text;
      if (bounds == "POSITIVE") return number + (whole ? " from 1 on" : " above 0") + found;
      if (bounds == "NONNEGATIVE") return number + " from 0 on" + found;
      constexpr std::string_view kRange = " not in range ", kTo = " to ";
      const size_t at = said.rfind(kRange), to = said.rfind(kTo);
      if (at == std::string::npos || to == std::string::npos || to < at) return number + found;
      const size_t low = at + kRange.size();
      return number + " from " + short_number(said.substr(low, to - low)) + " to " +
             short_number(said.substr(to + kTo.size())) + found;
    });
  }
}

}  // namespace

std::optional<int> parse_options(CLI::App& app, int argc, char** argv) {
  name_ranges(app);
  app.name(std::string("quern ") + argv[0]);
  try {
    app.parse(argc, argv);
    refuse_no_numbers(app);
    return std::nullopt;
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "%s: %s (--help lists the options)\n", app.get_name().c_str(), e.what());
    return 2;
  }
}

std::string fault_of(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace quern

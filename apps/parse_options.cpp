// A subcommand's options by CLI11, with its faults in our words.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "commands.h"
#include "option_file.h"

namespace quern {
namespace {

// NaN is within every range, by the way ranges are checked; -1 would wrap to the largest unsigned number; and what is
// beyond 64 bits would become the largest.
void refuse_no_numbers(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool is_unsigned = option->get_type_name().starts_with("UINT");
    if (is_unsigned || option->get_type_name().starts_with("INT")) {
      for (const std::string& text : option->results()) {
        if (is_unsigned && text.starts_with('-'))
          throw CLI::ValidationError(option->get_name(), "expected a number from 0 on, found " + text);
        errno = 0;
        is_unsigned ? void(std::strtoull(text.c_str(), nullptr, 0))
                    : void(std::strtoll(text.c_str(), nullptr, 0));
        if (errno == ERANGE)
          throw CLI::ValidationError(option->get_name(), "expected a number of 64 bits, found " + text);
      }
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
      if (option->get_type_name() == "UINT")
        option->check([](const std::string& text) {
          char* end = nullptr;
          std::strtoull(text.c_str(), &end, 0);
          return *end == '\0' ? std::string() : "expected a whole number from 0 on, found " + text;
        });
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

// CLI11's words for what is missing or given twice: "1 required INT:POSITIVE missing".
std::string in_our_words(std::string said) {
  const size_t at = said.find(": ");
  if (at == std::string::npos || !said.starts_with("--")) return said;
  const std::string_view fault = std::string_view(said).substr(at + 2);
  if (fault.find(" required ") != fault.npos && fault.ends_with(" missing"))
    return said.substr(0, at) + ": expected a value";
  if (fault.starts_with("At Most 1 required")) return said.substr(0, at) + ": given more than once";
  return said;
}

// Where a fault that begins "--NAME: " comes from, if not from the command line.
std::string place_of_fault(const CLI::App& app, const std::string& said, int argc, char** argv) {
  const auto file = std::dynamic_pointer_cast<OptionFile>(app.get_config_formatter());
  if (!file || !said.starts_with("--")) return {};
  const std::string flag = said.substr(0, said.find(':'));
  const bool is_given = std::any_of(argv + 1, argv + argc, [&](std::string_view word) {
    return word == flag || word.starts_with(flag + "=");
  });
  return is_given ? std::string() : file->place_of(flag.substr(2));
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
    const std::string said = place_of_fault(app, e.what(), argc, argv) + in_our_words(e.what());
    std::fprintf(stderr, "%s: %s (--help lists the options)\n", app.get_name().c_str(),
                 one_line(said).c_str());
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

// quern: the program. Dispatches to its subcommands, and turns an Error into one line and exit code 1.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/utf8.h"
#include "commands.h"

namespace quern {
namespace {

struct Command {
  const char* name;
  int (*main)(int argc, char** argv);
  const char* what;
};

// In the order of a first acquaintance.
constexpr Command kCommands[] = {
    {"run", run_main, "one answer"},
    {"chat", chat_main, "a conversation in the terminal"},
    {"bench", bench_main, "how fast a model runs"},
    {"eval", eval_main, "compare with outputs of the reference, or score a text"},
    {"inspect", inspect_main, "what a model's files hold, and what goes where"},
    {"serve", serve_main, "the OpenAI- and Anthropic-compatible server and its web page"},
    {"convert", convert_main, "write a checkpoint in another format"},
    {"synth", synth_main, "write a random checkpoint with real shapes"},
    {"tokenize", tokenize_main, "the token ids of a text, or the text of ids"},
};

void print_usage(std::FILE* to) {
  std::fprintf(to, "usage: quern COMMAND MODEL [options]; quern help COMMAND says more\n");
  for (const Command& c : kCommands) std::fprintf(to, "  %-9s %s\n", c.name, c.what);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  const std::string name = argv[1];
  if (name == "--version") {
    std::printf("quern %s\n", QUERN_VERSION);
    return 0;
  }
  if (name == "help" && argc > 2) {
    char help[] = "--help";
    char* asked[] = {argv[0], argv[2], help, nullptr};
    return run(3, asked);
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  if (name == "bench")
    for (int i = 2; i < argc; ++i)
      if (std::strncmp(argv[i], "--url", 5) == 0) return bench_url_main(argc - 1, argv + 1);
  for (const Command& c : kCommands)
    if (name == c.name) return c.main(argc - 1, argv + 1);
  std::fprintf(stderr, "quern: '%s' is no command\n", name.c_str());
  print_usage(stderr);
  return 2;
}

}  // namespace

// NaN is within every range, by the way ranges are checked; and -1 would wrap to the largest unsigned number.
static void refuse_no_numbers(const CLI::App& app) {
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
static std::string short_number(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// CLI11 prints the bounds of its ranges as they are stored: those of a positive number are 600 digits.
static void name_ranges(CLI::App& app) {
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

}  // namespace quern

int main(int argc, char** argv) {
  int code = 1;
  try {
    code = quern::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quern: out of memory\n");
  } catch (const std::exception& e) {
    // Of output that is lost, fmt throws a std::system_error; that is told below.
    if (dynamic_cast<const std::system_error*>(&e) == nullptr || std::ferror(stdout) == 0)
      std::fprintf(stderr, "quern: %s\n", quern::one_line(e.what()).c_str());
  }
  // A reader takes exit code 0 to mean that the whole output is there.
  const bool flushed = std::fflush(stdout) == 0;
  if (!flushed || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "quern: standard output: write failed\n");
    if (code == 0) code = 1;
  }
  return code;
}

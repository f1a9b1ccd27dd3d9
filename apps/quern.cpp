// quern: the program. Dispatches to its subcommands, and turns an Error into one line and exit code 1.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

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
  std::fprintf(to, "usage: quern COMMAND MODEL [options]; quern COMMAND --help says more\n");
  for (const Command& c : kCommands) std::fprintf(to, "  %-9s %s\n", c.name, c.what);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  const std::string name = argv[1];
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

std::optional<int> parse_options(CLI::App& app, int argc, char** argv) {
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
  try {
    return quern::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quern: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "quern: %s\n", quern::one_line(e.what()).c_str());
  }
  return 1;
}

// quern: the program. Dispatches to its subcommands, and turns an Error into one line and exit code 1.
#include <cstdio>
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

// The subcommands of quern: one file each, one function each, listed in quern.cpp. argv[0] is the
// subcommand's name. They return the exit code; an Error thrown out of one becomes a line on stderr and exit
// code 1.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace quern {

int bench_main(int argc, char** argv);
int chat_main(int argc, char** argv);
int convert_main(int argc, char** argv);
int bench_url_main(int argc, char** argv);  // bench --url
int eval_main(int argc, char** argv);
int inspect_main(int argc, char** argv);
int run_main(int argc, char** argv);
int serve_main(int argc, char** argv);
int synth_main(int argc, char** argv);
int tokenize_main(int argc, char** argv);

// Parses a subcommand's options. A value: stop with this exit code (help was printed: 0; a usage error: 2).
std::optional<int> parse_options(CLI::App& app, int argc, char** argv);

// For CLI11's check(): the text of the Error that `parse` throws; empty where it throws none.
std::string fault_of(const std::function<void()>& parse);

}  // namespace quern

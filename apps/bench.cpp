// quern bench: how fast a model runs on this machine.
#include "bench.h"

#include <CLI/CLI.hpp>
#include <string_view>

#include "base/check.h"
#include "bench_synthetic.h"
#include "commands.h"

namespace quern {

int bench_main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]).starts_with("--synthetic")) return bench_synthetic(argc, argv);
  CLI::App app("Measures how fast a model runs: single steps, or with --drafts or --streams the engine.");
  app.footer(
      "Without MODEL: --synthetic full|tiny measures random weights made in memory, and --url "
      "http://HOST:PORT a running "
      "server; --help beside either lists its options.\n");
  BenchOptions o;
  bool drafts = false;
  o.model.add_to(app);
  o.engine.add_to(app);
  app.add_flag("--drafts", drafts, "tokens a step with each kind and depth of drafts");
  app.add_option("--streams", o.streams, "tokens a second of so many replies at a time; several may be given")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',')
      ->excludes("--drafts");
  app.add_option("-n,--tokens", o.tokens, "tokens of each reply")->check(CLI::Range(1, 1 << 20));
  app.add_option("--depth", o.context, "tokens before them")->check(CLI::Range(1, 1 << 20));
  StepOptions& steps = o.steps;
  app.add_option("--context", steps.contexts, "tokens before a measured step")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--width", steps.widths, "sequences decoded together")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--draft-rows", steps.drafts, "drafted rows of each sequence in a step")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0, kMaxDrafts));
  app.add_option("--prompt", steps.prompt, "tokens of a measured prefill")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps.n, "decode steps; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--repeats", steps.repeats, "prefills; the quickest counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", o.json, "print JSON");
  if (const auto code = parse_options(app, argc, argv)) return *code;
  if (drafts) return bench_drafts(o);
  if (!o.streams.empty()) return bench_streams(o);
  return bench_steps(o);
}

}  // namespace quern

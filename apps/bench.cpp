// quern bench: how fast a model runs on this machine.
#include "bench.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "commands.h"

namespace quern {

int bench_main(int argc, char** argv) {
  CLI::App app("Measures how fast a model runs.");
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
  app.add_flag("--json", o.json, "print JSON");
  if (const auto code = parse_options(app, argc, argv)) return *code;
  if (drafts) return bench_drafts(o);
  if (!o.streams.empty()) return bench_streams(o);
  throw Error("bench: expected --drafts or --streams");
}

}  // namespace quern

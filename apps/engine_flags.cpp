#include "engine_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace quern {

void EngineFlags::add_to(CLI::App& app) {
  const auto positive = CLI::Range(0.001, 1e6);
  app.add_option("--ctx", context, "tokens of prompt and reply together (default: the model's, up to 32768)")
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 30));
  app.add_option("--slots", slots, "sequences that run at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--cache-gib", cache_gib, "memory for keys and values, over all sequences")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--step-rows", step_rows, "rows of the largest step")
      ->check(CLI::Range(64, 1 << 16))
      ->capture_default_str();
  app.add_option("--max-stall-ms", options.max_stall_ms,
                 "how long a reply may wait for its next token because others' prompts are computed")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--max-drafts", options.max_drafts, "tokens drafted ahead at most; 0: none")
      ->check(CLI::Range(0, kMaxDrafts))
      ->capture_default_str();
  app.add_flag("--no-draft-block", no_draft_block, "do not draft with the model's draft block (MTP)");
  app.add_flag("--no-draft-lookup", no_draft_lookup, "do not draft by look-up in the request's own tokens");
  app.add_flag("--no-prefix-cache", no_prefix_cache, "compute every prompt from its first token");
  app.add_option("--snapshot-gib", snapshot_gib, "host memory for snapshots of prefixes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--snapshot-interval", options.snapshot_interval,
                 "tokens of a long prompt between snapshots; a multiple of 64")
      ->check([](const std::string& text) {
        const long n = std::strtol(text.c_str(), nullptr, 10);
        return n > 0 && n % kPageTokens == 0 ? std::string()
                                             : "expected a positive multiple of 64, found " + text;
      })
      ->capture_default_str();
  app.add_option("--snapshot-dir", options.snapshot_directory,
                 "folder for prefixes that outlive the process (default: none)");
  app.add_option("--snapshot-disk-gib", snapshot_disk_gib, "size of that folder at most")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--reuse-replies", options.reuse_replies,
               "on CUDA: let generated tokens enter the prefix cache; faster, no longer bit for bit");
}

namespace {

int64_t bytes_of(double gib) { return static_cast<int64_t>(gib * (1 << 30)); }

}  // namespace

OpenModel open_model_for(const ModelFlags& flags, EngineFlags& e) {
  const auto checkpoint = Checkpoint::open(flags.model);
  const Config config = read_config(*checkpoint);
  const int64_t context = e.context > 0 ? e.context : std::min<int64_t>(config.max_positions, 32768);
  CacheShape shape;
  shape.n_sparse_layers = config.n_sparse_layers();
  shape.drafts = config.mtp_layers > 0;
  shape.n_kv = config.n_kv_heads;
  shape.d_head = config.d_head;
  shape.d_index = config.indexer.d_head;
  shape.kv = parse_kv(flags.kv);
  const int64_t least = (context + kMaxDrafts) / kPageTokens + 1;
  const int64_t most = least * e.slots;
  const int64_t fit = bytes_of(e.cache_gib) / KvCache::page_bytes(shape);
  if (fit < least)
    throw Error(fmt::format(
        "--cache-gib {}: one sequence of {} tokens takes {:.2f} GiB; give it more, or a "
        "smaller --ctx",
        e.cache_gib, context, static_cast<double>(least * KvCache::page_bytes(shape)) / (1 << 30)));
  ModelOptions options;
  options.drafts = !e.no_draft_block && e.options.max_drafts > 0;
  options.n_slots = e.slots;
  options.n_pages = static_cast<int32_t>(std::min(most, fit));
  options.batch.context = context;
  options.batch.segments = e.slots;
  options.batch.logits = int64_t{e.slots} * (kMaxDrafts + 1);
  options.batch.rows = std::max(e.step_rows, int64_t{e.slots} * (kMaxDrafts + 1) + kPageTokens);
  e.options.draft_block = !e.no_draft_block;
  e.options.draft_lookup = !e.no_draft_lookup;
  e.options.prefix_cache = !e.no_prefix_cache;
  e.options.snapshot_ram = bytes_of(e.snapshot_gib);
  e.options.snapshot_disk = bytes_of(e.snapshot_disk_gib);
  return open_model(flags, options);
}

OpenEngine open_engine(const ModelFlags& flags, EngineFlags e) {
  OpenEngine o;
  o.open = open_model_for(flags, e);
  o.engine = std::make_unique<ModelEngine>(*o.open.model, e.options);
  return o;
}

}  // namespace quern

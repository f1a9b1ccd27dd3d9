#include "server/metrics.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

namespace quern {

namespace {

// The second number of /proc/self/statm, in pages.
int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

void Histogram::observe(double seconds, int64_t times) {
  const size_t i =
      static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin());
  counts_[i].fetch_add(times, std::memory_order_relaxed);
  microseconds_.fetch_add(std::llround(seconds * 1e6) * times, std::memory_order_relaxed);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  int64_t sum = 0;
  for (size_t i = 0; i <= kBounds.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    if (i < kBounds.size())
      fmt::format_to(to, "{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], sum);
    else
      fmt::format_to(to, "{}_bucket{{le=\"+Inf\"}} {}\n", name, sum);
  }
  fmt::format_to(to, "{}_sum {}\n{}_count {}\n", name,
                 static_cast<double>(microseconds_.load(std::memory_order_relaxed)) / 1e6, name, sum);
}

void Metrics::count_answer(std::string_view route, int status) {
  std::lock_guard lock(mutex_);
  ++answers_[{std::string(route), status}];
}

std::string Metrics::text(const EngineStats& e, const HttpStats& http, std::string_view model) const {
  std::string out;
  auto to = std::back_inserter(out);
  const auto metric = [&](std::string_view type, std::string_view name, std::string_view help, auto value) {
    fmt::format_to(to, "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
  };
  std::string label;
  for (char c : model) {
    if (c == '"' || c == '\\') label += '\\';
    label += c == '\n' ? ' ' : c;
  }
  fmt::format_to(to,
                 "# HELP quern_model_info The model that is served.\n# TYPE quern_model_info gauge\n"
                 "quern_model_info{{model_name=\"{}\"}} 1\n",
                 label);
  metric("gauge", "quern_num_requests_running", "Sequences in the running batch.", e.running);
  metric("gauge", "quern_num_requests_waiting", "Sequences waiting for a place.", e.waiting);
  metric("gauge", "quern_num_requests_preempted", "Sequences swapped out.", e.preempted);
  metric("gauge", "quern_kv_cache_pages", "Pages of the KV cache.", e.pages_total);
  metric("gauge", "quern_kv_cache_pages_used", "Pages in use.", e.pages_used);
  metric("gauge", "quern_kv_cache_usage_perc", "Share of pages in use, 0 to 1.",
         e.pages_total ? static_cast<double>(e.pages_used) / static_cast<double>(e.pages_total) : 0.0);
  metric("gauge", "quern_sequence_slots", "Places for running sequences.", e.slots_total);
  metric("gauge", "quern_sequence_slots_used", "Places taken.", e.slots_used);
  metric("gauge", "quern_seconds_in_step", "How long the running engine step has run.", e.seconds_in_step);
  metric("counter", "quern_requests_total", "Requests submitted to the engine.", e.requests);
  fmt::format_to(to,
                 "# HELP quern_request_success_total Replies that ended, by how.\n"
                 "# TYPE quern_request_success_total counter\n"
                 "quern_request_success_total{{finished_reason=\"finished\"}} {}\n"
                 "quern_request_success_total{{finished_reason=\"abort\"}} {}\n"
                 "quern_request_success_total{{finished_reason=\"error\"}} {}\n",
                 e.finished, e.cancelled, e.failed);
  metric("counter", "quern_num_preemptions_total", "Sequences preempted.", e.preemptions);
  metric("counter", "quern_engine_steps_total", "Steps of the engine.", e.steps);
  metric("counter", "quern_prompt_tokens_total", "Prompt tokens, cached ones included.", e.prompt_tokens);
  metric("counter", "quern_prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
         e.cached_tokens);
  metric("counter", "quern_generation_tokens_total", "Tokens generated.", e.completion_tokens);
  metric("counter", "quern_prefix_cache_queries_total", "Prompts looked up in the prefix cache.",
         e.cache_hits + e.cache_misses);
  metric("counter", "quern_prefix_cache_hits_total", "Prompts that found a prefix.", e.cache_hits);
  metric("counter", "quern_prefix_cache_disk_hits_total", "Prefixes taken from disk.", e.cache_disk_hits);
  metric("counter", "quern_prefix_cache_evicted_pages_total",
         "Cached pages given up because pages were short.", e.cache_evicted_pages);
  metric("counter", "quern_prefix_cache_evicted_snapshots_total", "Snapshots given up for the memory budget.",
         e.cache_evicted_snapshots);
  metric("gauge", "quern_prefix_cache_bytes", "Bytes of snapshots in memory.", e.cache_bytes);
  metric("gauge", "quern_prefix_cache_disk_bytes", "Bytes of snapshots on disk.", e.cache_disk_bytes);
  metric("gauge", "quern_prefix_cache_snapshots", "Snapshots held.", e.snapshots);
  int64_t drafted = 0, accepted = 0;
  for (int64_t n : e.drafted) drafted += n;
  for (int64_t n : e.accepted) accepted += n;
  metric("counter", "quern_spec_decode_num_draft_tokens_total", "Tokens drafted.", drafted);
  metric("counter", "quern_spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", accepted);
  fmt::format_to(to,
                 "# HELP quern_spec_decode_num_accepted_tokens_per_pos_total Accepted, by draft position.\n"
                 "# TYPE quern_spec_decode_num_accepted_tokens_per_pos_total counter\n");
  for (size_t i = 0; i < e.accepted.size(); ++i)
    fmt::format_to(to, "quern_spec_decode_num_accepted_tokens_per_pos_total{{position=\"{}\"}} {}\n", i,
                   e.accepted[i]);
  const std::pair<const char*, const DraftTally*> sources[] = {{"block", &e.block_drafts},
                                                               {"lookup", &e.lookup_drafts}};
  const auto by_source = [&](std::string_view type, std::string_view name, std::string_view help) {
    fmt::format_to(to, "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  };
  by_source("counter", "quern_spec_decode_source_draft_tokens_total", "Tokens drafted, by source.");
  for (const auto& [source, tally] : sources)
    fmt::format_to(to, "quern_spec_decode_source_draft_tokens_total{{source=\"{}\"}} {}\n", source,
                   tally->drafted);
  by_source("counter", "quern_spec_decode_source_accepted_tokens_total",
            "Drafted tokens accepted, by source.");
  for (const auto& [source, tally] : sources)
    fmt::format_to(to, "quern_spec_decode_source_accepted_tokens_total{{source=\"{}\"}} {}\n", source,
                   tally->accepted);
  by_source("gauge", "quern_spec_decode_on",
            "Whether drafts of a source pay for a kind of request: 1, or 0 where they are off.");
  for (const auto& [source, tally] : sources)
    for (int i = 0; i < kRequestKinds; ++i)
      fmt::format_to(to, "quern_spec_decode_on{{source=\"{}\",requests=\"{}\"}} {}\n", source,
                     name(static_cast<RequestKind>(i)), tally->on[i] ? 1 : 0);
  by_source("counter", "quern_spec_decode_switches_total", "Times they went off or on.");
  for (const auto& [source, tally] : sources)
    for (int i = 0; i < kRequestKinds; ++i)
      fmt::format_to(to, "quern_spec_decode_switches_total{{source=\"{}\",requests=\"{}\"}} {}\n", source,
                     name(static_cast<RequestKind>(i)), tally->switches[i]);
  time_to_first_token.write(out, "quern_time_to_first_token_seconds", "From submitting to the first token.");
  inter_token.write(out, "quern_inter_token_latency_seconds", "Between tokens of a reply.");
  end_to_end.write(out, "quern_e2e_request_latency_seconds", "From submitting to the end of a reply.");
  queue_time.write(out, "quern_request_queue_time_seconds", "Waiting for a place.");
  prefill_time.write(out, "quern_request_prefill_time_seconds", "Reading the prompt.");
  decode_time.write(out, "quern_request_decode_time_seconds", "Writing the reply.");
  metric("gauge", "quern_http_connections", "Open connections.", http.connections);
  metric("counter", "quern_http_connections_total", "Connections accepted.", http.connections_total);
  metric("counter", "quern_http_connections_refused_total", "Connections over the limit.", http.refused);
  metric("counter", "quern_http_disconnects_total", "Clients that left before their answer was complete.",
         http.disconnects);
  metric("counter", "quern_http_stalled_total", "Clients dropped because they did not read.", http.stalled);
  metric("counter", "quern_http_bad_heads_total", "Requests refused for their framing.", http.bad_heads);
  metric("counter", "quern_surrogates_repaired_total", "Lone surrogates replaced in request bodies.",
         surrogates_repaired.load());
  metric("gauge", "process_resident_memory_bytes", "Memory of the process that is in RAM.", resident_bytes());
  metric("counter", "quern_watchdog_fired_total", "Times the engine was found stuck.", watchdog_fired.load());
  fmt::format_to(to,
                 "# HELP quern_http_responses_total Answers by route and status (0: the client left).\n"
                 "# TYPE quern_http_responses_total counter\n");
  std::lock_guard lock(mutex_);
  for (const auto& [key, n] : answers_)
    fmt::format_to(to, "quern_http_responses_total{{handler=\"{}\",status=\"{}\"}} {}\n", key.first,
                   key.second, n);
  return out;
}

}  // namespace quern

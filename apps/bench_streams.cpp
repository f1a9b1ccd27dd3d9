// quern bench --streams: decode tokens a second of one reply and of several in one batch, undrafted. A batch reads
// the weights once a step, so its rate grows with its width; its ids must be those of each reply alone.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "bench.h"
#include "engine/engine_core.h"

namespace quern {

int bench_streams(const BenchOptions& bench) {
  EngineFlags engine = bench.engine;
  engine.slots = *std::max_element(bench.streams.begin(), bench.streams.end());
  const int64_t n = bench.tokens > 0 ? bench.tokens : 8;
  const int64_t depth = bench.context > 0 ? bench.context : 4;
  if (engine.context == 0) engine.context = std::max<int64_t>(256, depth + n + 64);
  engine.options.prefix_cache = false;
  engine.no_prefix_cache = true;
  engine.options.max_drafts = 0;
  const OpenModel open = open_model_for(bench.model, engine);

  // Every width is measured kRounds times in turn, so that a machine that grows slower does so for all, and the median of
  // all steps counts, so that a step in which something else ran, or weights were first read, does not.
  constexpr int kRounds = 2;
  std::map<int, std::vector<int32_t>> replies;  // by stream: each width must agree
  std::map<int, std::vector<double>> steps;     // seconds, by width
  bool same = true;
  for (int round = 0; round < kRounds; ++round)
    for (const int width : bench.streams) {
      EngineCore core(*open.model, engine.options);
      std::vector<std::vector<int32_t>> said(static_cast<size_t>(width));
      for (int i = 0; i < width; ++i) {
        std::mt19937 random(static_cast<uint32_t>(i) + 1);
        auto s = std::make_shared<Submission>();
        s->id = static_cast<RequestId>(i) + 1;
        s->submitted = Clock::now();
        for (int64_t j = 0; j < depth; ++j)
          s->request.prompt.push_back(
              static_cast<int32_t>(random() % static_cast<uint32_t>(open.model->config().vocab)));
        s->request.max_tokens = n;
        s->request.sampling.temperature = 0;
        s->sink = [&said, i](const Event& e) {
          said[i].insert(said[i].end(), e.ids.begin(), e.ids.end());
          if (e.finished && e.reason == FinishReason::Error) throw Error("bench: " + e.error);
        };
        core.submit(s);
      }
      while (!core.idle()) {
        const bool all_decode = std::all_of(said.begin(), said.end(), [&](const auto& ids) {
          return !ids.empty() && static_cast<int64_t>(ids.size()) < n;
        });
        const auto begin = Clock::now();
        core.step();
        if (all_decode) steps[width].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
      for (int i = 0; i < width; ++i) {
        const auto [it, fresh] = replies.emplace(i, said[i]);
        same = same && (fresh || it->second == said[i]);
      }
    }

  Json::Array rows;
  double one = 0;
  for (const int width : bench.streams) {
    std::vector<double>& seconds = steps[width];
    if (seconds.empty())
      throw Error("bench --streams: -n is too small for a step in which all streams decode");
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2),
                     seconds.end());
    const double step = seconds[seconds.size() / 2], rate = width / step;
    if (width == 1) one = rate;
    Json row{Json::Object{}};
    row.set("streams", width);
    row.set("tokens_per_second", rate);
    row.set("seconds_per_step", step);
    row.set("steps", static_cast<int64_t>(seconds.size()));
    rows.push_back(std::move(row));
    if (!bench.json)
      fmt::print("{:>4} streams: {:>8.2f} tokens/s, {:>8.1f} ms a step (median of {}){}\n", width, rate,
                 1e3 * step, seconds.size(),
                 one > 0 && width > 1 ? fmt::format(", {:.2f} times one stream", rate / one) : "");
  }
  if (bench.json) fmt::print("{}\n", write_json(Json(std::move(rows))));
  if (!same) throw Error("bench --streams: the width of the batch changed the ids");
  if (!bench.json) fmt::print("same ids at every width\n");
  return 0;
}

}  // namespace quern

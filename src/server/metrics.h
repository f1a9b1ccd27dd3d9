// Counters and histograms of the server, and the Prometheus text (exposition format 0.0.4) that shows them together
// with the engine's. Names follow the ones that dashboards of other engines use, with our prefix.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "server/http.h"

namespace quern {

// Observations in buckets with fixed upper bounds. Any thread.
class Histogram {
 public:
  static constexpr std::array<double, 22> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                                     0.1,   0.15,   0.2,   0.3,  0.5,  0.75, 1,    2.5,
                                                     5,     10,     20,    40,   80,   160};
  void observe(double seconds, int64_t times = 1);
  void write(std::string& out, std::string_view name, std::string_view help) const;

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> microseconds_{0};
};

class Metrics {
 public:
  Histogram time_to_first_token, inter_token, end_to_end, queue_time, prefill_time, decode_time;
  std::atomic<int64_t> surrogates_repaired{0}, watchdog_fired{0};

  // After each answer; `route` is a known path or "other".
  void count_answer(std::string_view route, int status);
  std::string text(const EngineStats& engine, const HttpStats& http, std::string_view model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answers_;
};

}  // namespace quern

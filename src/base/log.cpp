#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/check.h"

namespace quern {
namespace {
std::atomic<LogLevel> g_level{LogLevel::Info};
constexpr std::string_view kNames[] = {"debug", "info", "warn", "error", "off"};
}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

LogLevel parse_log_level(std::string_view name) {
  for (int i = 0; i < 5; ++i)
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  throw Error(fmt::format("log level: expected debug, info, warn, error or off, found '{}'", name));
}

void log_line(LogLevel level, std::string_view line) {
  if (!log_enabled(level)) return;
  using namespace std::chrono;
  const auto ms = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
  std::string out = fmt::format("{}.{:03} {:5} ", ms / 1000, ms % 1000, kNames[static_cast<int>(level)]);
  for (const char c : line) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f)
      out += fmt::format("\\x{:02x}", u);
    else
      out += c;
  }
  out += '\n';
  [[maybe_unused]] const ssize_t written = ::write(2, out.data(), out.size());
}

}  // namespace quern

// Leveled lines to stderr, each written by one write(2) so that threads do not interleave. Only apps/ choose
// the level.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace quern {

enum class LogLevel { Debug, Info, Warn, Error, Off };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
// "debug" … "off"; anything else is an Error that lists them.
LogLevel parse_log_level(std::string_view name);
// Control characters in `line` are escaped, so that nothing logged can forge a line.
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quern

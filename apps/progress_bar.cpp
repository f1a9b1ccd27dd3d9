#include "progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace quern {

using Clock = std::chrono::steady_clock;

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), on_terminal_(::isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::update(int64_t done, int64_t all) {
  const auto now = Clock::now();
  if (!on_terminal_ || (shown_ && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double part = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
  const int width = static_cast<int>(part * 30);
  fmt::print(stderr, "\r\x1b[K{} [{:<30}] {:3.0f} %  {} of {}  {}/s", what_,
             std::string(static_cast<size_t>(width), '#'), 100 * part, bytes_text(done), bytes_text(all),
             bytes_text(static_cast<int64_t>(static_cast<double>(done) / (seconds > 0 ? seconds : 1))));
  std::fflush(stderr);
}

std::string bytes_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", b / 1024);
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", b / (1 << 20));
  return fmt::format("{:.2f} GiB", b / (1 << 30));
}

}  // namespace quern

// A line on the terminal that says how far a long job is; silent where stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quern {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(int64_t bytes_done, int64_t bytes_in_all);

 private:
  std::string what_;
  bool shown_ = false;
  bool on_terminal_;
  std::chrono::steady_clock::time_point start_, last_;
};

// "3.4 GiB"
std::string bytes_text(int64_t bytes);

}  // namespace quern

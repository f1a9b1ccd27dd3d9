// While one lives, these signals only set a flag: who works looks at it and ends as it should. Before and after, they end
// the program as usual; one that is ignored (a job in the background) stays so. One at a time.
#pragma once

#include <signal.h>

#include <atomic>
#include <initializer_list>
#include <utility>
#include <vector>

namespace quern {

class InterruptGuard {
 public:
  explicit InterruptGuard(std::initializer_list<int> signals);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  const std::atomic<bool>& asked() const;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace quern

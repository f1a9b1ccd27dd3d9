#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace quern {
namespace {

// How often a worker looks for the next job before it sleeps: about 20 us, the gap between two ops of a step.
constexpr int kSpins = 2000;

int processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads <= 0) n_threads = processors();
  for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::run_pieces() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= n_) return;
    (*fn_)(begin, std::min(begin + grain_, n_));
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || n <= grain) {
    for (int64_t i = 0; i < n; i += grain) fn(i, std::min(i + grain, n));
    return;
  }
  n_ = n;
  grain_ = grain;
  fn_ = &fn;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  run_pieces();
  for (int i = 0;; ++i) {
    const int busy = busy_.load(std::memory_order_acquire);
    if (busy == 0) break;
    if (i < kSpins) {
      relax();
    } else {
      busy_.wait(busy, std::memory_order_acquire);
    }
  }
  fn_ = nullptr;
}

void ThreadPool::work() {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; epoch_.load(std::memory_order_acquire) == seen; ++i) {
      if (i < kSpins) {
        relax();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_) return;
    run_pieces();
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace quern

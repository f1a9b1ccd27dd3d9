// Worker threads for the CPU ops. One caller at a time (the engine's thread) splits a range; which thread
// computes what never changes a result, because every op's output element is computed whole by one call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace quern {

class ThreadPool {
 public:
  // `n_threads` counts the caller: 1 starts no thread. 0 means one per processor this process may use.
  explicit ThreadPool(int n_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(begin, end) for disjoint pieces of [0, n) of at most `grain` items, in any order, on any thread,
  // the caller's included; returns when all are done. fn must not throw and must not call parallel_for.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

 private:
  void work();
  void run_pieces();

  std::vector<std::thread> workers_;
  std::atomic<uint32_t> epoch_{0};  // raised for each job; workers wait on it
  std::atomic<int> busy_{0};        // workers that have not finished the current job
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  int64_t n_ = 0, grain_ = 1;
  const std::function<void(int64_t, int64_t)>* fn_ = nullptr;
};

}  // namespace quern

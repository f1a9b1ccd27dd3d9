// Threads for what is too slow for an I/O thread: parsing bodies, rendering templates, tokenising.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quern {

class WorkPool {
 public:
  WorkPool(int n_threads, size_t max_queue);
  ~WorkPool();  // runs what has been posted
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False where the queue is full. `job` must not throw.
  bool post(std::function<void()> job);
  void stop();

 private:
  void work();

  const size_t max_queue_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quern

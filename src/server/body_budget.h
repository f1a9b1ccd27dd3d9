#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quern {

// Bytes of request bodies held in memory, returned on destruction.
class BodyBudget {
 public:
  BodyBudget(std::atomic<int64_t>& total, size_t limit)
      : total_(total), limit_(static_cast<int64_t>(limit)) {}
  ~BodyBudget() { total_ -= held_; }
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  bool take(size_t bytes) {
    held_ += static_cast<int64_t>(bytes);
    return (total_ += static_cast<int64_t>(bytes)) <= limit_;
  }

 private:
  std::atomic<int64_t>& total_;
  const int64_t limit_;
  int64_t held_ = 0;
};

}  // namespace quern

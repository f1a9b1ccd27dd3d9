#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>

namespace quern {
namespace {

TEST(ThreadPool, every_item_is_visited_once_for_any_size_and_grain) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 63, 64, 65, 1000})
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> seen(n);
        pool.parallel_for(n, grain, [&](int64_t b, int64_t e) {
          EXPECT_LE(e - b, grain);
          for (int64_t i = b; i < e; ++i) ++seen[i];
        });
        for (auto& s : seen) EXPECT_EQ(s, 1);
      }
  }
}

TEST(ThreadPool, many_short_jobs_with_sleeps_between) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < 4000; ++job) {
    pool.parallel_for(4, 1, [&](int64_t b, int64_t) { sum += b; });
    if (job % 800 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(sum, 4000 * 6);
}

}  // namespace
}  // namespace quern

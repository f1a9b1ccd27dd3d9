#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace quern {
namespace {

TEST(PagePool, allocation_is_all_or_nothing) {
  PagePool pool(5);
  std::vector<int32_t> held;
  EXPECT_TRUE(pool.allocate(3, held));
  EXPECT_FALSE(pool.allocate(3, held));
  EXPECT_EQ(held.size(), 3u);
  EXPECT_EQ(pool.free(), 2);
  EXPECT_TRUE(pool.allocate(2, held));
  EXPECT_TRUE(pool.allocate(0, held));
  EXPECT_FALSE(pool.allocate(1, held));
  EXPECT_EQ(std::set<int32_t>(held.begin(), held.end()).size(), 5u);
}

TEST(PagePool, a_page_is_free_when_its_last_reference_goes) {
  PagePool pool(1);
  std::vector<int32_t> held;
  ASSERT_TRUE(pool.allocate(1, held));
  pool.retain(held[0]);
  EXPECT_FALSE(pool.release(held[0]));
  EXPECT_EQ(pool.used(), 1);
  EXPECT_TRUE(pool.release(held[0]));
  EXPECT_EQ(pool.used(), 0);
}

TEST(PagePool, random_use_agrees_with_a_map_of_counts) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    PagePool pool(1 + static_cast<int32_t>(random() % 40));
    std::map<int32_t, int32_t> counts;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0) {
        const auto n = static_cast<int32_t>(random() % 6);
        std::vector<int32_t> got;
        const bool fits = n <= pool.total() - static_cast<int32_t>(counts.size());
        ASSERT_EQ(pool.allocate(n, got), fits);
        ASSERT_EQ(got.size(), fits ? static_cast<size_t>(n) : 0u);
        for (const int32_t id : got) ASSERT_TRUE(counts.emplace(id, 1).second) << "page " << id << " twice";
      } else if (!counts.empty()) {
        auto it = std::next(counts.begin(), static_cast<int64_t>(random() % counts.size()));
        if (random() % 3 == 0) {
          pool.retain(it->first);
          ++it->second;
        } else {
          const bool last = --it->second == 0;
          ASSERT_EQ(pool.release(it->first), last);
          if (last) counts.erase(it);
        }
      }
      ASSERT_EQ(pool.used(), static_cast<int32_t>(counts.size()));
      for (const auto& [id, n] : counts) ASSERT_EQ(pool.refs(id), n);
    }
  }
}

TEST(PagePoolDeathTest, misuse_ends_the_program) {
  PagePool pool(2);
  EXPECT_DEATH(pool.release(0), "page 0 is released but free");
  EXPECT_DEATH(pool.retain(1), "page 1 is retained but free");
  EXPECT_DEATH(pool.refs(2), "page 2 of a pool of 2");
}

}  // namespace
}  // namespace quern

#include "cache/prefix_index.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/batch_view.h"

namespace quern {
namespace {

std::vector<int32_t> text(int64_t n_pages, int32_t salt, int64_t shared_pages = 0) {
  std::vector<int32_t> ids;
  for (int64_t p = 0; p < n_pages; ++p)
    for (int i = 0; i < kPageTokens; ++i)
      ids.push_back(static_cast<int32_t>(p * 64 + i + (p < shared_pages ? 0 : 1000 * salt)));
  return ids;
}

std::shared_ptr<const Snapshot> snapshot_at(int64_t position, size_t bytes = 100) {
  auto s = std::make_shared<Snapshot>();
  s->position = position;
  s->bytes.resize(bytes);
  return s;
}

// Pages as a sequence would hold them; released when it ends.
struct Held {
  PagePool& pool;
  std::vector<int32_t> pages;
  Held(PagePool& p, int64_t n) : pool(p) { EXPECT_TRUE(p.allocate(static_cast<int32_t>(n), pages)); }
  ~Held() {
    for (const int32_t p : pages) pool.release(p);
  }
};

void put(PrefixIndex& index, PagePool& pool, const std::vector<int32_t>& ids,
         SnapshotKind kind = SnapshotKind::Interval, bool with_snapshot = true) {
  Held held(pool, static_cast<int64_t>(ids.size()) / kPageTokens);
  index.insert(ids, held.pages, with_snapshot ? snapshot_at(static_cast<int64_t>(ids.size())) : nullptr,
               kind);
}

TEST(PrefixIndex, resumes_at_the_deepest_snapshot_within_the_limit) {
  PagePool pool(20);
  PrefixIndex index(pool, 1000);
  put(index, pool, text(2, 0));
  put(index, pool, text(5, 0));
  put(index, pool, text(7, 0), SnapshotKind::Turn, false);
  const auto ids = text(9, 0);
  PrefixMatch m = index.match(ids, 1 << 20);
  EXPECT_EQ(m.common, 7 * 64);
  EXPECT_EQ(m.tokens, 5 * 64);
  EXPECT_EQ(m.pages.size(), 5u);
  EXPECT_EQ(m.snapshot->position, 5 * 64);
  EXPECT_EQ(index.match(ids, 5 * 64 - 1).tokens, 2 * 64);
  EXPECT_EQ(index.match(ids, 63).tokens, 0);
  EXPECT_EQ(index.match(text(9, 1), 1 << 20).common, 0);
  EXPECT_EQ(pool.used(), 7);
}

TEST(PrefixIndex, two_prompts_share_the_pages_before_they_part) {
  PagePool pool(20);
  PrefixIndex index(pool, 1000);
  put(index, pool, text(6, 1, 3));
  put(index, pool, text(6, 2, 3));
  EXPECT_EQ(pool.used(), 9);
  EXPECT_EQ(index.match(text(6, 3, 3), 1 << 20).common, 3 * 64);
  index.check();
}

TEST(PrefixIndex, of_a_conversation_the_last_two_turns_stay_and_the_system_prompt_and_intervals) {
  PagePool pool(40);
  PrefixIndex index(pool, 10000);
  put(index, pool, text(1, 0), SnapshotKind::Pinned);
  put(index, pool, text(2, 0), SnapshotKind::Turn);
  put(index, pool, text(3, 0), SnapshotKind::Interval);
  for (int64_t p = 4; p < 10; ++p) put(index, pool, text(p, 0), SnapshotKind::Turn);
  std::vector<int64_t> kept;
  for (int64_t p = 1; p < 10; ++p)
    if (index.has_snapshot(text(p, 0))) kept.push_back(p);
  EXPECT_EQ(kept, (std::vector<int64_t>{1, 3, 8, 9}));
  index.check();
}

TEST(PrefixIndex, the_snapshot_budget_takes_the_least_recently_used_and_pinned_ones_last) {
  PagePool pool(40);
  PrefixIndex index(pool, 300);
  put(index, pool, text(1, 1), SnapshotKind::Pinned);
  put(index, pool, text(1, 2));
  put(index, pool, text(1, 3));
  index.match(text(1, 2), 64);
  put(index, pool, text(1, 4));
  EXPECT_TRUE(index.has_snapshot(text(1, 1)));
  EXPECT_TRUE(index.has_snapshot(text(1, 2)));
  EXPECT_FALSE(index.has_snapshot(text(1, 3)));
  EXPECT_TRUE(index.has_snapshot(text(1, 4)));
  EXPECT_EQ(index.snapshot_bytes(), 300);
}

TEST(PrefixIndex, room_is_made_from_pages_nobody_runs_on) {
  PagePool pool(10);
  PrefixIndex index(pool, 1000);
  put(index, pool, text(4, 1));
  {
    const PrefixMatch m = index.match(text(4, 1), 1 << 20);
    for (const int32_t p : m.pages) pool.retain(p);
    put(index, pool, text(6, 2));
    EXPECT_EQ(index.evictable(), 6);
    EXPECT_FALSE(index.make_room(7));
    EXPECT_EQ(pool.free(), 6);
    for (const int32_t p : m.pages) pool.release(p);
  }
  EXPECT_TRUE(index.make_room(10));
  EXPECT_EQ(index.n_nodes(), 0);
}

// A sequence that computed a page again keeps its own copy; its deeper pages hang below the known ones.
TEST(PrefixIndex, pages_above_a_running_leaf_can_still_be_freed) {
  PagePool pool(6);
  PrefixIndex index(pool, 1000);
  put(index, pool, text(2, 0));
  Held twin(pool, 3);
  index.insert(text(3, 0), twin.pages, nullptr, SnapshotKind::Turn);
  EXPECT_EQ(index.evictable(), 2);
  EXPECT_TRUE(index.make_room(3));
  EXPECT_EQ(pool.used(), 3);
}

TEST(PrefixIndex, random_use_keeps_the_books_and_leaks_nothing) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 random(seed);
    PagePool pool(60);
    {
      PrefixIndex index(pool, 1200);
      std::vector<std::vector<int32_t>> running;
      for (int step = 0; step < 1500; ++step) {
        const auto salt = static_cast<int32_t>(random() % 5);
        const auto ids = text(1 + random() % 12, salt, random() % 6);
        switch (random() % 4) {
          case 0: {
            const PrefixMatch m = index.match(ids, static_cast<int64_t>(random() % 900));
            ASSERT_LE(m.tokens, m.common);
            if (m.tokens > 0 && running.size() < 3) {
              for (const int32_t p : m.pages) pool.retain(p);
              running.push_back(m.pages);
            }
            break;
          }
          case 1:
            if (!running.empty()) {
              for (const int32_t p : running.back()) pool.release(p);
              running.pop_back();
            }
            break;
          case 2: {
            const auto n = static_cast<int32_t>(random() % 30);
            const int64_t possible = pool.free() + index.evictable();
            ASSERT_EQ(index.make_room(n), n <= possible);
            break;
          }
          default: {
            const auto n = static_cast<int32_t>(ids.size() / kPageTokens);
            if (index.make_room(n))
              put(index, pool, ids, static_cast<SnapshotKind>(random() % 3), random() % 2 == 0);
          }
        }
        index.check();
      }
      for (const auto& pages : running)
        for (const int32_t p : pages) pool.release(p);
    }
    EXPECT_EQ(pool.used(), 0);
  }
}

}  // namespace
}  // namespace quern

#include "cache/snapshot_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>

#include "base/log.h"
#include "ops/batch_view.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPage = 48, kState = 100;

struct Directory {
  fs::path path;
  Directory() {
    char name[] = "/tmp/quern-store-XXXXXX";
    path = mkdtemp(name);
  }
  ~Directory() { fs::remove_all(path); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& e : fs::directory_iterator(path)) found.push_back(e.path());
    return found;
  }
};

StoreOptions options_for(const Directory& d, const std::string& fingerprint = "tiny cpu f32 1") {
  return {.directory = d.path.string(),
          .fingerprint = fingerprint,
          .page_bytes = kPage,
          .snapshot_bytes = kState,
          .budget = 1 << 20};
}

std::vector<int32_t> ids_of(int64_t pages, int32_t salt = 0) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < pages * kPageTokens; ++i) ids.push_back(static_cast<int32_t>(i * 7 + salt));
  return ids;
}

std::vector<std::byte> noise(int64_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> b(static_cast<size_t>(bytes));
  for (auto& x : b) x = static_cast<std::byte>(random());
  return b;
}

std::shared_ptr<Snapshot> state_of(int64_t position) {
  auto s = std::make_shared<Snapshot>();
  s->position = position;
  s->bytes = noise(kState, static_cast<uint32_t>(position));
  return s;
}

bool put(SnapshotStore& store, int64_t pages, int64_t begin_pages, int32_t salt = 0) {
  const auto all = noise(pages * kPage, 1);
  return store.put(ids_of(pages, salt), begin_pages * kPageTokens,
                   {all.begin() + begin_pages * kPage, all.end()}, state_of(pages * kPageTokens));
}

std::optional<StoredPrefix> fetch(SnapshotStore& store, const std::vector<int32_t>& ids, int64_t position) {
  std::promise<std::optional<StoredPrefix>> promise;
  store.fetch(ids, position, [&](std::optional<StoredPrefix> p) { promise.set_value(std::move(p)); });
  return promise.get_future().get();
}

TEST(SnapshotStore, a_chain_of_pieces_reads_back_whole_after_a_restart) {
  Directory d;
  {
    SnapshotStore store(options_for(d));
    EXPECT_TRUE(put(store, 2, 0));
    EXPECT_TRUE(put(store, 5, 2));
    EXPECT_TRUE(put(store, 6, 5));
  }
  SnapshotStore store(options_for(d));
  EXPECT_EQ(store.n_files(), 3);
  const auto ids = ids_of(9);
  EXPECT_EQ(store.find(ids, 1 << 20), 6 * 64);
  EXPECT_EQ(store.find(ids, 6 * 64 - 1), 5 * 64);
  EXPECT_EQ(store.find(ids, 127), 0);
  EXPECT_EQ(store.find(ids_of(9, 1), 1 << 20), 0);
  const auto got = fetch(store, ids, 6 * 64);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->pages, noise(6 * kPage, 1));
  EXPECT_EQ(got->snapshot->bytes, state_of(6 * 64)->bytes);
  EXPECT_EQ(got->snapshot->position, 6 * 64);
}

TEST(SnapshotStore, a_changed_byte_anywhere_is_noticed) {
  set_log_level(LogLevel::Off);
  Directory d;
  { SnapshotStore(options_for(d)).put(ids_of(1), 0, noise(kPage, 1), state_of(64)); }
  const fs::path file = d.files().at(0);
  std::ifstream in(file, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    std::ofstream(file, std::ios::binary) << bad;
    SnapshotStore store(options_for(d));
    if (store.find(ids_of(1), 64) == 64) {
      ASSERT_FALSE(fetch(store, ids_of(1), 64).has_value()) << "byte " << i;
      ASSERT_EQ(store.find(ids_of(1), 64), 0) << "byte " << i << " is tried again";
    }
  }
  for (size_t n = 0; n < good.size(); ++n) {
    std::ofstream(file, std::ios::binary) << good.substr(0, n);
    ASSERT_EQ(SnapshotStore(options_for(d)).n_files(), 0) << "cut to " << n << " bytes";
  }
  std::ofstream(file, std::ios::binary) << good;
  SnapshotStore store(options_for(d));
  EXPECT_TRUE(fetch(store, ids_of(1), 64).has_value());
  // Damaged while it is in use.
  std::string bad = good;
  bad[good.size() - 40] ^= 1;
  std::ofstream(file, std::ios::binary) << bad;
  EXPECT_FALSE(fetch(store, ids_of(1), 64).has_value());
  set_log_level(LogLevel::Info);
}

TEST(SnapshotStore, files_of_another_model_or_name_and_what_is_no_file_are_left_alone) {
  set_log_level(LogLevel::Off);
  Directory d;
  { SnapshotStore(options_for(d)).put(ids_of(1), 0, noise(kPage, 1), state_of(64)); }
  const fs::path file = d.files().at(0);
  EXPECT_EQ(SnapshotStore(options_for(d, "another model")).n_files(), 0);
  EXPECT_TRUE(fs::exists(file));
  fs::copy_file(file, d.path / "00000000000000000000000000000000.snap");
  fs::copy_file(file, d.path / "other.snap");
  fs::create_symlink(file, d.path / "11111111111111111111111111111111.snap");
  mkfifo((d.path / "22222222222222222222222222222222.snap").c_str(), 0600);
  std::ofstream(d.path / (file.filename().string() + ".new")) << "torn";
  SnapshotStore store(options_for(d));
  EXPECT_EQ(store.n_files(), 1);
  EXPECT_FALSE(fs::exists(d.path / (file.filename().string() + ".new")));
  EXPECT_TRUE(fs::exists(d.path / "other.snap"));
  set_log_level(LogLevel::Info);
}

TEST(SnapshotStore, the_budget_takes_the_least_recently_used_end_of_a_chain) {
  Directory d;
  StoreOptions options = options_for(d);
  options.budget = 3000;  // a piece of one page takes 96 + 14 + 256 + 48 + 100 + 16 = 530 bytes
  SnapshotStore store(options);
  ASSERT_TRUE(put(store, 1, 0));
  for (int64_t p = 2; p <= 5; ++p) ASSERT_TRUE(put(store, p, p - 1));
  store.flush();
  EXPECT_EQ(store.n_files(), 5);
  ASSERT_TRUE(put(store, 1, 0, /*salt=*/9));
  store.flush();
  EXPECT_EQ(store.find(ids_of(5), 1 << 20), 4 * 64);
  EXPECT_EQ(store.find(ids_of(5, 9), 1 << 20), 64);
  EXPECT_LE(store.bytes(), 3000);
  EXPECT_EQ(static_cast<int64_t>(d.files().size()), store.n_files());
}

TEST(SnapshotStore, a_full_queue_drops_and_says_so) {
  Directory d;
  StoreOptions options = options_for(d);
  options.max_queued = 600;
  SnapshotStore store(options);
  int64_t kept = 0;
  for (int32_t salt = 0; salt < 50; ++salt) kept += put(store, 1, 0, salt) ? 1 : 0;
  store.flush();
  EXPECT_EQ(store.n_files(), kept);
  EXPECT_EQ(store.n_dropped(), 50 - kept);
  EXPECT_GE(kept, 1);
}

TEST(SnapshotStore, a_directory_that_cannot_be_used_is_an_error) {
  Directory d;
  std::ofstream(d.path / "file") << "x";
  StoreOptions options = options_for(d);
  options.directory = (d.path / "file").string();
  EXPECT_THROW(SnapshotStore store(options), Error);
}

}  // namespace
}  // namespace quern

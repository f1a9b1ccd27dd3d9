#include "engine/state_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/snapshot_store.h"
#include "engine/tiny_engine.h"

namespace quern {
namespace {

TEST(StateOrigin, one_folder_serves_one_origin_and_each_field_tells_another_apart) {
  TinyModel tiny(8, 1);
  const StateOrigin origin = state_origin(*tiny.model, false);
  const Folder folder;
  StoreOptions options{.directory = folder.path.string(),
                       .fingerprint = fingerprint(origin),
                       .page_bytes = 16,
                       .snapshot_bytes = 16,
                       .budget = 1 << 20};
  const std::vector<int32_t> ids(64, 7);
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->position = 64;
  snapshot->bytes.resize(16);
  ASSERT_TRUE(SnapshotStore(options).put(ids, 0, std::vector<std::byte>(16), snapshot));
  ASSERT_EQ(SnapshotStore(options).n_files(), 1);

  const std::pair<const char*, std::string StateOrigin::*> fields[] = {
      {"model", &StateOrigin::model},     {"device", &StateOrigin::device},
      {"simd", &StateOrigin::simd},       {"kv", &StateOrigin::kv},
      {"drafts", &StateOrigin::drafts},   {"replies", &StateOrigin::replies},
      {"program", &StateOrigin::program}, {"compiler", &StateOrigin::compiler},
      {"libc", &StateOrigin::libc}};
  static_assert(sizeof(StateOrigin) == std::size(fields) * sizeof(std::string), "a field is not looked at");
  for (const auto& [name, field] : fields) {
    StateOrigin other = origin;
    EXPECT_FALSE((origin.*field).empty()) << name;
    other.*field += "x";
    options.fingerprint = fingerprint(other);
    testing::internal::CaptureStderr();
    EXPECT_EQ(SnapshotStore(options).n_files(), 0) << name;
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    EXPECT_THAT(log, testing::HasSubstr(fmt::format("made with '{} {}', this is '{} {}x'", name,
                                                    origin.*field, name, origin.*field)));
  }
}

TEST(StateOrigin, it_is_the_models_own) {
  TinyModel tiny(8, 1), again(8, 2, 1024, 512, 2), f32(8, 1, 640, 4096, 1, DType::F32);
  const std::string plain = fingerprint(state_origin(*tiny.model, false));
  EXPECT_EQ(fingerprint(state_origin(*again.model, false)), plain) << "sizes and threads change no bit";
  EXPECT_NE(fingerprint(state_origin(*f32.model, false)), plain);
  EXPECT_LE(plain.size(), 1000u);
}

}  // namespace
}  // namespace quern

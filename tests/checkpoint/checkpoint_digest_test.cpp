#include "checkpoint/checkpoint_digest.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "checkpoint/safetensors_bytes.h"

namespace quern {
namespace {

using test::safetensors_bytes;
using test::TempFolder;
using test::write_text;

struct Files {
  std::string config = R"({"model_type": "qwen4_exp", "hidden_size": 8})";
  std::string a = "a.weight", dtype = "BF16", shape = "[2,8]", offsets = "[0,32]";
  std::string data = std::string(64, 'x');

  std::unique_ptr<Checkpoint> in(const TempFolder& folder) const {
    write_text(folder.path / "config.json", config);
    const std::string header = "{\"" + a + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                               ",\"data_offsets\":" + offsets +
                               "},\"b.weight\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":" +
                               (offsets == "[0,32]" ? "[32,64]" : "[0,32]") + "}}";
    write_text(folder.path / "model.safetensors", safetensors_bytes(header, 0) + data);
    return Checkpoint::open(folder.path);
  }
};

TEST(CheckpointDigest, a_change_of_any_part_changes_what_is_sampled) {
  const TempFolder folder("digest");
  std::set<Digest> seen = {sampled_digest(*Files{}.in(folder))};
  EXPECT_TRUE(seen.contains(sampled_digest(*Files{}.in(folder))))
      << "written again, the same bytes are the same";
  const std::vector<std::pair<const char*, std::function<void(Files&)>>> changes = {
      {"config", [](Files& f) { f.config.back() = ' ', f.config += ",\"hidden_act\":\"silu\"}"; }},
      {"name", [](Files& f) { f.a = "c.weight"; }},
      {"dtype", [](Files& f) { f.dtype = "F16"; }},
      {"shape", [](Files& f) { f.shape = "[8,2]"; }},
      {"offset", [](Files& f) { f.offsets = "[32,64]"; }},
      {"first byte", [](Files& f) { f.data.front() ^= 1; }},
      {"last byte", [](Files& f) { f.data.back() ^= 1; }},
  };
  for (const auto& [what, change] : changes) {
    Files files;
    change(files);
    EXPECT_TRUE(seen.insert(sampled_digest(*files.in(folder))).second) << what;
  }
}

TEST(CheckpointDigest, a_large_file_is_sampled_from_its_first_byte_to_its_last) {
  const TempFolder folder("digest");
  constexpr int64_t kSize = 4 << 20;
  const std::string header = R"({"a":{"dtype":"U8","shape":[4194304],"data_offsets":[0,4194304]}})";
  write_text(folder.path / "config.json", "{}");
  std::string data(kSize, 'x');
  const auto sampled = [&] {
    write_text(folder.path / "model.safetensors", safetensors_bytes(header, 0) + data);
    return sampled_digest(*Checkpoint::open(folder.path));
  };
  const Digest plain = sampled();
  constexpr int64_t kStride = (kSize - kDigestStretch) / (kDigestStretches - 1);
  for (const int64_t at : {int64_t{0}, kStride * 5 + 100, kSize - 1}) {
    data[at] ^= 1;
    EXPECT_NE(sampled(), plain) << "byte " << at;
    data[at] ^= 1;
  }
  EXPECT_EQ(sampled(), plain);
}

TEST(CheckpointDigest, a_file_written_again_is_another_model_even_with_the_same_bytes_and_mtime) {
  namespace fs = std::filesystem;
  const TempFolder folder("digest");
  const Digest first = checkpoint_digest(*Files{}.in(folder));
  EXPECT_EQ(checkpoint_digest(*Checkpoint::open(folder.path)), first);
  const fs::path file = folder.path / "model.safetensors";
  const auto modified = fs::last_write_time(file);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // clocks of file systems tick every few ms
  const auto again = Files{}.in(folder);
  fs::last_write_time(file, modified);
  EXPECT_NE(checkpoint_digest(*Checkpoint::open(folder.path)), first);
}

}  // namespace
}  // namespace quern

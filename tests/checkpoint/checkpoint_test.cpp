#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/check.h"
#include "checkpoint/safetensors_bytes.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using test::safetensors_bytes;
using test::TempFolder;
using test::write_text;
using testing::ElementsAre;
using testing::HasSubstr;

std::string tensor_file(const std::string& name) {
  return safetensors_bytes("{\"" + name + R"(":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}})", 6);
}
std::string index_of(const std::string& map) { return "{\"metadata\":{},\"weight_map\":{" + map + "}}"; }

std::string open_error(const fs::path& path) {
  try {
    Checkpoint::open(path);
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return "";
}

TEST(Checkpoint, opens_the_bundled_model_with_its_mtp_file) {
  const auto c = Checkpoint::open(fs::path(QUERN_SOURCE_DIR) / "models/quern-tiny");
  EXPECT_EQ(c->files().size(), 5u);
  EXPECT_EQ(c->take("embed_tokens.weight", {4096, 256}).dtype, DType::BF16);
  EXPECT_EQ(c->take("layers.0.linear_attn.conv1d.weight", {1280, 4}).shape,
            (std::vector<int64_t>{1280, 1, 4}));
  EXPECT_NE(c->find("mtp.fc_hidden.weight"), nullptr);
  EXPECT_EQ(c->take_rows("layers.1.ple.ple_embedding.ngram_embedding", 64896, 16).size(), 4u);
  EXPECT_THROW(c->take_rows("layers.1.ple.ple_embedding.ngram_embedding", 64897, 16), Error);
  EXPECT_TRUE(c->config().is_object());
}

TEST(Checkpoint, names_what_nobody_took) {
  const TempFolder folder("checkpoint");
  write_text(folder.path / "a.safetensors", tensor_file("model.language_model.x.weight"));
  write_text(folder.path / "b.safetensors", tensor_file("model.visual.y"));
  write_text(folder.path / "c.safetensors", tensor_file("lm_head.weight"));
  const auto c = Checkpoint::open(folder.path);
  EXPECT_EQ(c->skip("visual."), 1);
  EXPECT_EQ(c->take("x.weight").bytes.size(), 6u);
  EXPECT_THAT(c->unused(), ElementsAre("lm_head.weight"));
  try {
    c->check_all_used();
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("c.safetensors: tensor 'lm_head.weight': no part of the model reads this"));
  }
  c->take("lm_head.weight");
  c->check_all_used();
  EXPECT_THROW(c->take("z"), Error);
  EXPECT_EQ(c->take_if("z"), nullptr);
  try {
    c->take("x.weight", {3, 2});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'model.language_model.x.weight': expected shape [3, 2], found [2, 3]"));
  }
}

TEST(Checkpoint, both_prefixes_of_one_tensor_are_duplicates) {
  const TempFolder folder("checkpoint");
  write_text(folder.path / "a.safetensors", tensor_file("model.language_model.x"));
  write_text(folder.path / "b.safetensors", tensor_file("model.x"));
  EXPECT_THAT(open_error(folder.path),
              HasSubstr("b.safetensors: tensor 'model.x': a second tensor of this name"));
}

TEST(Checkpoint, refuses_bad_indexes) {
  const TempFolder outside("outside");
  write_text(outside.path / "o.safetensors", tensor_file("x"));
  const TempFolder folder("checkpoint");
  write_text(folder.path / "a.safetensors", tensor_file("x"));
  write_text(folder.path / "b.safetensors", tensor_file("y"));
  fs::create_symlink(outside.path / "o.safetensors", folder.path / "link.safetensors");
  fs::create_symlink(outside.path, folder.path / "sub");
  fs::create_symlink("a.safetensors", folder.path / "inner.safetensors");
  const auto error_with = [&](const std::string& index) {
    write_text(folder.path / "model.safetensors.index.json", index);
    return open_error(folder.path);
  };
  EXPECT_EQ(error_with(index_of(R"("x":"a.safetensors","y":"b.safetensors")")), "");
  EXPECT_EQ(error_with(index_of(R"("x":"inner.safetensors")")), "");
  EXPECT_THAT(error_with(index_of(R"("x":"none.safetensors")")),
              HasSubstr("'none.safetensors', which is missing"));
  EXPECT_THAT(error_with(index_of(R"("x":"../a.safetensors")")), HasSubstr("outside the folder"));
  EXPECT_THAT(error_with(index_of("\"x\":\"" + (outside.path / "o.safetensors").string() + "\"")),
              HasSubstr("an absolute path"));
  EXPECT_THAT(error_with(index_of(R"("x":"link.safetensors")")), HasSubstr("a link to a file outside"));
  EXPECT_THAT(error_with(index_of(R"("x":"sub/o.safetensors")")), HasSubstr("a link to a file outside"));
  EXPECT_THAT(error_with(index_of(R"("x":"config.json")")), HasSubstr("no .safetensors file"));
  EXPECT_THAT(error_with(index_of(R"("x":3)")), HasSubstr("expected the file of tensor 'x' to be a string"));
  EXPECT_THAT(error_with(index_of(R"("z":"a.safetensors")")),
              HasSubstr("tensor 'z' is missing from 'a.safetensors'"));
  EXPECT_THAT(error_with(index_of(R"("x":"b.safetensors","y":"a.safetensors")")), HasSubstr("found it in"));
  EXPECT_THAT(error_with("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(error_with("{"), HasSubstr("model.safetensors.index.json: JSON"));
}

// The hub's download cache keeps every file as a link into a store of blobs beside the snapshots.
TEST(Checkpoint, follows_the_download_cache_of_the_hub) {
  const TempFolder repo("hub");
  fs::create_directories(repo.path / "snapshots/abc");
  fs::create_directories(repo.path / "blobs");
  write_text(repo.path / "blobs/1234", tensor_file("x"));
  fs::create_symlink("../../blobs/1234", repo.path / "snapshots/abc/model.safetensors");
  write_text(repo.path / "snapshots/abc/model.safetensors.index.json",
             index_of(R"("x":"model.safetensors")"));
  EXPECT_EQ(open_error(repo.path / "snapshots/abc"), "");
}

TEST(Checkpoint, what_is_no_file_is_refused_and_not_waited_for) {
  const TempFolder folder("no_file");
  const fs::path fifo = folder.path / "model.safetensors";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(open_error(folder.path), HasSubstr("model.safetensors: not a regular file"));
  fs::remove(fifo);
  fs::create_symlink("/dev/zero", fifo);
  EXPECT_THAT(open_error(folder.path), HasSubstr("not a regular file"));
  fs::remove(fifo);
  fs::create_directory(fifo);
  EXPECT_THAT(open_error(folder.path), HasSubstr("not a regular file"));
}

TEST(Checkpoint, refuses_what_is_no_model) {
  const TempFolder folder("checkpoint");
  EXPECT_THAT(open_error(folder.path / "none"), HasSubstr("no such file"));
  EXPECT_THAT(open_error(folder.path), HasSubstr("found none"));
  write_text(folder.path / "x.bin", "x");
  EXPECT_THAT(open_error(folder.path / "x.bin"), HasSubstr("expected"));
}

}  // namespace
}  // namespace quern

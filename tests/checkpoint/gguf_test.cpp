#include "checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "base/check.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/safetensors_bytes.h"

namespace quern {
namespace {

using testing::HasSubstr;

// A file put together field by field, so that each field can lie.
struct Builder {
  std::string bytes = "GGUF";
  template <typename T>
  Builder& put(T v) {
    char b[sizeof v];
    std::memcpy(b, &v, sizeof v);
    bytes.append(b, sizeof v);
    return *this;
  }
  Builder& text(std::string_view s) {
    put<uint64_t>(s.size());
    bytes += s;
    return *this;
  }
  Builder& header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    return put(version).put(tensors).put(keys);
  }
  Builder& key(std::string_view k, GgufType t) { return text(k).put(static_cast<uint32_t>(t)); }
  Builder& tensor(std::string_view name, std::initializer_list<uint64_t> ne, uint32_t type, uint64_t offset) {
    text(name).put(static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) put(n);
    return put(type).put(offset);
  }
  Builder& data(size_t n) {
    bytes.resize((bytes.size() + 31) / 32 * 32);
    for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(i);
    return *this;
  }
};

std::string error_of(const Builder& b) {
  try {
    parse_gguf(std::as_bytes(std::span(b.bytes)), "f.gguf");
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("f.gguf"));
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return "";
}

Builder good() {
  return Builder()
      .header(2, 4)
      .key("a.u8", GgufType::U8)
      .put<uint8_t>(7)
      .key("a.text", GgufType::String)
      .text("hello")
      .key("a.list", GgufType::Array)
      .put<uint32_t>(11)
      .put<uint64_t>(2)
      .put<int64_t>(-5)
      .put<int64_t>(1LL << 60)
      .key("a.deep", GgufType::Array)
      .put<uint32_t>(9)
      .put<uint64_t>(1)
      .put<uint32_t>(8)
      .put<uint64_t>(2)
      .text("x")
      .text("y")
      .tensor("w", {64, 3}, 8, 0)  // Q8_0: 2 blocks of 34 a row
      .tensor("v", {5}, 0, 224)    // F32
      .data(224 + 20);
}

TEST(Gguf, reads_keys_of_every_shape_and_tensors) {
  const Builder b = good();
  const GgufFile f = parse_gguf(std::as_bytes(std::span(b.bytes)), "f.gguf");
  EXPECT_EQ(f.integer("a.u8"), 7);
  EXPECT_EQ(f.text("a.text"), "hello");
  EXPECT_EQ(f.integers("a.list"), (std::vector<int64_t>{-5, 1LL << 60}));
  EXPECT_EQ(f.find("a.deep")->arrays[0].strings[1], "y");
  ASSERT_EQ(f.tensors.size(), 2u);
  EXPECT_EQ(f.tensors[0].shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(f.tensors[0].bytes.size(), 3u * 68);
  EXPECT_EQ(f.tensors[1].bytes[0], std::byte{224});
  EXPECT_THROW(f.integer("a.text"), Error);
  EXPECT_THROW(f.integer("none"), Error);
}

TEST(Gguf, refuses_each_fault_naming_it) {
  EXPECT_THAT(error_of(Builder()), HasSubstr("truncated"));
  Builder magic = good();
  magic.bytes[0] = 'g';
  EXPECT_THAT(error_of(magic), HasSubstr("not a GGUF"));
  EXPECT_THAT(error_of(Builder().header(0, 0, 4)), HasSubstr("expected version 3, found 4"));
  EXPECT_THAT(error_of(Builder().header(0, 0, 0x03000000)), HasSubstr("big-endian"));
  EXPECT_THAT(error_of(Builder().header(1ull << 60, 0)), HasSubstr("1152921504606846976 tensors do not fit"));
  EXPECT_THAT(error_of(Builder().header(0, 1ull << 60)), HasSubstr("1152921504606846976 keys do not fit"));
  const auto one_key = [] { return Builder().header(0, 1); };
  EXPECT_THAT(error_of(one_key().put<uint64_t>(1ull << 60).data(64)),
              HasSubstr("a string of 1152921504606846976 bytes"));
  EXPECT_THAT(error_of(one_key().key("k", GgufType::String).put<uint64_t>(1ull << 60).data(64)),
              HasSubstr("key \"k\""));
  EXPECT_THAT(error_of(one_key().text("k").put<uint32_t>(13).data(64)), HasSubstr("value type from 0 to 12"));
  for (const uint32_t item : {0u, 5u, 8u, 9u, 10u})
    EXPECT_THAT(error_of(one_key().key("k", GgufType::Array).put(item).put<uint64_t>(1ull << 60).data(64)),
                HasSubstr("an array of 1152921504606846976 values"));
  Builder nested = one_key().key("k", GgufType::Array);
  for (int i = 0; i < 9; ++i) nested.put<uint32_t>(9).put<uint64_t>(1);
  EXPECT_THAT(error_of(nested.data(64)), HasSubstr("nested"));
  EXPECT_THAT(error_of(one_key().key("k", GgufType::Bool).put<uint8_t>(2).data(64)), HasSubstr("bool"));
  EXPECT_THAT(error_of(Builder()
                           .header(0, 2)
                           .key("k", GgufType::U8)
                           .put<uint8_t>(1)
                           .key("k", GgufType::U8)
                           .put<uint8_t>(1)
                           .data(32)),
              HasSubstr("occurs twice"));
  for (const uint32_t a : {0u, 3u, 48u, 1u << 31})
    EXPECT_THAT(error_of(one_key().key("general.alignment", GgufType::U32).put(a).data(64)),
                HasSubstr("general.alignment: expected a power of two"));
  EXPECT_EQ(error_of(one_key().key("general.alignment", GgufType::U64).put<uint64_t>(32).data(64)), "");
  EXPECT_THAT(error_of(one_key().key("general.alignment", GgufType::F32).put<float>(32).data(64)),
              HasSubstr("expected an integer"));

  const auto one = [](std::initializer_list<uint64_t> ne, uint32_t type, uint64_t offset, size_t data = 64) {
    return error_of(Builder().header(1, 0).tensor("t", ne, type, offset).data(data));
  };
  EXPECT_EQ(one({16}, 0, 0), "");
  EXPECT_THAT(one({}, 0, 0), HasSubstr("expected 1 to 4 dimensions, found 0"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0), HasSubstr("found 5"));
  EXPECT_THAT(one({0}, 0, 0), HasSubstr("expected a dimension from 1"));
  EXPECT_THAT(one({1ull << 63}, 0, 0), HasSubstr("expected a dimension from 1"));
  EXPECT_THAT(one({1ull << 32, 1ull << 32}, 0, 0), HasSubstr("overflows"));
  EXPECT_THAT(one({1ull << 62}, 0, 0), HasSubstr("overflows"));
  EXPECT_THAT(one({16}, 0, 32), HasSubstr("do not lie in the file's 64 bytes"));
  EXPECT_THAT(one({16}, 0, 1ull << 60), HasSubstr("do not lie"));
  EXPECT_THAT(one({4}, 0, 4), HasSubstr("no multiple of the alignment"));
  EXPECT_THAT(one({33}, 8, 0), HasSubstr("not whole blocks of 32"));
  EXPECT_THAT(one({16}, 9, 0), HasSubstr("type Q8_1 is not supported"));
  EXPECT_THAT(one({16}, 19, 0), HasSubstr("type IQ1_S is not supported"));
  EXPECT_THAT(one({16}, 31, 0), HasSubstr("type Q4_0_4_4 is not supported"));
  EXPECT_THAT(one({16}, 135, 0), HasSubstr("unknown type 135"));
  EXPECT_THAT(error_of(Builder().header(2, 0).tensor("t", {16}, 0, 0).tensor("u", {16}, 0, 32).data(128)),
              HasSubstr("\"u\": overlaps tensor \"t\""));
  EXPECT_THAT(error_of(Builder().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(128)),
              HasSubstr("occurs twice"));
}

TEST(Gguf, no_truncation_and_no_flipped_byte_is_read_past_the_file) {
  const Builder b = good();
  for (size_t n = 0; n < b.bytes.size(); ++n) {
    Builder cut;
    cut.bytes = b.bytes.substr(0, n);
    EXPECT_NE(error_of(cut), "") << n;
  }
  std::mt19937 gen(11);
  for (int trial = 0; trial < 20000; ++trial) {
    Builder bad = good();
    for (unsigned i = 0; i <= gen() % 3; ++i) bad.bytes[gen() % bad.bytes.size()] = static_cast<char>(gen());
    try {
      const GgufFile f = parse_gguf(std::as_bytes(std::span(bad.bytes)), "f.gguf");
      for (const GgufTensor& t : f.tensors) {
        const auto* begin = reinterpret_cast<const std::byte*>(bad.bytes.data());
        ASSERT_TRUE(t.bytes.data() >= begin && t.bytes.data() + t.bytes.size() <= begin + bad.bytes.size())
            << trial;
      }
    } catch (const Error&) {
    }
  }
}

// Two shards as the split tool writes them: the first may hold no tensors.
TEST(Gguf, shards_are_found_and_held_to_each_other) {
  const test::TempFolder folder("gguf");
  ThreadPool pool(1);
  const auto write = [&](const std::string& name, int no, int count, int total, bool with_tensor) {
    GgufKeys keys;
    if (no == 0) {
      keys.text("general.architecture", "qwen4exp");
      keys.u32("qwen4exp.block_count", 4);
      keys.i32s("qwen4exp.ple.layers", std::vector<int64_t>{1});
    }
    keys.u16("split.no", no);
    keys.u16("split.count", count);
    keys.i32("split.tensors.count", total);
    std::vector<ExportTensor> tensors;
    if (with_tensor) {
      ExportTensor t;
      t.name = "blk.3.attn_q_norm.weight";
      t.shape = {8};
      t.owned.resize(32);
      tensors.push_back(t);
    }
    std::filesystem::remove(folder.path / name);
    write_gguf(folder.path / name, keys, tensors, pool);
  };
  const auto open_error = [&](const std::filesystem::path& path) -> std::string {
    try {
      const auto c = Checkpoint::open(path);
      EXPECT_EQ(c->find("layers.3.self_attn.q_norm.weight")->form, WeightForm::OnePlus);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string a = "m-00001-of-00002.gguf", b = "m-00002-of-00002.gguf";
  write(a, 0, 2, 1, false);
  EXPECT_THAT(open_error(folder.path / a), HasSubstr("shard 2 of 2 is missing"));
  write(b, 1, 2, 1, true);
  EXPECT_EQ(open_error(folder.path / a), "");
  EXPECT_EQ(open_error(folder.path), "");
  EXPECT_THAT(open_error(folder.path / b), HasSubstr("this is shard 2 of 2; open the first"));
  write(b, 0, 2, 1, true);
  EXPECT_THAT(open_error(folder.path / a), HasSubstr("split.no: expected 1, found 0"));
  write(b, 1, 2, 1, true);
  {  // a file of another kind beside them says so
    GgufKeys keys;
    keys.text("general.type", "imatrix");
    write_gguf(folder.path / "imatrix.gguf", keys, {}, pool);
    EXPECT_EQ(open_error(folder.path), "");
  }
  write(b, 1, 3, 1, true);
  EXPECT_THAT(open_error(folder.path / a), HasSubstr("split.count: expected 2, found 3"));
  write(b, 1, 2, 1, true);
  write(a, 0, 2, 5, false);
  EXPECT_THAT(open_error(folder.path / a),
              HasSubstr("split.tensors.count: expected 5 tensors in 2 files, found 1"));
}

}  // namespace
}  // namespace quern

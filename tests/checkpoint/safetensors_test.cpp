#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "checkpoint/safetensors_bytes.h"

namespace quern {
namespace {

using test::safetensors_bytes;
using testing::HasSubstr;

std::vector<SafetensorsEntry> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "f.safetensors");
}

std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    EXPECT_THAT(e.what(), HasSubstr("f.safetensors"));
    return e.what();
  }
  return "";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets, size_t data) {
  return safetensors_bytes(
      R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
}

TEST(Safetensors, reads_tensors_in_order_of_their_bytes) {
  const std::string bytes = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}}   )",
      20);
  const auto entries = parse(bytes);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[1].name, "e");
  EXPECT_EQ(entries[2].name, "b");
  EXPECT_EQ(entries[2].dtype, DType::BF16);
  EXPECT_EQ(entries[2].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entries[2].bytes.size(), 12u);
  EXPECT_EQ(entries[2].bytes[0], std::byte{8});
}

TEST(Safetensors, every_dtype_we_read_has_its_size) {
  for (const auto& [dtype, size] :
       {std::pair{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"U8", 1}, {"F8_E4M3", 1}}) {
    const std::string end = std::to_string(3 * size);
    EXPECT_EQ(error_of(one(dtype, "[3]", "[0," + end + "]", static_cast<size_t>(3 * size))), "") << dtype;
  }
}

TEST(Safetensors, refuses_each_fault_naming_it) {
  const auto huge = [](uint64_t n) {
    std::string s(8, '\0');
    std::memcpy(s.data(), &n, 8);
    return s + "{}";
  };
  EXPECT_THAT(error_of(""), HasSubstr("0 bytes"));
  EXPECT_THAT(error_of(std::string("\x02\0\0\0\0\0\0", 7)), HasSubstr("7 bytes"));
  EXPECT_THAT(error_of(huge(uint64_t{1} << 60)), HasSubstr("1152921504606846976"));
  EXPECT_THAT(error_of(huge(uint64_t{1} << 63)), HasSubstr("9223372036854775808"));
  EXPECT_THAT(error_of(huge(1000)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(safetensors_bytes(" {}", 0)), HasSubstr("'{'"));
  EXPECT_THAT(error_of(safetensors_bytes("", 0)), HasSubstr("'{'"));
  EXPECT_THAT(error_of(safetensors_bytes(std::string("{}\0\0", 4), 0)), HasSubstr("JSON"));
  EXPECT_THAT(error_of(safetensors_bytes("{\"t\":" + std::string(100000, '['), 0)), HasSubstr("JSON"));
  EXPECT_THAT(error_of(safetensors_bytes("{\"\xff\":1}", 0)), HasSubstr("JSON"));
  EXPECT_THAT(error_of(safetensors_bytes(R"({"t":3})", 0)), HasSubstr("'t': expected an object"));
  EXPECT_THAT(error_of(one("F64", "[1]", "[0,8]", 8)), HasSubstr("'t': expected dtype"));
  EXPECT_THAT(error_of(one("Q8_0", "[32]", "[0,34]", 34)), HasSubstr("'t': expected dtype"));
  EXPECT_THAT(error_of(one("F32", "[2]", "[0,4]", 4)),
              HasSubstr("'t': F32 [2] takes 8 bytes, its offsets span 4"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[4,8]", 4)), HasSubstr("do not lie in the file's 4 bytes"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[4,0]", 4)), HasSubstr("do not lie"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[-4,0]", 4)), HasSubstr("'t': expected an offset"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[0,1e1]", 10)), HasSubstr("'t': expected an offset"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[0,18446744073709551620]", 4)),
              HasSubstr("'t': expected an offset"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[0]", 4)), HasSubstr("two integers"));
  EXPECT_THAT(error_of(one("F32", "[4294967296,4294967296]", "[0,0]", 0)), HasSubstr("overflows"));
  EXPECT_THAT(error_of(one("F32", "[0,4294967296,4294967296]", "[0,0]", 0)), HasSubstr("overflows"));
  EXPECT_THAT(error_of(one("F32", "[-1]", "[0,4]", 4)), HasSubstr("'t': expected a dimension"));
  EXPECT_THAT(error_of(one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4)), HasSubstr("at most 8 dimensions"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[4,8]", 8)), HasSubstr("'t': expected it to begin at 0"));
  EXPECT_THAT(error_of(one("F32", "[1]", "[0,4]", 8)), HasSubstr("4 bytes of data belong to no tensor"));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(error_of(safetensors_bytes("{" + a + "," + a + "}", 8)), HasSubstr("duplicate key 'a'"));
  EXPECT_THAT(
      error_of(safetensors_bytes("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
      HasSubstr("'b': overlaps"));
  EXPECT_THAT(
      error_of(safetensors_bytes("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)),
      HasSubstr("overlaps"));
  EXPECT_THAT(error_of(safetensors_bytes(R"({"__metadata__":1})", 0)), HasSubstr("__metadata__"));
  EXPECT_THAT(
      error_of(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4)),
      HasSubstr("unknown key 'x'"));
}

// Any prefix of a good file is refused, and so is any file with one byte of the length changed.
TEST(Safetensors, every_truncation_is_refused) {
  const std::string good = one("F32", "[4]", "[0,16]", 16);
  EXPECT_EQ(error_of(good), "");
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(error_of(good.substr(0, n)), "") << n;
}

}  // namespace
}  // namespace quern

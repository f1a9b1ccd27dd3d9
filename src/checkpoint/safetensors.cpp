#include "checkpoint/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace quern {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;

bool plain_dtype(std::string_view text, DType& out) {
  for (const DType d :
       {DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::F8E4M3}) {
    if (name(d) == text) {
      out = d;
      return true;
    }
  }
  return false;
}

// The claims of one header entry; throws naming the tensor.
struct EntryReader {
  const std::string& file;
  const std::string& tensor;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: tensor '{}': {}", file, tensor, what));
  }
  int64_t natural(const Json& v, std::string_view what) const {
    if (!v.is_int() || v.as_int() < 0)
      fail(fmt::format("expected {} to be an integer from 0 to 2^63-1, found {}", what, write_json(v)));
    return v.as_int();
  }
};

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8)
    throw Error(
        fmt::format("{}: expected a safetensors header, found a file of {} bytes", file, bytes.size()));
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  if (header_size > kMaxHeader)
    throw Error(fmt::format("{}: expected a header of at most {} bytes, found one of {}", file, kMaxHeader,
                            header_size));
  if (header_size > bytes.size() - 8)
    throw Error(
        fmt::format("{}: truncated: the header has {} bytes, the file {}", file, header_size, bytes.size()));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_size);
  const std::span<const std::byte> data = bytes.subspan(8 + header_size);
  if (text.empty() || text.front() != '{')
    throw Error(fmt::format("{}: expected the header to begin with '{{': not a safetensors file", file));

  Json header;
  try {
    header = parse_json(text, {.max_depth = 16, .unique_keys = true});
  } catch (const Error& e) {
    throw Error(fmt::format("{}: header: {}", file, e.what()));
  }
  if (!header.is_object()) throw Error(fmt::format("{}: expected the header to be an object", file));

  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.as_object()) {
    const EntryReader at{file, name};
    if (name == "__metadata__") {
      if (!value.is_object())
        throw Error(fmt::format("{}: expected __metadata__ to be an object, found {}", file,
                                kind_name(value.kind())));
      continue;
    }
    if (!value.is_object()) at.fail(fmt::format("expected an object, found {}", kind_name(value.kind())));
    for (const auto& member : value.as_object()) {
      if (member.first != "dtype" && member.first != "shape" && member.first != "data_offsets")
        at.fail(fmt::format("unknown key '{}'", member.first));
    }
    SafetensorsEntry entry;
    entry.name = name;
    const Json* dtype = value.find("dtype");
    if (dtype == nullptr || !dtype->is_string()) at.fail("has no dtype");
    if (!plain_dtype(dtype->as_string(), entry.dtype))
      at.fail(fmt::format("expected dtype F32, F16, BF16, I64, I32, U8 or F8_E4M3, found '{}'",
                          dtype->as_string()));

    const Json* shape = value.find("shape");
    if (shape == nullptr || !shape->is_array()) at.fail("has no shape");
    if (shape->size() > kMaxRank)
      at.fail(fmt::format("expected at most {} dimensions, found {}", kMaxRank, shape->size()));
    int64_t size = dtype_info(entry.dtype).bytes;
    bool empty = false;
    for (const Json& d : shape->as_array()) {
      entry.shape.push_back(at.natural(d, "a dimension"));
      if (entry.shape.back() == 0) empty = true;
    }
    for (const int64_t d : entry.shape) {
      // A zero elsewhere does not excuse dimensions whose product overflows.
      if (d != 0 && __builtin_mul_overflow(size, d, &size))
        at.fail(fmt::format("the size of shape {} overflows", write_json(*shape)));
    }
    if (empty) size = 0;

    const Json* offsets = value.find("data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2)
      at.fail("expected data_offsets to be two integers");
    const int64_t begin = at.natural(offsets->as_array()[0], "an offset");
    const int64_t end = at.natural(offsets->as_array()[1], "an offset");
    if (begin > end || static_cast<uint64_t>(end) > data.size())
      at.fail(
          fmt::format("offsets [{}, {}] do not lie in the file's {} bytes of data", begin, end, data.size()));
    if (end - begin != size)
      at.fail(fmt::format("{} {} takes {} bytes, its offsets span {}", dtype->as_string(), write_json(*shape),
                          size, end - begin));
    entry.bytes = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
    entries.push_back(std::move(entry));
  }

  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.bytes.data() != b.bytes.data()
               ? a.bytes.data() < b.bytes.data()
               : std::pair(a.bytes.size(), a.name) < std::pair(b.bytes.size(), b.name);
  });
  size_t covered = 0;
  for (const SafetensorsEntry& e : entries) {
    const auto begin = static_cast<size_t>(e.bytes.data() - data.data());
    const EntryReader at{file, e.name};
    if (begin < covered)
      at.fail(fmt::format("overlaps another tensor: begins at {}, data up to {} is taken", begin, covered));
    if (begin > covered)
      at.fail(
          fmt::format("expected it to begin at {}, where the tensor before ends, found {}", covered, begin));
    covered += e.bytes.size();
  }
  if (covered != data.size())
    throw Error(fmt::format("{}: {} bytes of data belong to no tensor", file, data.size() - covered));
  return entries;
}

}  // namespace quern

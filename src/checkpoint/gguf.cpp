#include "checkpoint/gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace quern {
namespace {

struct TypeId {
  int id;
  DType dtype;
};
constexpr TypeId kTypes[] = {
    {0, DType::F32},     {1, DType::F16},    {2, DType::Q4_0},     {3, DType::Q4_1},    {6, DType::Q5_0},
    {7, DType::Q5_1},    {8, DType::Q8_0},   {10, DType::Q2_K},    {11, DType::Q3_K},   {12, DType::Q4_K},
    {13, DType::Q5_K},   {14, DType::Q6_K},  {16, DType::IQ2_XXS}, {17, DType::IQ2_XS}, {18, DType::IQ3_XXS},
    {20, DType::IQ4_NL}, {21, DType::IQ3_S}, {22, DType::IQ2_S},   {23, DType::IQ4_XS}, {26, DType::I32},
    {27, DType::I64},    {30, DType::BF16},  {39, DType::MXFP4},   {40, DType::NVFP4},
};
// Types that exist and that we do not read, for the refusal.
constexpr std::pair<uint32_t, const char*> kRefused[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},   {15, "Q8_K"},  {19, "IQ1_S"},
    {24, "I8"},         {25, "I16"},        {28, "F64"},   {29, "IQ1_M"}, {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {41, "Q1_0"},  {42, "Q2_0"}};

constexpr int kMaxDepth = 4;            // of arrays in arrays
constexpr uint64_t kMaxName = 1 << 16;  // of keys and tensor names
constexpr uint64_t kMaxAlignment = 1 << 20;

// Bytes one value takes at least.
uint64_t least_bytes(GgufType t) {
  switch (t) {
    case GgufType::U8:
    case GgufType::I8:
    case GgufType::Bool:
      return 1;
    case GgufType::U16:
    case GgufType::I16:
      return 2;
    case GgufType::U32:
    case GgufType::I32:
    case GgufType::F32:
      return 4;
    case GgufType::Array:
      return 12;
    default:
      return 8;
  }
}

// Names from the file go into messages: escaped and cut.
std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text.substr(0, 100));
  return out;
}

struct Reader {
  std::span<const std::byte> bytes;
  const std::string& file;
  size_t at = 0;

  size_t left() const { return bytes.size() - at; }
  [[noreturn]] void fail(const std::string& where, const std::string& what) const {
    throw Error(fmt::format("{}: {}: {}", file, where, what));
  }
  template <typename T>
  T read(const std::string& where) {
    if (left() < sizeof(T)) fail(where, fmt::format("truncated: the file ends at byte {}", bytes.size()));
    T v;
    std::memcpy(&v, bytes.data() + at, sizeof v);
    at += sizeof v;
    return v;
  }
  std::string_view string(const std::string& where, uint64_t limit = UINT64_MAX) {
    const auto n = read<uint64_t>(where);
    if (n > left()) fail(where, fmt::format("a string of {} bytes where {} are left", n, left()));
    if (n > limit) fail(where, fmt::format("expected at most {} bytes, found {}", limit, n));
    const std::string_view s(reinterpret_cast<const char*>(bytes.data()) + at, n);
    at += n;
    return s;
  }
  GgufType type(const std::string& where) {
    const auto t = read<uint32_t>(where);
    if (t > static_cast<uint32_t>(GgufType::F64))
      fail(where, fmt::format("expected a value type from 0 to 12, found {}", t));
    return static_cast<GgufType>(t);
  }
  GgufValue value(GgufType t, const std::string& where, int depth) {
    GgufValue v;
    v.type = t;
    const auto integer = [&](auto x) { v.bits = static_cast<uint64_t>(static_cast<int64_t>(x)); };
    switch (t) {
      case GgufType::U8:
        integer(read<uint8_t>(where));
        break;
      case GgufType::I8:
        integer(read<int8_t>(where));
        break;
      case GgufType::U16:
        integer(read<uint16_t>(where));
        break;
      case GgufType::I16:
        integer(read<int16_t>(where));
        break;
      case GgufType::U32:
        integer(read<uint32_t>(where));
        break;
      case GgufType::I32:
        integer(read<int32_t>(where));
        break;
      case GgufType::I64:
        integer(read<int64_t>(where));
        break;
      case GgufType::U64:
        v.bits = read<uint64_t>(where);
        break;
      case GgufType::F32:
        v.number = static_cast<double>(read<float>(where));
        break;
      case GgufType::F64:
        v.number = read<double>(where);
        break;
      case GgufType::Bool:
        v.bits = read<uint8_t>(where);
        if (v.bits > 1) fail(where, fmt::format("expected a bool of 0 or 1, found {}", v.bits));
        break;
      case GgufType::String:
        v.text = string(where);
        break;
      case GgufType::Array: {
        if (depth >= kMaxDepth) fail(where, fmt::format("arrays nested more than {} deep", kMaxDepth));
        v.item_type = type(where);
        const auto n = read<uint64_t>(where);
        if (n > left() / least_bytes(v.item_type))
          fail(where, fmt::format("an array of {} values where {} bytes are left", n, left()));
        if (v.item_type == GgufType::String) {
          for (uint64_t i = 0; i < n; ++i) v.strings.push_back(string(where));
        } else if (v.item_type == GgufType::Array) {
          for (uint64_t i = 0; i < n; ++i) v.arrays.push_back(value(GgufType::Array, where, depth + 1));
        } else {
          v.raw = bytes.subspan(at, n * least_bytes(v.item_type));
          at += v.raw.size();
        }
        break;
      }
    }
    return v;
  }
};

struct Claim {
  uint64_t offset = 0, size = 0;
};

DType read_dtype(Reader& r, const std::string& where) {
  const auto id = r.read<uint32_t>(where);
  for (const TypeId& t : kTypes) {
    if (static_cast<uint32_t>(t.id) == id) return t.dtype;
  }
  for (const auto& [refused, name] : kRefused) {
    if (refused == id) r.fail(where, fmt::format("type {} is not supported", name));
  }
  r.fail(where, fmt::format("unknown type {} (a type of one program only, or a broken file)", id));
}

// One tensor info; returns the tensor without its bytes.
GgufTensor read_info(Reader& r, uint64_t i, Claim& claim) {
  GgufTensor t;
  t.name = std::string(r.string(fmt::format("tensor {}", i), kMaxName));
  const std::string where = fmt::format("tensor {}", quoted(t.name));
  const auto rank = r.read<uint32_t>(where);
  if (rank < 1 || rank > 4) r.fail(where, fmt::format("expected 1 to 4 dimensions, found {}", rank));
  for (uint32_t d = 0; d < rank; ++d) {
    const auto n = r.read<uint64_t>(where);
    if (n < 1 || n > INT64_MAX)
      r.fail(where, fmt::format("expected a dimension from 1 to 2^63-1, found {}", n));
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(n));
  }
  t.dtype = read_dtype(r, where);
  const DTypeInfo& info = dtype_info(t.dtype);
  if (t.shape.back() % info.block != 0)
    r.fail(where, fmt::format("rows of {} are not whole blocks of {} values of {}", t.shape.back(),
                              info.block, info.name));
  int64_t size = t.shape.back() / info.block;
  bool overflows = __builtin_mul_overflow(size, info.bytes, &size);
  int64_t elements = t.shape.back();
  for (size_t d = 0; d + 1 < t.shape.size(); ++d) {
    overflows |= __builtin_mul_overflow(size, t.shape[d], &size);
    overflows |= __builtin_mul_overflow(elements, t.shape[d], &elements);
  }
  if (overflows) r.fail(where, "the size of its shape overflows");
  claim = {r.read<uint64_t>(where), static_cast<uint64_t>(size)};
  return t;
}

uint64_t alignment_of(const GgufFile& f) {
  const GgufValue* v = f.find("general.alignment");
  if (v == nullptr) return 32;
  if (!v->is_integer()) f.fail("general.alignment", "expected an integer");
  if (v->bits == 0 || v->bits > kMaxAlignment || (v->bits & (v->bits - 1)) != 0)
    f.fail("general.alignment",
           fmt::format("expected a power of two up to {}, found {}", kMaxAlignment, v->bits));
  return v->bits;
}

}  // namespace

bool GgufValue::is_integer() const {
  return type != GgufType::F32 && type != GgufType::F64 && type != GgufType::Bool &&
         type != GgufType::String && type != GgufType::Array;
}
bool GgufValue::fits_int64() const {
  return is_integer() && (type != GgufType::U64 || bits <= static_cast<uint64_t>(INT64_MAX));
}

void GgufFile::fail(std::string_view key, const std::string& what) const {
  throw Error(fmt::format("{}: {}: {}", path, key, what));
}

const GgufValue* GgufFile::find(std::string_view key) const {
  for (const auto& [k, v] : metadata) {
    if (k == key) return &v;
  }
  return nullptr;
}

int64_t GgufFile::integer(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) fail(key, "is missing");
  if (!v->fits_int64()) fail(key, "expected an integer");
  return static_cast<int64_t>(v->bits);
}

double GgufFile::number(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) fail(key, "is missing");
  if (v->type == GgufType::F32 || v->type == GgufType::F64) return v->number;
  if (!v->fits_int64()) fail(key, "expected a number");
  return static_cast<double>(static_cast<int64_t>(v->bits));
}

std::string_view GgufFile::text(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) fail(key, "is missing");
  if (v->type != GgufType::String) fail(key, "expected a string");
  return v->text;
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) fail(key, "is missing");
  if (v->type != GgufType::Array || !v->strings.empty() || !v->arrays.empty())
    fail(key, "expected an array of integers");
  std::vector<int64_t> out;
  Reader r{v->raw, path};
  while (r.left() > 0) {
    const GgufValue item = r.value(v->item_type, std::string(key), 0);
    if (!item.fits_int64()) fail(key, "expected an array of integers that fit 63 bits");
    out.push_back(static_cast<int64_t>(item.bits));
  }
  return out;
}

GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& file) {
  GgufFile f;
  f.path = file;
  Reader r{bytes, file};
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
    throw Error(fmt::format("{}: expected the file to begin with 'GGUF': not a GGUF file", file));
  r.at = 4;
  const auto version = r.read<uint32_t>("header");
  if (version != 2 && version != 3) {
    const bool swapped = version == 0x03000000u || version == 0x02000000u;
    r.fail("header", swapped ? "big-endian files are not supported"
                             : fmt::format("expected version 3, found {}", version));
  }
  const auto n_tensors = r.read<uint64_t>("header");
  const auto n_keys = r.read<uint64_t>("header");
  if (n_tensors > r.left() / 32)
    r.fail("header", fmt::format("{} tensors do not fit the {} bytes that are left", n_tensors, r.left()));
  if (n_keys > r.left() / 13)
    r.fail("header", fmt::format("{} keys do not fit the {} bytes that are left", n_keys, r.left()));

  std::unordered_set<std::string> seen;
  for (uint64_t i = 0; i < n_keys; ++i) {
    std::string key(r.string(fmt::format("key {}", i), kMaxName));
    const std::string where = fmt::format("key {}", quoted(key));
    if (!seen.insert(key).second) r.fail(where, "occurs twice");
    const GgufType t = r.type(where);
    f.metadata.emplace_back(std::move(key), r.value(t, where, 0));
  }
  const uint64_t alignment = alignment_of(f);

  seen.clear();
  std::vector<Claim> claims;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    Claim claim;
    f.tensors.push_back(read_info(r, i, claim));
    if (!seen.insert(f.tensors.back().name).second)
      r.fail(fmt::format("tensor {}", quoted(f.tensors.back().name)), "occurs twice");
    claims.push_back(claim);
  }
  if (n_tensors == 0) return f;

  const uint64_t start = (r.at + alignment - 1) / alignment * alignment;
  const uint64_t data_size = start < bytes.size() ? bytes.size() - start : 0;
  std::vector<size_t> order(claims.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    const Claim& c = claims[i];
    const std::string where = fmt::format("tensor {}", quoted(f.tensors[i].name));
    if (c.offset % alignment != 0)
      r.fail(where, fmt::format("offset {} is no multiple of the alignment {}", c.offset, alignment));
    if (c.offset > data_size || c.size > data_size - c.offset)
      r.fail(where, fmt::format("{} bytes at offset {} do not lie in the file's {} bytes of data", c.size,
                                c.offset, data_size));
    f.tensors[i].bytes = bytes.subspan(start + c.offset, c.size);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return claims[a].offset < claims[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Claim &before = claims[order[i - 1]], &c = claims[order[i]];
    if (before.offset + before.size > c.offset)
      r.fail(fmt::format("tensor {}", quoted(f.tensors[order[i]].name)),
             fmt::format("overlaps tensor {}", quoted(f.tensors[order[i - 1]].name)));
  }
  return f;
}

int gguf_type_id(DType dtype) {
  for (const TypeId& t : kTypes) {
    if (t.dtype == dtype) return t.id;
  }
  return -1;
}

}  // namespace quern

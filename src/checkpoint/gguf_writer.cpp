#include "checkpoint/gguf_writer.h"

#include <cstring>

#include "base/check.h"
#include "checkpoint/output_file.h"

namespace quern {
namespace {

constexpr int64_t kAlignment = 32;

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}

int64_t padded(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void GgufKeys::start(std::string_view key, GgufType type) {
  put_text(bytes_, key);
  put(bytes_, static_cast<uint32_t>(type));
  ++count_;
}
void GgufKeys::u32(std::string_view key, int64_t value) {
  start(key, GgufType::U32);
  put(bytes_, static_cast<uint32_t>(value));
}
void GgufKeys::i32(std::string_view key, int64_t value) {
  start(key, GgufType::I32);
  put(bytes_, static_cast<int32_t>(value));
}
void GgufKeys::u16(std::string_view key, int64_t value) {
  start(key, GgufType::U16);
  put(bytes_, static_cast<uint16_t>(value));
}
void GgufKeys::f32(std::string_view key, double value) {
  start(key, GgufType::F32);
  put(bytes_, static_cast<float>(value));
}
void GgufKeys::boolean(std::string_view key, bool value) {
  start(key, GgufType::Bool);
  put(bytes_, static_cast<uint8_t>(value));
}
void GgufKeys::text(std::string_view key, std::string_view value) {
  start(key, GgufType::String);
  put_text(bytes_, value);
}
void GgufKeys::i32s(std::string_view key, std::span<const int64_t> values) {
  start(key, GgufType::Array);
  put(bytes_, static_cast<uint32_t>(GgufType::I32));
  put<uint64_t>(bytes_, values.size());
  for (const int64_t v : values) put(bytes_, static_cast<int32_t>(v));
}
void GgufKeys::u64s(std::string_view key, std::span<const int64_t> values) {
  start(key, GgufType::Array);
  put(bytes_, static_cast<uint32_t>(GgufType::U64));
  put<uint64_t>(bytes_, values.size());
  for (const int64_t v : values) put(bytes_, static_cast<uint64_t>(v));
}
void GgufKeys::texts(std::string_view key, std::span<const std::string> values) {
  start(key, GgufType::Array);
  put(bytes_, static_cast<uint32_t>(GgufType::String));
  put<uint64_t>(bytes_, values.size());
  for (const std::string& v : values) put_text(bytes_, v);
}

void GgufKeys::copy(std::string_view key, const GgufValue& v) {
  start(key, v.type);
  value(v);
}

void GgufKeys::value(const GgufValue& v) {
  switch (v.type) {
    case GgufType::U8:
    case GgufType::I8:
    case GgufType::Bool:
      put(bytes_, static_cast<uint8_t>(v.bits));
      break;
    case GgufType::U16:
    case GgufType::I16:
      put(bytes_, static_cast<uint16_t>(v.bits));
      break;
    case GgufType::U32:
    case GgufType::I32:
      put(bytes_, static_cast<uint32_t>(v.bits));
      break;
    case GgufType::U64:
    case GgufType::I64:
      put(bytes_, v.bits);
      break;
    case GgufType::F32:
      put(bytes_, static_cast<float>(v.number));
      break;
    case GgufType::F64:
      put(bytes_, v.number);
      break;
    case GgufType::String:
      put_text(bytes_, v.text);
      break;
    case GgufType::Array: {
      put(bytes_, static_cast<uint32_t>(v.item_type));
      if (v.item_type == GgufType::String) {
        put<uint64_t>(bytes_, v.strings.size());
        for (const std::string_view s : v.strings) put_text(bytes_, s);
      } else if (v.item_type == GgufType::Array) {
        put<uint64_t>(bytes_, v.arrays.size());
        for (const GgufValue& a : v.arrays) value(a);
      } else {
        const bool one =
            v.item_type == GgufType::U8 || v.item_type == GgufType::I8 || v.item_type == GgufType::Bool;
        const bool two = v.item_type == GgufType::U16 || v.item_type == GgufType::I16;
        const bool eight =
            v.item_type == GgufType::U64 || v.item_type == GgufType::I64 || v.item_type == GgufType::F64;
        put<uint64_t>(bytes_, v.raw.size() / (one ? 1 : two ? 2 : eight ? 8 : 4));
        bytes_.append(reinterpret_cast<const char*>(v.raw.data()), v.raw.size());
      }
      break;
    }
  }
}

void write_gguf(const std::filesystem::path& path, const GgufKeys& keys,
                const std::vector<ExportTensor>& tensors, ThreadPool& pool, const Progress& progress) {
  std::string head = "GGUF";
  put<uint32_t>(head, 3);
  put<uint64_t>(head, tensors.size());
  put<uint64_t>(head, static_cast<uint64_t>(keys.count()));
  head += keys.bytes();
  int64_t at = 0;
  for (const ExportTensor& t : tensors) {
    QUERN_CHECK(gguf_type_id(t.dtype) >= 0 && !t.shape.empty(), "GGUF cannot hold " + t.name);
    put_text(head, t.name);
    put(head, static_cast<uint32_t>(t.shape.size()));
    for (size_t d = t.shape.size(); d-- > 0;) put(head, static_cast<uint64_t>(t.shape[d]));
    put(head, static_cast<uint32_t>(gguf_type_id(t.dtype)));
    put(head, static_cast<uint64_t>(at));
    at += padded(t.bytes());
  }
  head.resize(static_cast<size_t>(padded(static_cast<int64_t>(head.size()))), '\0');

  OutputFile file(path);
  file.write(head);
  const auto pad = [&] {
    file.write(std::string(static_cast<size_t>(padded(file.size()) - file.size()), '\0'));
  };
  export_tensors(
      tensors, pool,
      [&](size_t) {
        pad();
        return [&](std::span<const std::byte> bytes) { file.write(bytes); };
      },
      progress);
  pad();
  file.finish();
}

}  // namespace quern

// The GGUF container, version 3 (2 is the same), little endian.
//
//   "GGUF"  u32 version  u64 tensors  u64 keys
//   keys:    string key, u32 type, value      string: u64 length, bytes; array: u32 type, u64 count, values
//   tensors: string name, u32 dims, u64 ne[dims] (innermost first), u32 type, u64 offset
//   padding to `general.alignment` (32), then the data; offsets count from there and are aligned
//
// Every count and length is compared with the bytes that are left before anything is allocated or read; keys
// and names are unique; the alignment is a power of two; a tensor's offset and size lie in the file and no two
// tensors share a byte. Bytes between and after the tensors are padding and not looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace quern {

enum class GgufType : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

// One metadata value. Strings and the numbers of arrays stay in the file.
struct GgufValue {
  GgufType type = GgufType::U8;
  uint64_t bits = 0;                      // integers (sign-extended), bool
  double number = 0;                      // F32, F64
  std::string_view text;                  // String
  GgufType item_type = GgufType::U8;      // of an array, which is one of:
  std::span<const std::byte> raw;         //   numbers or bools
  std::vector<std::string_view> strings;  //   strings
  std::vector<GgufValue> arrays;          //   arrays

  bool is_integer() const;
  // An integer of any type that fits int64.
  bool fits_int64() const;
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  // outermost first: ne reversed
  std::span<const std::byte> bytes;
};

struct GgufFile {
  std::string path;  // for messages
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order

  const GgufValue* find(std::string_view key) const;
  // Throw Error naming the file and the key where it is missing or of another kind.
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // of any numeric type
  std::string_view text(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;  // an array of any integer type
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;
};

// Throws Error naming the file and the key or tensor.
GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& file);

// ggml's number of a type; -1 where GGUF has none (F8E4M3).
int gguf_type_id(DType dtype);

}  // namespace quern

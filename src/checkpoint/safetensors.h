// The safetensors container: 8 bytes little-endian header length N, N bytes of JSON, then the data.
//
//   {"__metadata__": {"k": "v"}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, …}
//
// Offsets count from the end of the header. Every claim is checked against the file before it is used: the
// header fits the file and 100 MB, begins with '{', keys are unique, the dtype is one of ours, the shape's
// product does not overflow, the offsets' length is shape × dtype, no two tensors share a byte, nothing lies
// outside the file. As the format demands, the data has no holes and nothing follows the last tensor: bytes
// nobody names would be a way to hide a truncated or doctored save.
//
// Only tensors are returned; `__metadata__` (strings such as {"format": "pt"}) is checked and dropped.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace quern {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// The tensors of a file's bytes, in order of their offsets. `file` names it in errors. Throws Error.
std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

}  // namespace quern

// Any bytes: the header is read or refused, and every span returned lies in the file.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const quern::GgufFile file = quern::parse_gguf(bytes, "fuzz");
    for (const quern::GgufTensor& t : file.tensors) {
      QUERN_CHECK(t.bytes.data() >= bytes.data() && t.bytes.data() + t.bytes.size() <= bytes.data() + size,
                  "a tensor lies outside the file");
      int64_t rows = 1;
      for (size_t d = 0; d + 1 < t.shape.size(); ++d) rows *= t.shape[d];
      QUERN_CHECK(rows * quern::row_bytes(t.dtype, t.shape.back()) == static_cast<int64_t>(t.bytes.size()),
                  "shape and bytes differ");
    }
    for (const auto& [key, value] : file.metadata) {
      if (value.type == quern::GgufType::Array) {
        try {
          file.integers(key);
        } catch (const quern::Error&) {
        }
      }
    }
  } catch (const quern::Error&) {
  }
  return 0;
}

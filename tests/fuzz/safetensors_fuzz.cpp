// Any bytes: the header is read or refused, and every span returned lies in the file.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    for (const quern::SafetensorsEntry& e : quern::parse_safetensors(bytes, "fuzz")) {
      QUERN_CHECK(e.bytes.data() >= bytes.data() && e.bytes.data() + e.bytes.size() <= bytes.data() + size,
                  "a tensor lies outside the file");
      int64_t n = quern::dtype_info(e.dtype).bytes;
      for (const int64_t d : e.shape) n *= d;
      QUERN_CHECK(n == static_cast<int64_t>(e.bytes.size()), "shape and bytes differ");
    }
  } catch (const quern::Error&) {
  }
  return 0;
}

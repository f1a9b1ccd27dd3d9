// The value at one index, host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/random_fill.h"

#ifdef __CUDACC__
#define QUERN_FILL_HD __host__ __device__ inline
#else
#define QUERN_FILL_HD inline
#endif

namespace quern {

QUERN_FILL_HD uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + index;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// Element i of the given kind into its place.
QUERN_FILL_HD void put_random(std::byte* data, int64_t i, Fill fill, float amplitude, uint64_t seed) {
  const uint64_t bits = random_bits(seed, static_cast<uint64_t>(i));
  const float v = (static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f) * amplitude;
  uint32_t u;
  memcpy(&u, &v, 4);
  switch (fill) {
    case Fill::F32:
      memcpy(data + 4 * i, &v, 4);
      break;
    case Fill::BF16: {
      const uint16_t h = static_cast<uint16_t>((u + 0x8000u) >> 16);
      memcpy(data + 2 * i, &h, 2);
      break;
    }
    case Fill::E4M3: {  // truncated: subnormals become zero
      const int exponent = static_cast<int>((u >> 23) & 255u) - 120;
      const uint32_t code = exponent <= 0   ? 0u
                            : exponent > 15 ? 0x7eu
                                            : (static_cast<uint32_t>(exponent) << 3) | ((u >> 20) & 7u);
      data[i] = static_cast<std::byte>((u >> 24 & 0x80u) | (code > 0x7eu ? 0x7eu : code));
      break;
    }
    case Fill::Bytes:
      data[i] = static_cast<std::byte>(bits >> 56);
      break;
  }
}

}  // namespace quern

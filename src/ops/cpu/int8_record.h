// A rounded row of activations (product.h) as its parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/quant_formats.h"

namespace quern::cpu {

// The parts of a rounded row.
template <class Byte>
struct RecordView {
  template <class T>
  using Part = std::conditional_t<std::is_const_v<Byte>, const T, T>*;
  Part<int8_t> q;
  Part<float> d, sum32;
  Part<int32_t> minus32;
  Part<float> sum16;
  Part<int32_t> minus16;

  RecordView(Byte* record, int64_t k)
      : q(reinterpret_cast<Part<int8_t>>(record)),
        d(reinterpret_cast<Part<float>>(record + k)),
        sum32(d + k / 32),
        minus32(reinterpret_cast<Part<int32_t>>(sum32 + k / 32)),
        sum16(reinterpret_cast<Part<float>>(minus32 + k / 32)),
        minus16(reinterpret_cast<Part<int32_t>>(sum16 + k / 16)) {}

  void store_sums(int64_t g, float scale, int32_t low, int32_t high) const {
    d[g] = scale;
    sum32[g] = scale * static_cast<float>(low + high);
    minus32[g] = -(low + high);
    sum16[2 * g] = scale * static_cast<float>(low);
    sum16[2 * g + 1] = scale * static_cast<float>(high);
    minus16[2 * g] = -low;
    minus16[2 * g + 1] = -high;
  }
};
using Int8Record = RecordView<std::byte>;
using ConstInt8Record = RecordView<const std::byte>;

struct GroupScale {
  float d, inverse;  // inverse 0: all codes are 0
};
// From the bits of the largest |x|; as integers they order numbers, then infinity, then NaN.
inline GroupScale group_scale(uint32_t top) {
  constexpr uint32_t kInfinity = 0x7f800000u, kTiny = (127u - 100u) << 23;
  if (top >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (top < kTiny) return {0, 0};
  const float largest = quant::bits_to_float(top);
  return {largest / 127.0f, 127.0f / largest};
}

}  // namespace quern::cpu

#include "ops/cpu/int8_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "ops/cpu/int8_formats.h"
#include "ops/cpu/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quern::cpu {
namespace {

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
GroupScale group_scale(uint32_t top) {
  constexpr uint32_t kInfinity = 0x7f800000u, kTiny = (127u - 100u) << 23;
  if (top >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (top < kTiny) return {0, 0};
  const float largest = quant::bits_to_float(top);
  return {largest / 127.0f, 127.0f / largest};
}

}  // namespace

// ---- the scalar level: the formula as it stands ----

namespace int8_scalar {
namespace {

void round_row(const float* x, int64_t k, std::byte* record) {
  const Int8Record r(record, k);
  for (int64_t g = 0; g < k / 32; ++g) {
    uint32_t top = 0;
    for (int64_t i = 32 * g; i < 32 * g + 32; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      top = std::max(top, bits & 0x7fffffffu);
    }
    const GroupScale s = group_scale(top);
    int32_t sums[2] = {0, 0};
    for (int64_t i = 0; i < 32; ++i) {
      const auto q = s.inverse > 0 ? static_cast<int32_t>(std::nearbyint(x[32 * g + i] * s.inverse)) : 0;
      r.q[32 * g + i] = static_cast<int8_t>(q);
      sums[i / 16] += q;
    }
    r.store_sums(g, s.d, sums[0], sums[1]);
  }
}

template <class Block>
void multiply_blocks(const Int8Job& job, int64_t n0, int64_t n1) {
  using Format = Int8Format<Block>;
  constexpr int64_t kGroup = Block::kGroup;
  const Weight& w = *job.w;
  const int64_t k = w.k(), stride = row_bytes(w.data.dtype, w.data.row_stride);
  std::vector<uint8_t> codes(static_cast<size_t>(k));
  std::vector<float> scale(static_cast<size_t>(k / kGroup)), minimum(scale.size());
  for (int64_t n = n0; n < n1; ++n) {
    const std::byte* row = w.data.data + n * stride;
    for (int64_t g = 0; g < k / kGroup; ++g) {
      const auto in_block = static_cast<int>(g % (Block::kValues / kGroup));
      Block b;
      std::memcpy(&b, row + g * kGroup / Block::kValues * static_cast<int64_t>(sizeof b), sizeof b);
      Format::codes(b, in_block, &codes[static_cast<size_t>(g * kGroup)]);
      if constexpr (std::is_same_v<Block, BlockE2M1>) {
        scale[static_cast<size_t>(g)] = Format::scale(w.scale.row<const uint8_t>(n)[g], w.global_scale);
      } else {
        scale[static_cast<size_t>(g)] = Format::scale(b, in_block);
      }
      if constexpr (Format::kMinimum) minimum[static_cast<size_t>(g)] = Format::minimum(b, in_block);
    }
    for (int64_t i = 0; i < job.n_rows; ++i) {
      const std::byte* record = job.x + (job.x_rows ? job.x_rows[i] : job.x_begin + i) * int8_row_bytes(k);
      const ConstInt8Record x(record, k);
      float y = 0;
      for (int64_t g = 0; g < k / kGroup; ++g) {
        int32_t dot =
            Format::kMinimum ? 0 : (kGroup == 32 ? x.minus32 : x.minus16)[g] * (1 << Format::kShift);
        for (int64_t j = g * kGroup; j < (g + 1) * kGroup; ++j)
          dot += int32_t{codes[static_cast<size_t>(j)]} * x.q[j];
        const auto at = static_cast<size_t>(g);
        y = std::fma(scale[at] * x.d[g * kGroup / 32], static_cast<float>(dot), y);
        if constexpr (Format::kMinimum) y = std::fma(minimum[at], (kGroup == 32 ? x.sum32 : x.sum16)[g], y);
      }
      job.y[(job.y_rows ? job.y_rows[i] : i) * job.y_stride + n] = y;
    }
  }
}

void multiply(const Int8Job& job, int64_t n0, int64_t n1) {
  with_int8_block(job.w->data.dtype, [&]<class Block>() { multiply_blocks<Block>(job, n0, n1); });
}

}  // namespace
}  // namespace int8_scalar
}  // namespace quern::cpu

// ---- the vector levels ----

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of _mm512_undefined_ps in GCC 12's own headers
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define INT8_LEVEL int8_avx2
#define INT8_WIDE 0
#define INT8_VNNI 0
#include "ops/cpu/int8_level-inl.h"
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avxvnni")
#endif
#undef INT8_LEVEL
#undef INT8_VNNI
#define INT8_LEVEL int8_avxvnni
#define INT8_VNNI 1
#include "ops/cpu/int8_level-inl.h"
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(                                                               \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif
#undef INT8_LEVEL
#undef INT8_WIDE
#define INT8_LEVEL int8_avx512
#define INT8_WIDE 1
#include "ops/cpu/int8_level-inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#endif

namespace quern::cpu {

bool takes_int8(const Weight& w) {
  const bool known = with_int8_block(w.data.dtype, []<class>() {});
  return known && w.k() % 32 == 0;
}

std::span<const Int8Level> int8_levels() {
  static const std::vector<Int8Level> levels = [] {
    std::vector<Int8Level> all{{"scalar", int8_scalar::round_row, int8_scalar::multiply}};
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (avx2) all.push_back({"avx2", int8_avx2::round_row, int8_avx2::multiply});
    if (avx2 && __builtin_cpu_supports("avxvnni"))
      all.push_back({"avxvnni", int8_avxvnni::round_row, int8_avxvnni::multiply});
    if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
      all.push_back({"avx512vnni", int8_avx512::round_row, int8_avx512::multiply});
#endif
    return all;
  }();
  return levels;
}

}  // namespace quern::cpu

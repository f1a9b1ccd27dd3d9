#include "ops/cpu/product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cpu/int8_formats.h"
#include "ops/cpu/int8_record.h"
#include "ops/cpu/matmul.h"

namespace quern::cpu {

// ---- the scalar level: the formula as it stands ----

namespace scalar {
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
void multiply_blocks(const ProductJob& job, int64_t n0, int64_t n1) {
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
      const ConstInt8Record x(job.rounded_row(i), k);
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
      job.y_row(i)[n] = y;
    }
  }
}

void int8_product(const ProductJob& job, int64_t n0, int64_t n1) {
  with_int8_block(job.w->data.dtype, [&]<class Block>() { multiply_blocks<Block>(job, n0, n1); });
}

void f32_product(const ProductJob& job, int64_t n0, int64_t n1) {
  const int64_t k = job.w->k();
  std::vector<float> w(static_cast<size_t>(k));
  for (int64_t n = n0; n < n1; ++n) {
    weight_row(*job.w, n, w.data());
    for (int64_t i = 0; i < job.n_rows; ++i) {
      const float* x = job.x_row(i);
      float y = 0;
      for (int64_t k0 = 0; k0 < k; k0 += kF32Stretch) {
        float s = 0;
        for (int64_t j = k0; j < std::min(k0 + kF32Stretch, k); ++j)
          s = std::fma(w[static_cast<size_t>(j)], x[j], s);
        y += s;
      }
      job.y_row(i)[n] = y;
    }
  }
}

}  // namespace
}  // namespace scalar

#if defined(__x86_64__)
#define QUERN_DECLARE_LEVEL(level)                                  \
  namespace level {                                                 \
  void round_row(const float* x, int64_t k, std::byte* record);     \
  void int8_product(const ProductJob& job, int64_t n0, int64_t n1); \
  void f32_product(const ProductJob& job, int64_t n0, int64_t n1);  \
  }
QUERN_DECLARE_LEVEL(avx2)
QUERN_DECLARE_LEVEL(avxvnni)
QUERN_DECLARE_LEVEL(avx512vnni)
#undef QUERN_DECLARE_LEVEL
#endif

bool takes_int8(const Weight& w) {
  const bool known = with_int8_block(w.data.dtype, []<class>() {});
  return known && w.k() % 32 == 0;
}

std::span<const ProductLevel> product_levels() {
  static const std::vector<ProductLevel> levels = [] {
    std::vector<ProductLevel> all{{"scalar", scalar::round_row, scalar::int8_product, scalar::f32_product}};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
      return all;
    all.push_back({"avx2", avx2::round_row, avx2::int8_product, avx2::f32_product});
    if (__builtin_cpu_supports("avxvnni"))
      all.push_back({"avxvnni", avxvnni::round_row, avxvnni::int8_product, avx2::f32_product});
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
      all.push_back({"avx512vnni", avx512vnni::round_row, avx512vnni::int8_product, avx512vnni::f32_product});
#endif
    return all;
  }();
  return levels;
}

}  // namespace quern::cpu

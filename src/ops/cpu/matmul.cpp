#include "ops/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {

// Rows of x that stay in the second-level cache while a panel's outputs go by.
constexpr int64_t kRowBlock = 24;

template <class T>
HWY_INLINE void panel(const cpu::RowProduct& p, const T* const* w, int64_t n0, int64_t n1, int64_t k) {
  const auto x = [&](int64_t i) { return p.x + (p.x_rows ? p.x_rows[i] : i) * p.x_stride; };
  const auto y = [&](int64_t i) { return p.y + (p.y_rows ? p.y_rows[i] : i) * p.y_stride; };
  const auto depth = static_cast<size_t>(k);
  if (p.n_rows == 1) {
    const float* row = x(0);
    float* out = y(0);
    int64_t n = n0;
    for (; n + 8 <= n1; n += 8) dot_tile<1, 8>(&row, w + (n - n0), depth, out + n, 0);
    for (; n < n1; ++n) dot_tile<1, 1>(&row, w + (n - n0), depth, out + n, 0);
    return;
  }
  for (int64_t r0 = 0; r0 < p.n_rows; r0 += kRowBlock) {
    const int64_t rows = std::min(p.n_rows - r0, kRowBlock);
    const float* xs[kRowBlock];
    for (int64_t i = 0; i < rows; ++i) xs[i] = x(r0 + i);
    for (int64_t n = n0; n < n1; n += 4) {
      const int64_t width = std::min<int64_t>(n1 - n, 4);
      float out[kRowBlock * 4];
      dot_block(xs, static_cast<size_t>(rows), w + (n - n0), static_cast<size_t>(width), depth, out, 4);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < width; ++c) y(r0 + i)[n + c] = out[i * 4 + c];
    }
  }
}

template <class T>
HWY_INLINE void panel_in_place(const cpu::RowProduct& p, int64_t n0, int64_t n1) {
  const T* w[cpu::kPanel];
  for (int64_t n = n0; n < n1; ++n) w[n - n0] = p.w->data.row<const T>(n);
  panel(p, w, n0, n1, p.w->k());
}

void Panel(const cpu::RowProduct& p, int64_t n0, int64_t n1) {
  switch (p.w->data.dtype) {
    case DType::F32:
      return panel_in_place<float>(p, n0, n1);
    case DType::BF16:
      return panel_in_place<hwy::bfloat16_t>(p, n0, n1);
    case DType::F16:
      return panel_in_place<hwy::float16_t>(p, n0, n1);
    default:
      break;
  }
  const int64_t k = p.w->k();
  constexpr int64_t kDecoded = 8;  // rows decoded at a time
  float* decoded = cpu::thread_scratch(0, kDecoded * k);
  for (int64_t n = n0; n < n1; n += kDecoded) {
    const int64_t end = std::min(n + kDecoded, n1);
    const float* w[kDecoded];
    for (int64_t i = n; i < end; ++i) {
      cpu::weight_row(*p.w, i, decoded + (i - n) * k);
      w[i - n] = decoded + (i - n) * k;
    }
    panel(p, w, n, end, k);
  }
}

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quern {
HWY_EXPORT(Panel);

namespace cpu {

void matmul(ThreadPool& pool, std::span<const RowProduct> products) {
  // Piece i of the range belongs to the last product whose first piece is not beyond i.
  std::vector<int64_t> first(products.size() + 1, 0);
  for (size_t i = 0; i < products.size(); ++i) {
    const RowProduct& p = products[i];
    first[i + 1] = first[i] + (p.n_rows > 0 ? (p.w->n() + kPanel - 1) / kPanel : 0);
  }
  const auto run = HWY_DYNAMIC_DISPATCH(Panel);
  pool.parallel_for(first.back(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const auto i =
          static_cast<size_t>(std::upper_bound(first.begin(), first.end(), piece) - first.begin() - 1);
      const int64_t n0 = (piece - first[i]) * kPanel;
      run(products[i], n0, std::min(n0 + kPanel, products[i].w->n()));
    }
  });
}

}  // namespace cpu
}  // namespace quern
#endif

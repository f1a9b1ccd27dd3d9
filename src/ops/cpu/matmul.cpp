#include "ops/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/check.h"
#include "ops/cpu/int8_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "ops/cpu/matmul_tile-inl.h"

#ifndef QUERN_OPS_CPU_MATMUL_TYPES
#define QUERN_OPS_CPU_MATMUL_TYPES
namespace quern::cpu {

inline constexpr int64_t kPanel = 32;  // outputs a thread takes at a time

// An input's rows in the layouts of matmul_tile-inl.h; null where no weight of the call wants one.
struct Layouts {
  const float* plain = nullptr;
  int64_t plain_stride = 0;
  const float* split = nullptr;
  int64_t split_stride = 0;
  const std::byte* rounded = nullptr;  // of int8_product.h
};

}  // namespace quern::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {

// Outputs [n0, n1) of one product; w[i] is weight row n0 + i in layout `Layout`.
template <class Layout>
HWY_INLINE void panel(const cpu::RowProduct& p, const float* x, int64_t x_stride,
                      const typename Layout::Type* const* w, int64_t n0, int64_t n1, int64_t k) {
  const auto y = [&](int64_t i) { return p.y + (p.y_rows ? p.y_rows[i] : i) * p.y_stride; };
  const float* xs[kRowBlock];
  for (int64_t r0 = 0; r0 < p.n_rows; r0 += kRowBlock) {
    const int64_t rows = std::min(p.n_rows - r0, kRowBlock);
    for (int64_t i = 0; i < rows; ++i)
      xs[i] = x + (p.x_rows ? p.x_rows[r0 + i] : p.x_begin + r0 + i) * x_stride;
    for (int64_t n = n0; n < n1; n += kGroup) {
      const int64_t width = std::min(n1 - n, kGroup);
      float out[kRowBlock * kGroup];
      block<Layout>(xs, rows, w + (n - n0), width, std::min(n1 - n, 2 * kGroup), k, out);
      for (int64_t i = 0; i < rows; ++i)
        std::memcpy(y(r0 + i) + n, out + i * kGroup, static_cast<size_t>(width) * 4);
    }
  }
}

template <class Layout>
HWY_INLINE void panel_in_place(const cpu::RowProduct& p, const float* x, int64_t x_stride, int64_t n0,
                               int64_t n1) {
  const typename Layout::Type* w[cpu::kPanel];
  for (int64_t n = n0; n < n1; ++n) w[n - n0] = p.w->data.row<const typename Layout::Type>(n);
  panel<Layout>(p, x, x_stride, w, n0, n1, p.w->k());
}

void Panel(const cpu::RowProduct& p, const cpu::Layouts& x, int64_t n0, int64_t n1) {
  switch (p.w->data.dtype) {
    case DType::BF16:
      return panel_in_place<SplitBf16>(p, x.split, x.split_stride, n0, n1);
    case DType::F32:
      return panel_in_place<Plain<float>>(p, x.plain, x.plain_stride, n0, n1);
    case DType::F16:
      return panel_in_place<Plain<hwy::float16_t>>(p, x.plain, x.plain_stride, n0, n1);
    default:
      break;
  }
  const int64_t k = p.w->k();
  float* decoded = cpu::thread_scratch(0, kGroup * k);
  for (int64_t n = n0; n < n1; n += kGroup) {
    const int64_t end = std::min(n + kGroup, n1);
    const float* w[kGroup];
    for (int64_t i = n; i < end; ++i) {
      cpu::weight_row(*p.w, i, decoded + (i - n) * k);
      w[i - n] = decoded + (i - n) * k;
    }
    panel<Plain<float>>(p, x.plain, x.plain_stride, w, n, end, k);
  }
}

// Rows [begin, end) of x in the split layout, zeros up to the stride.
void SplitRows(float* to, int64_t to_stride, const float* x, int64_t stride, int64_t k, int64_t begin,
               int64_t end) {
  const auto n = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t r = begin; r < end; ++r) {
    float* out = to + r * to_stride;
    const float* row = x + r * stride;
    int64_t i = 0;
    for (; i + 2 * n <= k; i += 2 * n) {
      const hn::ScalableTag<float> d;
      hn::Vec<decltype(d)> even, odd;
      hn::LoadInterleaved2(d, row + i, even, odd);
      hn::StoreU(even, d, out + i);
      hn::StoreU(odd, d, out + i + n);
    }
    if (i == k) continue;
    for (int64_t j = 0; j < 2 * n; ++j) out[i + j] = 0;
    for (int64_t j = 0; i + j < k; ++j) out[i + j / 2 + (j % 2) * n] = row[i + j];
  }
}

int64_t SplitStride(int64_t k) {
  const auto step = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  return (k + step - 1) / step * step;
}

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quern {
HWY_EXPORT(Panel);
HWY_EXPORT(SplitRows);
HWY_EXPORT(SplitStride);

namespace cpu {
namespace {

// On the calling thread where the work is small beside waking the others.
void over_rows(ThreadPool& pool, int64_t n_rows, int64_t k, const std::function<void(int64_t, int64_t)>& fn) {
  if (n_rows * k <= 32768) return fn(0, n_rows);
  pool.parallel_for(n_rows, 8, fn);
}

}  // namespace

void matmul(Stream& s, std::span<const Input> inputs, std::span<const RowProduct> products) {
  QUERN_CHECK(inputs.size() <= kMaxInputs, "matmul: too many inputs");
  ScratchScope scope(s);
  const Int8Level& int8 = int8_levels().back();
  Layouts layouts[kMaxInputs];
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = inputs[i];
    layouts[i].plain = in.x;
    layouts[i].plain_stride = in.stride;
    if (in.n_rows == 0) continue;
    const auto wanted = [&](auto by) {
      return std::any_of(products.begin(), products.end(),
                         [&](const RowProduct& p) { return p.input == static_cast<int>(i) && by(*p.w); });
    };
    if (wanted(takes_int8)) {
      const int64_t bytes = int8_row_bytes(in.k);
      std::byte* to = s.scratch(DType::U8, {in.n_rows, bytes}).data;
      layouts[i].rounded = to;
      over_rows(s.pool(), in.n_rows, in.k, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) int8.round_row(in.x + r * in.stride, in.k, to + r * bytes);
      });
    }
    if (!wanted([](const Weight& w) { return w.data.dtype == DType::BF16; })) continue;
    layouts[i].split_stride = HWY_DYNAMIC_DISPATCH(SplitStride)(in.k);
    float* to = s.scratch(DType::F32, {in.n_rows, layouts[i].split_stride}).as<float>();
    layouts[i].split = to;
    const auto rows = HWY_DYNAMIC_DISPATCH(SplitRows);
    over_rows(s.pool(), in.n_rows, in.k, [&](int64_t begin, int64_t end) {
      rows(to, layouts[i].split_stride, in.x, in.stride, in.k, begin, end);
    });
  }
  // Piece i of the range belongs to the last product whose first piece is not beyond i.
  const auto count = static_cast<int64_t>(products.size());
  int64_t* first = s.scratch(DType::I64, {1, count + 1}).as<int64_t>();
  first[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowProduct& p = products[static_cast<size_t>(i)];
    first[i + 1] = first[i] + (p.n_rows > 0 ? (p.w->n() + kPanel - 1) / kPanel : 0);
  }
  const auto run = HWY_DYNAMIC_DISPATCH(Panel);
  s.pool().parallel_for(first[count], 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = std::upper_bound(first, first + count + 1, piece) - first - 1;
      const RowProduct& p = products[static_cast<size_t>(i)];
      const int64_t n0 = (piece - first[i]) * kPanel, n1 = std::min(n0 + kPanel, p.w->n());
      if (takes_int8(*p.w)) {
        int8.multiply({.w = p.w,
                       .x = layouts[p.input].rounded,
                       .x_begin = p.x_begin,
                       .x_rows = p.x_rows,
                       .y = p.y,
                       .y_stride = p.y_stride,
                       .y_rows = p.y_rows,
                       .n_rows = p.n_rows},
                      n0, n1);
      } else {
        run(p, layouts[p.input], n0, n1);
      }
    }
  });
}

}  // namespace cpu
}  // namespace quern
#endif

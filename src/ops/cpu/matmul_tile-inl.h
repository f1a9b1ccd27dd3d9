// The register tiles of the matrix product. Included once per SIMD target (no #pragma once: Highway's toggle guard).
//
// A layout says how one vector step of a weight row meets the activations:
//   Plain<T>   N weights, N activations in order.
//   SplitBf16  2N weights as N words of 32 bits: the even ones are the low halves, the odd ones the high halves, so
//              widening them is one shift or one mask. The activations lie as N even ones, then N odd ones.
//
// Each (row, output) pair has one vector accumulator that walks k in order and is summed over its lanes at the end.
// Rows, outputs and depth are blocked so that loads are shared; an accumulator that waits for the next stretch of k
// lies in memory as it was. So no blocking changes a bit.
#if defined(QUERN_OPS_CPU_MATMUL_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUERN_OPS_CPU_MATMUL_TILE_INL_H
#undef QUERN_OPS_CPU_MATMUL_TILE_INL_H
#else
#define QUERN_OPS_CPU_MATMUL_TILE_INL_H
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {

constexpr int64_t kRowBlock = 24;  // rows of x that stay in the second-level cache while outputs go by
constexpr int64_t kGroup = 8;      // outputs that share a pass over a row block
constexpr int64_t kStretch =
    512;  // columns of a pass: 8 outputs, 3 rows and their sums fit the first-level cache

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;

HWY_ALIGN constexpr uint32_t kHighHalf[16] = {
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
    0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

template <class T>
struct Plain {
  using Type = T;
  static constexpr int kParts = 1;
  template <int kPart>
  static HWY_INLINE VF load(const T* w) {
    return load_f32(F(), w);
  }
};

struct SplitBf16 {
  using Type = hwy::bfloat16_t;
  static constexpr int kParts = 2;
  // The mask is read from memory each time: the tile's accumulators need the register it would live in.
  static HWY_INLINE const uint32_t* high_half_mask() {
    const uint32_t* p = kHighHalf;
    asm("" : "+r"(p));  // or the compiler would keep its value
    return p;
  }
  template <int kPart>
  static HWY_INLINE VF load(const hwy::bfloat16_t* w) {
    const hn::RebindToUnsigned<F> d;
    const auto words = hn::LoadU(d, reinterpret_cast<const uint32_t*>(w));
    if constexpr (kPart == 0) return hn::BitCast(F(), hn::ShiftLeft<16>(words));
    return hn::BitCast(F(), hn::And(words, hn::Load(d, high_half_mask())));
  }
};

// The sums of R × C pairs over columns [k0, k1). `sums` holds R·C vectors: read unless k0 is 0, written. The last
// step of a row may be short; its missing weights are zeros (and so are the split activations beyond k).
template <class Layout, int R, int C>
HWY_INLINE void tile(const float* const* HWY_RESTRICT x, const typename Layout::Type* const* HWY_RESTRICT w,
                     size_t k0, size_t k1, float* HWY_RESTRICT sums, size_t row_stride) {
  const F d;
  const size_t n = hn::Lanes(d);
  const size_t step = n * Layout::kParts;
  VF acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      acc[r][c] = k0 == 0 ? hn::Zero(d) : hn::Load(d, sums + r * row_stride + static_cast<size_t>(c) * n);
  const auto add = [&](const auto* const* xs, const auto* const* ws, size_t i, auto part) HWY_ATTR {
    constexpr int kPart = decltype(part)::value;
    VF xv[R];
    for (int r = 0; r < R; ++r) xv[r] = hn::LoadU(d, xs[r] + i + kPart * n);
    for (int c = 0; c < C; ++c) {
      const VF wv = Layout::template load<kPart>(ws[c] + i);
      for (int r = 0; r < R; ++r) acc[r][c] = hn::MulAdd(xv[r], wv, acc[r][c]);
    }
  };
  size_t i = k0;
  for (; i + step <= k1; i += step) {
    add(x, w, i, std::integral_constant<int, 0>());
    if constexpr (Layout::kParts == 2) add(x, w, i, std::integral_constant<int, 1>());
  }
  if (i < k1) {
    // Short rows of weights (and of plain activations) continue in zeroed buffers.
    HWY_ALIGN typename Layout::Type wt[C][2 * hn::MaxLanes(F())] = {};
    HWY_ALIGN float xt[R][2 * hn::MaxLanes(F())] = {};
    const typename Layout::Type* ws[C];
    const float* xs[R];
    for (int c = 0; c < C; ++c) {
      for (size_t j = 0; i + j < k1; ++j) wt[c][j] = w[c][i + j];
      ws[c] = wt[c];
    }
    for (int r = 0; r < R; ++r) {
      for (size_t j = 0; Layout::kParts == 2 ? j < step : i + j < k1; ++j) xt[r][j] = x[r][i + j];
      xs[r] = xt[r];
    }
    add(xs, ws, 0, std::integral_constant<int, 0>());
    if constexpr (Layout::kParts == 2) add(xs, ws, 0, std::integral_constant<int, 1>());
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) hn::Store(acc[r][c], d, sums + r * row_stride + static_cast<size_t>(c) * n);
}

template <class Layout, int R>
HWY_INLINE void tiles(const float* const* x, const typename Layout::Type* const* w, size_t width, size_t k0,
                      size_t k1, float* sums, size_t row_stride) {
  const size_t n = hn::Lanes(F());
  size_t c = 0;
  if constexpr (R == 1) {
    for (; c + 8 <= width; c += 8) tile<Layout, R, 8>(x, w + c, k0, k1, sums + c * n, row_stride);
  }
  for (; c + 4 <= width; c += 4) tile<Layout, R, 4>(x, w + c, k0, k1, sums + c * n, row_stride);
  for (; c < width; ++c) tile<Layout, R, 1>(x, w + c, k0, k1, sums + c * n, row_stride);
}

// out[r · kGroup + c] for rows ≤ kRowBlock and width ≤ kGroup. While it multiplies one stretch of columns it asks
// memory for the next; w has `ahead` ≥ width rows, those beyond `width` being the next group's.
template <class Layout>
HWY_INLINE void block(const float* const* x, int64_t rows, const typename Layout::Type* const* w,
                      int64_t width, int64_t ahead, int64_t k, float* out) {
  const F d;
  const size_t n = hn::Lanes(d), row_stride = kGroup * n;
  HWY_ALIGN float sums[kRowBlock * kGroup * hn::MaxLanes(F())];
  const int64_t n_tiles = (rows + 2) / 3;
  const int64_t stretch = n_tiles == 1 ? k : kStretch;
  for (int64_t k0 = 0; k0 < k; k0 += stretch) {
    const int64_t k1 = HWY_MIN(k0 + stretch, k);
    const bool last = k1 == k;
    for (int64_t t = 0; t < n_tiles; ++t) {
      if (n_tiles > 1) {
        // This tile's share of the next stretch's lines.
        const int64_t from = last ? 0 : k1;
        const int64_t begin = last ? width : 0, end = last ? ahead : width;
        const int64_t bytes =
            HWY_MIN(k - from, kStretch) * static_cast<int64_t>(sizeof(typename Layout::Type));
        const int64_t share = (bytes / n_tiles + 63) / 64 * 64;
        for (int64_t row = begin; row < end; ++row) {
          const char* line = reinterpret_cast<const char*>(w[row] + from);
          for (int64_t at = share * t; at < HWY_MIN(share * (t + 1), bytes); at += 64)
            hwy::Prefetch(line + at);
        }
      }
      const int64_t r = 3 * t;
      float* to = sums + static_cast<size_t>(r) * row_stride;
      const auto a = static_cast<size_t>(k0), b = static_cast<size_t>(k1), c = static_cast<size_t>(width);
      if (rows - r >= 3) {
        tiles<Layout, 3>(x + r, w, c, a, b, to, row_stride);
      } else if (rows - r == 2) {
        tiles<Layout, 2>(x + r, w, c, a, b, to, row_stride);
      } else {
        tiles<Layout, 1>(x + r, w, c, a, b, to, row_stride);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < width; ++c) {
      const float* from = sums + static_cast<size_t>(r) * row_stride + static_cast<size_t>(c) * n;
      out[r * kGroup + c] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, from)));
    }
}

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

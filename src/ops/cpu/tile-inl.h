// Dot products of R rows of x with C rows of w, the heart of matrix product and attention. Included once per
// SIMD target (no #pragma once: Highway's toggle guard).
//
// Each (row, output) pair has one vector accumulator that walks k in order, one fused multiply-add a step,
// and is summed over its lanes at the end. R and C only share loads, so every tile shape gives the same bits.
#if defined(QUERN_OPS_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUERN_OPS_CPU_TILE_INL_H
#undef QUERN_OPS_CPU_TILE_INL_H
#else
#define QUERN_OPS_CPU_TILE_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of f32 from memory of any float type. Stored types are hwy::bfloat16_t and hwy::float16_t.
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const hwy::bfloat16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const hwy::float16_t* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
}

// The first `n` values of p, then zeros.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_f32_partial(D d, const T* p, size_t n) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
  for (size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load_f32(d, buffer);
}

// out[r · out_stride + c] = x[r] · w[c] over k
template <int R, int C, class T>
HWY_INLINE void dot_tile(const float* const* HWY_RESTRICT x, const T* const* HWY_RESTRICT w, size_t k,
                         float* HWY_RESTRICT out, size_t out_stride) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;
  V acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = hn::Zero(d);
  size_t i = 0;
  for (; i + n <= k; i += n) {
    V xv[R];
    for (int r = 0; r < R; ++r) xv[r] = hn::LoadU(d, x[r] + i);
    for (int c = 0; c < C; ++c) {
      const V wv = load_f32(d, w[c] + i);
      for (int r = 0; r < R; ++r) acc[r][c] = hn::MulAdd(xv[r], wv, acc[r][c]);
    }
  }
  if (i < k) {
    V xv[R];
    for (int r = 0; r < R; ++r) xv[r] = load_f32_partial(d, x[r] + i, k - i);
    for (int c = 0; c < C; ++c) {
      const V wv = load_f32_partial(d, w[c] + i, k - i);
      for (int r = 0; r < R; ++r) acc[r][c] = hn::MulAdd(xv[r], wv, acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) out[r * out_stride + c] = hn::GetLane(hn::SumOfLanes(d, acc[r][c]));
}

// The same for any number of rows and outputs.
template <class T>
HWY_INLINE void dot_block(const float* const* HWY_RESTRICT x, size_t n_rows, const T* const* HWY_RESTRICT w,
                          size_t n_out, size_t k, float* HWY_RESTRICT out, size_t out_stride) {
  for (size_t r = 0; r < n_rows; r += 3) {
    const size_t rows = HWY_MIN(n_rows - r, size_t{3});
    size_t c = 0;
    for (; c + 4 <= n_out; c += 4) {
      float* o = out + r * out_stride + c;
      if (rows == 3) {
        dot_tile<3, 4>(x + r, w + c, k, o, out_stride);
      } else if (rows == 2) {
        dot_tile<2, 4>(x + r, w + c, k, o, out_stride);
      } else {
        dot_tile<1, 4>(x + r, w + c, k, o, out_stride);
      }
    }
    for (; c < n_out; ++c) {
      float* o = out + r * out_stride + c;
      if (rows == 3) {
        dot_tile<3, 1>(x + r, w + c, k, o, out_stride);
      } else if (rows == 2) {
        dot_tile<2, 1>(x + r, w + c, k, o, out_stride);
      } else {
        dot_tile<1, 1>(x + r, w + c, k, o, out_stride);
      }
    }
  }
}

}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

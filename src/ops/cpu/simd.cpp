#include "ops/cpu/simd.h"

#include <cmath>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/simd.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {

using Wide = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;

// fn(tag, i) over [0, n): whole vectors, then single elements; an element's arithmetic is the same in both.
template <class F>
HWY_INLINE void for_each(int64_t n, F fn) {
  const Wide d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(d, i);
  for (; i < n; ++i) fn(One(), i);
}

// The clamp keeps Exp within its range; a NaN passes through Min's second operand.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V one_plus_exp_neg(D d, V x) {
  return hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::Min(hn::Set(d, 88.0f), hn::Neg(x))));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  return hn::Div(hn::Set(d, 1.0f), one_plus_exp_neg(d, x));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu(D d, V x) {
  return hn::Div(x, one_plus_exp_neg(d, x));
}

float Dot(const float* a, const float* b, int64_t n) {
  const Wide d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
  if (i < n) {
    s1 = hn::MulAdd(load_f32_partial(d, a + i, static_cast<size_t>(n - i)),
                    load_f32_partial(d, b + i, static_cast<size_t>(n - i)), s1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

void Axpy(float* y, float a, const float* x, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(hn::MulAdd(hn::Set(d, a), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}
void NormScale(float* y, const float* x, float r, const float* w, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    const auto g = hn::Add(hn::Set(d, 1.0f), hn::LoadU(d, w + i));
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, r)), g), d, y + i);
  });
}
void NormScalePlain(float* y, const float* x, float r, const float* w, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, r)), hn::LoadU(d, w + i)), d, y + i);
  });
}
void Scale(float* y, const float* x, float a, int64_t n) {
  for_each(n, [&](auto d, int64_t i) { hn::StoreU(hn::Mul(hn::Set(d, a), hn::LoadU(d, x + i)), d, y + i); });
}
void SiluScaled(float* y, const float* x, float a, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(silu(d, hn::Mul(hn::Set(d, a), hn::LoadU(d, x + i))), d, y + i);
  });
}
void SiluMul(float* y, const float* g, const float* u, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(hn::Mul(silu(d, hn::LoadU(d, g + i)), hn::LoadU(d, u + i)), d, y + i);
  });
}
void GateSigmoid(float* y, const float* g, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), sigmoid(d, hn::LoadU(d, g + i))), d, y + i);
  });
}
void GateSilu(float* y, const float* g, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), silu(d, hn::LoadU(d, g + i))), d, y + i);
  });
}

void Conv4Silu(float* y, const float* const* x, const float* w, int64_t n) {
  for_each(n, [&](auto d, int64_t i) {
    hn::Vec<decltype(d)> t[4];
    hn::LoadInterleaved4(d, w + 4 * i, t[0], t[1], t[2], t[3]);
    auto sum = hn::Zero(d);
    for (int j = 0; j < 4; ++j) {
      if (x[j]) sum = hn::MulAdd(t[j], hn::LoadU(d, x[j] + i), sum);
    }
    hn::StoreU(silu(d, sum), d, y + i);
  });
}

void MixStreams(float* h, const float* u, const float* v, int64_t streams, int64_t n) {
  const float inverse = 1.0f / static_cast<float>(streams);
  for_each(n, [&](auto d, int64_t i) {
    auto sum = hn::Zero(d);
    for (int64_t s = 0; s < streams; ++s) {
      sum = hn::MulAdd(sigmoid(d, hn::LoadU(d, u + s * n + i)), hn::LoadU(d, v + s * n + i), sum);
    }
    hn::StoreU(hn::Mul(sum, hn::Set(d, inverse)), d, h + i);
  });
}

// Columns of M are independent, so kVectors of them stay in registers while the rows go by.
template <int kVectors, class D>
HWY_INLINE void delta_columns(D d, float* M, const float* k, const float* q, const float* v, float e,
                              float beta, float* o, int64_t d_k, int64_t d_v) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kVectors];
  for (int c = 0; c < kVectors; ++c) sum[c] = hn::Zero(d);
  const V decay = hn::Set(d, e);
  for (int64_t i = 0; i < d_k; ++i) {
    const V ki = hn::Set(d, k[i]);
    for (int c = 0; c < kVectors; ++c) {
      float* m = M + i * d_v + c * lanes;
      const V mv = hn::Mul(decay, hn::LoadU(d, m));
      hn::StoreU(mv, d, m);
      sum[c] = hn::MulAdd(ki, mv, sum[c]);
    }
  }
  V delta[kVectors];
  for (int c = 0; c < kVectors; ++c) {
    delta[c] = hn::Mul(hn::Set(d, beta), hn::Sub(hn::LoadU(d, v + c * lanes), sum[c]));
    sum[c] = hn::Zero(d);
  }
  for (int64_t i = 0; i < d_k; ++i) {
    const V ki = hn::Set(d, k[i]), qi = hn::Set(d, o ? q[i] : 0.0f);
    for (int c = 0; c < kVectors; ++c) {
      float* m = M + i * d_v + c * lanes;
      const V mv = hn::MulAdd(ki, delta[c], hn::LoadU(d, m));
      hn::StoreU(mv, d, m);
      sum[c] = hn::MulAdd(qi, mv, sum[c]);
    }
  }
  if (!o) return;
  for (int c = 0; c < kVectors; ++c) hn::StoreU(sum[c], d, o + c * lanes);
}

void DeltaStep(float* M, const float* k, const float* q, const float* v, float e, float beta, float* o,
               int64_t d_k, int64_t d_v) {
  const Wide d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * lanes <= d_v; c += 4 * lanes)
    delta_columns<4>(d, M + c, k, q, v + c, e, beta, o ? o + c : nullptr, d_k, d_v);
  for (; c + lanes <= d_v; c += lanes)
    delta_columns<1>(d, M + c, k, q, v + c, e, beta, o ? o + c : nullptr, d_k, d_v);
  for (; c < d_v; ++c) delta_columns<1>(One(), M + c, k, q, v + c, e, beta, o ? o + c : nullptr, d_k, d_v);
}

void IndexScores(float* scores, const float* q, const float* const* keys, int64_t heads, int64_t d, int64_t n,
                 float scale) {
  constexpr int64_t kHeads = 8;
  const float* queries[kHeads];
  float dots[kHeads * 4];
  for (int64_t b = 0; b < n; b += 4) {
    const int64_t width = n - b < 4 ? n - b : 4;
    for (int64_t i = 0; i < width; ++i) scores[b + i] = 0;
    for (int64_t h0 = 0; h0 < heads; h0 += kHeads) {
      const int64_t count = heads - h0 < kHeads ? heads - h0 : kHeads;
      for (int64_t h = 0; h < count; ++h) queries[h] = q + (h0 + h) * d;
      dot_block(queries, static_cast<size_t>(count), keys + b, static_cast<size_t>(width),
                static_cast<size_t>(d), dots, 4);
      for (int64_t h = 0; h < count; ++h)
        for (int64_t i = 0; i < width; ++i) scores[b + i] += dots[h * 4 + i] > 0 ? dots[h * 4 + i] : 0.0f;
    }
    for (int64_t i = 0; i < width; ++i) scores[b + i] *= scale;
  }
}

constexpr int64_t kRun = 64;
constexpr int64_t kGroup = 16;  // query heads handled together

float Max(const float* x, int64_t n) {
  float m = -HUGE_VALF;
  for (int64_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

float SumExp(const float* x, float m, int64_t n) {
  const Wide d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, m))));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i)
    total += hn::GetLane(hn::Exp(One(), hn::Sub(hn::LoadU(One(), x + i), hn::Set(One(), m))));
  return total;
}

// o[h] = c[h]·o[h] + r[h] · Σ_j p[h, j] v[j], columns [c0, c0 + kVectors·lanes) of kRows heads; j in order.
template <int kRows, int kVectors, class D, class T>
HWY_INLINE void weighted_values(D d, float* o, int64_t dim, const float* p, const float* keep,
                                const float* add, const T* const* values, int64_t c0, int64_t n) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kVectors; ++c) acc[r][c] = hn::Zero(d);
  for (int64_t j = 0; j < n; ++j) {
    V v[kVectors];
    for (int c = 0; c < kVectors; ++c) v[c] = load_f32(d, values[j] + c0 + c * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V pj = hn::Set(d, p[r * kRun + j]);
      for (int c = 0; c < kVectors; ++c) acc[r][c] = hn::MulAdd(pj, v[c], acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kVectors; ++c) {
      float* to = o + r * dim + c0 + c * lanes;
      hn::StoreU(hn::MulAdd(hn::Set(d, add[r]), acc[r][c], hn::Mul(hn::Set(d, keep[r]), hn::LoadU(d, to))), d,
                 to);
    }
}

template <int kRows, class T>
HWY_INLINE void weighted_values_all(float* o, int64_t dim, const float* p, const float* keep,
                                    const float* add, const T* const* values, int64_t n) {
  const Wide d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 2 * lanes <= dim; c += 2 * lanes)
    weighted_values<kRows, 2>(d, o, dim, p, keep, add, values, c, n);
  for (; c < dim; ++c) weighted_values<kRows, 1>(One(), o, dim, p, keep, add, values, c, n);
}

template <class T>
HWY_INLINE void attend_group(float* m, float* l, float* o, const float* const* q, int64_t heads, int64_t dim,
                             const T* const* keys, const T* const* values, int64_t n, float scale) {
  float p[kGroup * kRun], keep[kGroup], add[kGroup];
  dot_block(q, static_cast<size_t>(heads), keys, static_cast<size_t>(n), static_cast<size_t>(dim), p, kRun);
  for (int64_t h = 0; h < heads; ++h) {
    float* row = p + h * kRun;
    for_each(n, [&](auto d, int64_t i) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale)), d, row + i);
    });
    const float run_max = Max(row, n);
    for_each(n, [&](auto d, int64_t i) {
      hn::StoreU(hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, run_max))), d, row + i);
    });
    float run_sum = 0;
    for (int64_t i = 0; i < n; ++i) run_sum += row[i];
    const float top = m[h] > run_max ? m[h] : run_max;
    keep[h] = std::exp(m[h] - top);
    add[h] = std::exp(run_max - top);
    l[h] = l[h] * keep[h] + run_sum * add[h];
    m[h] = top;
  }
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4)
    weighted_values_all<4>(o + h * dim, dim, p + h * kRun, keep + h, add + h, values, n);
  for (; h < heads; ++h) weighted_values_all<1>(o + h * dim, dim, p + h * kRun, keep + h, add + h, values, n);
}

template <class T>
HWY_INLINE void attend_typed(float* m, float* l, float* o, const float* const* q, int64_t heads, int64_t dim,
                             const void* const* keys, const void* const* values, int64_t n, float scale) {
  const T* k[kRun];
  const T* v[kRun];
  for (int64_t j = 0; j < n; ++j) {
    k[j] = static_cast<const T*>(keys[j]);
    v[j] = static_cast<const T*>(values[j]);
  }
  for (int64_t h = 0; h < heads; h += kGroup) {
    const int64_t count = heads - h < kGroup ? heads - h : kGroup;
    attend_group(m + h, l + h, o + h * dim, q + h, count, dim, k, v, n, scale);
  }
}

void AttendRun(float* m, float* l, float* o, const float* const* q, int64_t heads, int64_t dim,
               const void* const* keys, const void* const* values, DType kv, int64_t n, float scale) {
  switch (kv) {
    case DType::F32:
      return attend_typed<float>(m, l, o, q, heads, dim, keys, values, n, scale);
    case DType::BF16:
      return attend_typed<hwy::bfloat16_t>(m, l, o, q, heads, dim, keys, values, n, scale);
    case DType::F16:
      return attend_typed<hwy::float16_t>(m, l, o, q, heads, dim, keys, values, n, scale);
    default:
      QUERN_CHECK(false, "attend_run: keys are f32, bf16 or f16");
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quern {
HWY_EXPORT(Target);
HWY_EXPORT(Dot);
HWY_EXPORT(Axpy);
HWY_EXPORT(NormScale);
HWY_EXPORT(NormScalePlain);
HWY_EXPORT(Scale);
HWY_EXPORT(SiluScaled);
HWY_EXPORT(SiluMul);
HWY_EXPORT(GateSigmoid);
HWY_EXPORT(GateSilu);
HWY_EXPORT(Conv4Silu);
HWY_EXPORT(MixStreams);
HWY_EXPORT(DeltaStep);
HWY_EXPORT(IndexScores);
HWY_EXPORT(AttendRun);
HWY_EXPORT(Max);
HWY_EXPORT(SumExp);

namespace simd {

const char* target() { return HWY_DYNAMIC_DISPATCH(Target)(); }
float dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }
float sum_squares(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(x, x, n); }
void axpy(float* y, float a, const float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Axpy)(y, a, x, n); }
void norm_scale(float* y, const float* x, float r, const float* w, int64_t n) {
  HWY_DYNAMIC_DISPATCH(NormScale)(y, x, r, w, n);
}
void norm_scale_plain(float* y, const float* x, float r, const float* w, int64_t n) {
  HWY_DYNAMIC_DISPATCH(NormScalePlain)(y, x, r, w, n);
}
void scale(float* y, const float* x, float a, int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(y, x, a, n); }
void silu_scaled(float* y, const float* x, float a, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SiluScaled)(y, x, a, n);
}
void silu_mul(float* y, const float* g, const float* u, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(y, g, u, n);
}
void gate_sigmoid(float* y, const float* g, int64_t n) { HWY_DYNAMIC_DISPATCH(GateSigmoid)(y, g, n); }
void gate_silu(float* y, const float* g, int64_t n) { HWY_DYNAMIC_DISPATCH(GateSilu)(y, g, n); }
void conv4_silu(float* y, const float* const x[4], const float* w, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Conv4Silu)(y, x, w, n);
}
void mix_streams(float* h, const float* u, const float* v, int64_t streams, int64_t n) {
  HWY_DYNAMIC_DISPATCH(MixStreams)(h, u, v, streams, n);
}
void delta_step(float* M, const float* k, const float* q, const float* v, float e, float beta, float* o,
                int64_t d_k, int64_t d_v) {
  HWY_DYNAMIC_DISPATCH(DeltaStep)(M, k, q, v, e, beta, o, d_k, d_v);
}
void index_scores(float* scores, const float* q, const float* const* keys, int64_t heads, int64_t d,
                  int64_t n, float scale) {
  HWY_DYNAMIC_DISPATCH(IndexScores)(scores, q, keys, heads, d, n, scale);
}
void attend_run(const AttentionState& state, const float* const* q, int64_t heads, int64_t d,
                const void* const* keys, const void* const* values, DType kv, int64_t n, float scale) {
  HWY_DYNAMIC_DISPATCH(AttendRun)(state.m, state.l, state.o, q, heads, d, keys, values, kv, n, scale);
}
float max(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Max)(x, n); }
float sum_exp(const float* x, float m, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumExp)(x, m, n); }

}  // namespace simd
}  // namespace quern
#endif

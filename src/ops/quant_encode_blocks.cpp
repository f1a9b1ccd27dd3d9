#include "ops/quant_encode_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/quant_encode.h"

namespace quern::quant {
namespace {

int nearest(float x) { return static_cast<int>(std::lrintf(x)); }

void weights_of(const float* x, int n, float* w) {
  float mean = 0;
  for (int i = 0; i < n; ++i) mean += x[i] * x[i];
  mean /= static_cast<float>(n);
  for (int i = 0; i < n; ++i) w[i] = mean + x[i] * x[i];
}

// The value of largest magnitude, with its sign.
float extreme(const float* x, int n) {
  float best = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}

// The d that minimises Σ w (x - d·level(x / d))², where the extreme value starts at each of `anchors` levels.
template <typename Level>
float fit_scale(const float* x, const float* w, int n, std::initializer_list<float> anchors, Level level) {
  const float far = extreme(x, n);
  if (!(std::fabs(far) > 1e-30f)) return 0;
  float best_d = 0, best_gain = 0;
  for (const float anchor : anchors) {
    for (const float stretch : {0.92f, 0.97f, 1.0f, 1.04f, 1.1f}) {
      const float inverse = anchor * stretch / far;
      float xq = 0, qq = 0;
      for (int i = 0; i < n; ++i) {
        const float q = static_cast<float>(level(x[i] * inverse));
        xq += w[i] * x[i] * q;
        qq += w[i] * q * q;
      }
      // The error is Σ w x² - xq² / qq.
      if (qq > 0 && xq * xq > best_gain * qq) {
        best_gain = xq * xq / qq;
        best_d = xq / qq;
      }
    }
  }
  return best_d;
}

auto clamped(int low, int high) {
  return [=](float x) { return std::clamp(nearest(std::clamp(x, -1e6f, 1e6f)), low, high); };
}

struct Affine {
  float d = 0, m = 0;  // x ≈ d·q + m
};

// q in [0, top]. With `negative_min`, m ≤ 0.
Affine fit_affine(const float* x, const float* w, int n, int top, bool negative_min) {
  float low = x[0], high = x[0], sum_w = 0, sum_x = 0;
  for (int i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += w[i];
    sum_x += w[i] * x[i];
  }
  if (negative_min) low = std::min(low, 0.0f);
  if (!(high - low > 1e-30f)) return {0, low};
  Affine best{(high - low) / static_cast<float>(top), low};
  float best_error = INFINITY;
  for (const float stretch : {-0.5f, 0.0f, 0.3f, 0.7f, 1.2f}) {
    const float inverse = (static_cast<float>(top) + stretch) / (high - low);
    float q1 = 0, q2 = 0, xq = 0;
    int codes[32];
    for (int i = 0; i < n; ++i) {
      codes[i] = std::clamp(nearest((x[i] - low) * inverse), 0, top);
      const float q = static_cast<float>(codes[i]);
      q1 += w[i] * q;
      q2 += w[i] * q * q;
      xq += w[i] * x[i] * q;
    }
    const float determinant = sum_w * q2 - q1 * q1;
    if (!(determinant > 0)) continue;
    Affine fit{(sum_w * xq - q1 * sum_x) / determinant, (q2 * sum_x - q1 * xq) / determinant};
    if (negative_min && fit.m > 0) fit = {q2 > 0 ? xq / q2 : 0, 0};
    if (!(fit.d > 0)) continue;
    float error = 0;
    for (int i = 0; i < n; ++i) {
      const float e = x[i] - fit.d * static_cast<float>(codes[i]) - fit.m;
      error += w[i] * e * e;
    }
    if (error < best_error) {
      best_error = error;
      best = fit;
    }
  }
  return best;
}

float inverse_of(float d) { return d != 0 ? 1 / d : 0; }

// Rounded to what the file holds.
float to_half(float v, uint16_t& bits) {
  bits = float_to_half(v);
  return half_to_float(bits);
}

// d·s_g with s_g in [-n, n-1]: the extreme scale becomes -n.
template <int kGroups>
float super_scale(const float* scales, int n, uint16_t& bits, int* codes) {
  const float d = to_half(extreme(scales, kGroups) / static_cast<float>(-n), bits);
  for (int g = 0; g < kGroups; ++g) codes[g] = std::clamp(nearest(scales[g] * inverse_of(d)), -n, n - 1);
  return d;
}

// The same after fitting a scale to each of the groups of the 256 values.
template <int kGroups, typename Level>
float fit_groups(const float* x, std::initializer_list<float> anchors, Level level, int n, uint16_t& bits,
                 int* codes) {
  constexpr int kSize = 256 / kGroups;
  float scales[kGroups], w[kSize];
  for (int g = 0; g < kGroups; ++g) {
    weights_of(x + g * kSize, kSize, w);
    scales[g] = fit_scale(x + g * kSize, w, kSize, anchors, level);
  }
  return super_scale<kGroups>(scales, n, bits, codes);
}

// The d of a block of 32 as the file holds it, inverted.
template <typename Level>
float fit_block(const float* x, std::initializer_list<float> anchors, Level level, uint16_t& bits) {
  float w[32];
  weights_of(x, 32, w);
  return inverse_of(to_half(fit_scale(x, w, 32, anchors, level), bits));
}

int iq4_code(float x) {
  // Levels rise with the code: the first border above x.
  int code = 0;
  while (code < 15 && 2 * x > static_cast<float>(iq4_level(static_cast<unsigned>(code)) +
                                                 iq4_level(static_cast<unsigned>(code + 1))))
    ++code;
  return code;
}
int iq4_nearest(float x) { return iq4_level(static_cast<unsigned>(iq4_code(x))); }

void pack_halves(const int* codes, uint8_t* q) {
  for (int j = 0; j < 16; ++j) q[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}
void pack_fifth(const int* codes, uint8_t* h) {
  std::memset(h, 0, 4);
  for (int j = 0; j < 32; ++j) h[j >> 3] = static_cast<uint8_t>(h[j >> 3] | ((codes[j] >> 4) & 1) << (j & 7));
}

}  // namespace

void encode_block(const float* x, BlockQ8_0& b) {
  const float d = to_half(std::fabs(extreme(x, 32)) / 127, b.d), inverse = inverse_of(d);
  for (int j = 0; j < 32; ++j) b.q[j] = static_cast<int8_t>(std::clamp(nearest(x[j] * inverse), -127, 127));
}

void encode_block(const float* x, BlockQ4_0& b) {
  int codes[32];
  const float inverse = fit_block(x, {-8, 7}, clamped(-8, 7), b.d);
  for (int j = 0; j < 32; ++j) codes[j] = clamped(-8, 7)(x[j] * inverse) + 8;
  pack_halves(codes, b.q);
}
void encode_block(const float* x, BlockQ5_0& b) {
  int codes[32];
  const float inverse = fit_block(x, {-16, 15}, clamped(-16, 15), b.d);
  for (int j = 0; j < 32; ++j) codes[j] = clamped(-16, 15)(x[j] * inverse) + 16;
  pack_halves(codes, b.q);
  pack_fifth(codes, b.h);
}
void encode_block(const float* x, BlockQ4_1& b) {
  float w[32];
  int codes[32];
  weights_of(x, 32, w);
  const Affine fit = fit_affine(x, w, 32, 15, false);
  const float inverse = inverse_of(to_half(fit.d, b.d)), m = to_half(fit.m, b.m);
  for (int j = 0; j < 32; ++j) codes[j] = clamped(0, 15)((x[j] - m) * inverse);
  pack_halves(codes, b.q);
}
void encode_block(const float* x, BlockQ5_1& b) {
  float w[32];
  int codes[32];
  weights_of(x, 32, w);
  const Affine fit = fit_affine(x, w, 32, 31, false);
  const float inverse = inverse_of(to_half(fit.d, b.d)), m = to_half(fit.m, b.m);
  for (int j = 0; j < 32; ++j) codes[j] = clamped(0, 31)((x[j] - m) * inverse);
  pack_halves(codes, b.q);
  pack_fifth(codes, b.h);
}

namespace {

// Scales and minima of Q2_K, Q4_K, Q5_K: codes up to `top_scale` of d and m.
template <int kGroups, typename Block>
void fit_affine_groups(const float* x, int top, int top_scale, Block& b, int* scale_codes, int* min_codes,
                       float* d, float* m) {
  constexpr int kSize = 256 / kGroups;
  Affine fits[kGroups];
  float max_d = 0, max_m = 0;
  for (int g = 0; g < kGroups; ++g) {
    float w[kSize];
    weights_of(x + g * kSize, kSize, w);
    fits[g] = fit_affine(x + g * kSize, w, kSize, top, true);
    max_d = std::max(max_d, fits[g].d);
    max_m = std::max(max_m, -fits[g].m);
  }
  const float n = static_cast<float>(top_scale);
  const float super_d = to_half(max_d / n, b.d), super_m = to_half(max_m / n, b.m);
  for (int g = 0; g < kGroups; ++g) {
    scale_codes[g] = std::clamp(nearest(fits[g].d * inverse_of(super_d)), 0, top_scale);
    min_codes[g] = std::clamp(nearest(-fits[g].m * inverse_of(super_m)), 0, top_scale);
    d[g] = super_d * static_cast<float>(scale_codes[g]);
    m[g] = super_m * static_cast<float>(min_codes[g]);
  }
}

void pack_k_scales(const int* scales, const int* mins, uint8_t* s) {
  for (int g = 0; g < 4; ++g) {
    s[g] = static_cast<uint8_t>(scales[g] | (scales[g + 4] >> 4) << 6);
    s[g + 4] = static_cast<uint8_t>(mins[g] | (mins[g + 4] >> 4) << 6);
    s[g + 8] = static_cast<uint8_t>((scales[g + 4] & 15) | (mins[g + 4] & 15) << 4);
  }
}

}  // namespace

void encode_block(const float* x, BlockQ2_K& b) {
  int scales[16], mins[16];
  float d[16], m[16];
  fit_affine_groups<16>(x, 3, 15, b, scales, mins, d, m);
  std::memset(b.q, 0, sizeof b.q);
  for (int g = 0; g < 16; ++g) {
    b.s[g] = static_cast<uint8_t>(scales[g] | mins[g] << 4);
    uint8_t* q = b.q + 32 * (g >> 3) + 16 * (g & 1);
    const int shift = 2 * ((g & 7) >> 1);
    const float inverse = inverse_of(d[g]);
    for (int j = 0; j < 16; ++j)
      q[j] = static_cast<uint8_t>(q[j] | clamped(0, 3)((x[16 * g + j] + m[g]) * inverse) << shift);
  }
}

void encode_block(const float* x, BlockQ4_K& b) {
  int scales[8], mins[8];
  float d[8], m[8];
  fit_affine_groups<8>(x, 15, 63, b, scales, mins, d, m);
  pack_k_scales(scales, mins, b.s);
  std::memset(b.q, 0, sizeof b.q);
  for (int g = 0; g < 8; ++g) {
    const float inverse = inverse_of(d[g]);
    for (int j = 0; j < 32; ++j) {
      uint8_t& q = b.q[32 * (g >> 1) + j];
      q = static_cast<uint8_t>(q | clamped(0, 15)((x[32 * g + j] + m[g]) * inverse) << (4 * (g & 1)));
    }
  }
}

void encode_block(const float* x, BlockQ5_K& b) {
  int scales[8], mins[8];
  float d[8], m[8];
  fit_affine_groups<8>(x, 31, 63, b, scales, mins, d, m);
  pack_k_scales(scales, mins, b.s);
  std::memset(b.q, 0, sizeof b.q);
  std::memset(b.h, 0, sizeof b.h);
  for (int g = 0; g < 8; ++g) {
    const float inverse = inverse_of(d[g]);
    for (int j = 0; j < 32; ++j) {
      const int code = clamped(0, 31)((x[32 * g + j] + m[g]) * inverse);
      uint8_t& q = b.q[32 * (g >> 1) + j];
      q = static_cast<uint8_t>(q | (code & 15) << (4 * (g & 1)));
      b.h[j] = static_cast<uint8_t>(b.h[j] | (code >> 4) << g);
    }
  }
}

void encode_block(const float* x, BlockQ3_K& b) {
  int codes[16];
  const float d = fit_groups<16>(x, {-4, 3}, clamped(-4, 3), 32, b.d, codes);
  std::memset(&b, 0, offsetof(BlockQ3_K, d));
  for (int g = 0; g < 16; ++g) {
    const int s = codes[g] + 32;
    uint8_t& low = b.s[g < 8 ? g : g - 8];
    low = static_cast<uint8_t>(low | (s & 15) << (g < 8 ? 0 : 4));
    b.s[8 + (g & 3)] = static_cast<uint8_t>(b.s[8 + (g & 3)] | (s >> 4) << (2 * (g >> 2)));
    const float inverse = inverse_of(d * static_cast<float>(codes[g]));
    uint8_t* q = b.q + 32 * (g >> 3) + 16 * (g & 1);
    uint8_t* h = b.h + 16 * (g & 1);
    for (int j = 0; j < 16; ++j) {
      const int code = clamped(-4, 3)(x[16 * g + j] * inverse) + 4;
      q[j] = static_cast<uint8_t>(q[j] | (code & 3) << (2 * ((g & 7) >> 1)));
      h[j] = static_cast<uint8_t>(h[j] | (code >> 2) << (g >> 1));
    }
  }
}

void encode_block(const float* x, BlockQ6_K& b) {
  int codes[16];
  const float d = fit_groups<16>(x, {-32, 31}, clamped(-32, 31), 128, b.d, codes);
  std::memset(&b, 0, offsetof(BlockQ6_K, d));
  for (int g = 0; g < 16; ++g) {
    b.s[g] = static_cast<int8_t>(codes[g]);
    const float inverse = inverse_of(d * static_cast<float>(codes[g]));
    const int half = g >> 3, quarter = (g & 7) >> 1, odd = g & 1;
    uint8_t* q = b.q + 64 * half + 32 * (quarter & 1) + 16 * odd;
    uint8_t* h = b.h + 32 * half + 16 * odd;
    for (int j = 0; j < 16; ++j) {
      const int code = clamped(-32, 31)(x[16 * g + j] * inverse) + 32;
      q[j] = static_cast<uint8_t>(q[j] | (code & 15) << (4 * (quarter >> 1)));
      h[j] = static_cast<uint8_t>(h[j] | (code >> 4) << (2 * quarter));
    }
  }
}

void encode_block(const float* x, BlockIQ4_NL& b) {
  int codes[32];
  const float inverse = fit_block(x, {-127, 113}, iq4_nearest, b.d);
  for (int j = 0; j < 32; ++j) codes[j] = iq4_code(x[j] * inverse);
  pack_halves(codes, b.q);
}

void encode_block(const float* x, BlockIQ4_XS& b) {
  int codes[8];
  const float d = fit_groups<8>(x, {-127, 113}, iq4_nearest, 32, b.d, codes);
  b.sh = 0;
  std::memset(b.sl, 0, sizeof b.sl);
  for (int g = 0; g < 8; ++g) {
    const int s = codes[g] + 32;
    b.sl[g >> 1] = static_cast<uint8_t>(b.sl[g >> 1] | (s & 15) << (4 * (g & 1)));
    b.sh = static_cast<uint16_t>(b.sh | (s >> 4) << (2 * g));
    const float inverse = inverse_of(d * static_cast<float>(codes[g]));
    int q[32];
    for (int j = 0; j < 32; ++j) q[j] = iq4_code(x[32 * g + j] * inverse);
    pack_halves(q, b.q + 16 * g);
  }
}

namespace {

float e2m1_error(const float* x, int n, float d) {
  float error = 0;
  const float inverse = inverse_of(d);
  for (int i = 0; i < n; ++i) {
    const float e = x[i] - d * e2m1_to_float(float_to_e2m1(x[i] * inverse));
    error += e * e;
  }
  return error;
}

// The scale code in [first, last] whose E2M1 values are closest to x; scale_of(code) is the scale.
template <typename ScaleOf>
int closest_scale(const float* x, int n, int first, int last, ScaleOf scale_of) {
  int best = first;
  float best_error = INFINITY;
  for (int code = first; code <= last; ++code) {
    const float error = e2m1_error(x, n, scale_of(code));
    if (error < best_error) {
      best_error = error;
      best = code;
    }
  }
  return best;
}

}  // namespace

uint8_t closest_e4m3_scale(const float* x, float global_scale) {
  const int start = float_to_e4m3(std::fabs(extreme(x, 16)) / 6 / global_scale);
  return static_cast<uint8_t>(
      closest_scale(x, 16, std::max(0, start - 3), std::min(0x7e, start + 1),
                    [=](int code) { return e4m3_to_float(static_cast<uint8_t>(code)) * global_scale; }));
}

void encode_block(const float* x, BlockMXFP4& b) {
  // The largest value is 6 · 2^(e-127) at most; one power below clips it and may still be closer.
  const float far = std::fabs(extreme(x, 32));
  int exponent = 0;
  std::frexp(far / 6, &exponent);  // far/6 ≤ 2^exponent
  const auto code_of = [](int e) { return std::clamp(e + 127, 0, 254); };
  const int best = closest_scale(x, 32, code_of(exponent - 2), code_of(exponent),
                                 [](int code) { return e8m0_to_float(static_cast<uint8_t>(code)); });
  b.e = static_cast<uint8_t>(far > 0 ? best : 0);
  const float inverse = inverse_of(e8m0_to_float(b.e));
  int codes[32];
  for (int j = 0; j < 32; ++j) codes[j] = far > 0 ? float_to_e2m1(x[j] * inverse) : 0;
  pack_halves(codes, b.q);
}

void encode_block(const float* x, BlockNVFP4& b) {
  for (int g = 0; g < 4; ++g) {
    const float* from = x + 16 * g;
    b.s[g] = closest_e4m3_scale(from, 1);
    const float inverse = inverse_of(e4m3_to_float(b.s[g]));
    for (int j = 0; j < 8; ++j)
      b.q[8 * g + j] =
          static_cast<uint8_t>(float_to_e2m1(from[j] * inverse) | float_to_e2m1(from[j + 8] * inverse) << 4);
  }
}

}  // namespace quern::quant

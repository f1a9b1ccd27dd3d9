// Not an op: the scalar formulas of the model and the conversions of small floats, once, for host and device.
// A kernel owns its loop; the formula it applies to one element is here.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ops/quant_formats.h"  // QUERN_HD

namespace quern::scalar {

// ---- small floats, encoded (ops/quant_formats.h decodes them) ----

// To nearest, ties to even; a NaN stays one.
QUERN_HD uint16_t f32_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// To nearest, ties to even; beyond 65504 infinity; a NaN stays one.
QUERN_HD uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (a < 0x38800000u) {                                               // below 2^-14: a multiple of 2^-24
    // Adding 0.5 moves the wanted bits to the end of the mantissa, rounded by the addition.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

// To nearest, ties to even; beyond 448 it saturates; NaN is 0x7f.
QUERN_HD uint8_t f32_to_e4m3(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and more
  if (a < 0x3c800000u) {                                            // below 2^-6: a multiple of 2^-9
    const float shifted = std::bit_cast<float>(a) + 0x1p14f;        // one unit of its last place is 2^-9
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t r = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
  return static_cast<uint8_t>(sign | (r > 0x7eu ? 0x7eu : r));
}

// ---- activations ----

QUERN_HD float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
QUERN_HD float silu(float x) { return x / (1.0f + expf(-x)); }
// log(1 + e^x), without overflow: above 20 it is x to the last bit of a float.
QUERN_HD float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
// The PLE gate's compressor: sign(g) · sqrt(max(|g|, 1e-6)); sign(0) is 0.
QUERN_HD float signed_sqrt(float g) {
  const float r = sqrtf(fmaxf(fabsf(g), 1e-6f));
  return g > 0 ? r : (g < 0 ? -r : 0.0f * g);
}

// ---- rotary angles ----

// theta^(-2i/d), rounded to f32 as the reference rounds it: the power first, then its inverse.
inline float rope_frequency(int i, int d_rope, double theta) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(d_rope);
  return 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}
// The angle is an f32 product, as in the reference: at position 4000 an exact angle would differ by 2e-4.
QUERN_HD float rope_angle(int32_t position, float frequency) {
  return static_cast<float>(position) * frequency;
}

// ---- n-gram hash ----

// The table row of head h (ops/ple.h): window holds a token's id and the two before it, -1 where there is none; the
// first half of the heads uses the 2-gram, the second the 3-gram.
QUERN_HD int64_t ngram_row(const int32_t* window, const int64_t* multiplier, int64_t vocab, int64_t offset,
                           int h, int heads, int32_t eos) {
  uint64_t id[3];
  bool cut = false;
  for (int i = 0; i < 3; ++i) {
    cut = cut || window[i] < 0 || (i > 0 && window[i] == eos);
    id[i] = static_cast<uint64_t>(static_cast<int64_t>(cut ? eos : window[i]));
  }
  uint64_t m = id[0] * static_cast<uint64_t>(multiplier[0]) ^ id[1] * static_cast<uint64_t>(multiplier[1]);
  if (h >= heads / 2) m ^= id[2] * static_cast<uint64_t>(multiplier[2]);
  const int64_t r = static_cast<int64_t>(m) % vocab;
  return (r < 0 ? r + vocab : r) + offset;
}

// ---- sampling ----

// A logit of an id of the prompt or reply; `count` is how often the reply holds it.
QUERN_HD float penalised(float l, int32_t count, float repetition, float presence, float frequency) {
  l = l > 0 ? l / repetition : l * repetition;
  return l - ((count > 0 ? presence : 0.0f) + frequency * static_cast<float>(count));
}

// Steele, Lea, Flood 2014: the output function of splitmix64.
QUERN_HD uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// The key of a row's random numbers, and the 32 bits that belong to one id under it.
QUERN_HD uint64_t noise_key(uint64_t seed, int64_t position) {
  return splitmix64(splitmix64(seed) ^ static_cast<uint64_t>(position));
}
QUERN_HD uint32_t noise_bits(uint64_t key, int32_t id) {
  return static_cast<uint32_t>(splitmix64(key + static_cast<uint64_t>(static_cast<uint32_t>(id))) >> 32);
}
// Gumbel noise -log(-log u) with 1 - u = (bits + 1/2) / 2^32, taken from 1 - u so that the large values,
// which decide the argmax, keep a float's relative precision.
QUERN_HD float gumbel(uint32_t bits) {
  const float v = fminf((static_cast<float>(bits) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  return -logf(-log1pf(-v));
}

}  // namespace quern::scalar

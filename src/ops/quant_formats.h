// The bytes of every quantised format, and the one decoder of each, for host and device.
//
// GGUF block types. A row of a weight is a whole number of blocks; numbers are little endian; `half` is an
// IEEE binary16. Within a block, values are decoded in groups that share a scale: decode_group(block, g, out)
// writes values [g·kGroup, (g+1)·kGroup). "Halves" order: byte j of a 32-value group holds value j in its
// low nibble and value j+16 in its high one.
//
//   type    block bytes group  bytes in order                              value
//   Q8_0       32    34    32  half d; i8 q[32]                            d·q
//   Q4_0       32    18    32  half d; u4 q[32] halves                     d·(q - 8)
//   Q4_1       32    20    32  half d, m; u4 q[32] halves                  d·q + m
//   Q5_0       32    22    32  half d; u32 h; u4 q[32] halves              d·((q | bit j of h << 4) - 16)
//   Q5_1       32    24    32  half d, m; u32 h; u4 q[32] halves           d·(q | bit j of h << 4) + m
//   Q2_K      256    84    16  u8 s[16]; u8 q[64]; half d, m               d·(s & 15)·q - m·(s >> 4)
//   Q3_K      256   110    16  u8 h[32]; u8 q[64]; u8 s[12]; half d        d·(s6 - 32)·(q - 4·(no bit in h))
//   Q4_K      256   144    32  half d, m; u8 s[12]; u8 q[128]              d·s6·q - m·m6
//   Q5_K      256   176    32  half d, m; u8 s[12]; u8 h[32]; u8 q[128]    d·s6·(q | bit << 4) - m·m6
//   Q6_K      256   210    16  u8 q[128]; u8 h[64]; i8 s[16]; half d       d·s·((q | 2 bits << 4) - 32)
//   IQ4_NL     32    18    32  half d; u4 q[32] halves                     d·table[q]
//   IQ4_XS    256   136    32  half d; u16 sh; u8 sl[4]; u4 q[8][32]       d·(s6 - 32)·table[q]
//   MXFP4      32    17    32  u8 e; u4 q[32] halves                       2^(e-127)·e2m1(q)
//   NVFP4      64    36    16  u8 s[4] (E4M3, no sign); u4 q[4][16]        s·e2m1(q)
//   IQ2_XXS   256    66    32  half d; then MODEL.md's table in §1.4: grids of magnitudes, sign codes and
//   IQ2_XS    256    74    16  scale nibbles; see the decoders below
//   IQ2_S     256    82    16
//   IQ3_XXS   256    98    32
//   IQ3_S     256   110    32
//
// Two-bit codes (Q2_K, Q3_K) and the nibbles of Q4_K, Q5_K and Q6_K are striped so that one byte serves
// values 16, 32 or 64 apart; the decoders say how. NVFP4's 16-value groups have halves of 8.
//
// Safetensors formats decode one value at a time: e4m3(byte) · scale of its block; e2m1(nibble) · e4m3(scale
// of its 16) · global scale.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

#ifdef __CUDACC__
#define QUERN_HD __host__ __device__ __forceinline__
#else
#define QUERN_HD inline
#endif

namespace quern {

namespace quant {

#define QUERN_GRID(type, name, size) inline constexpr type name[size]
#include "ops/iq_grids.inc"
#undef QUERN_GRID
#ifdef __CUDACC__
namespace device {
#define QUERN_GRID(type, name, size) static __device__ const type name[size]
#include "ops/iq_grids.inc"
#undef QUERN_GRID
}  // namespace device
#endif
#ifdef __CUDA_ARCH__
#define QUERN_GRID_ENTRY(name, i) device::name[i]
#else
#define QUERN_GRID_ENTRY(name, i) name[i]
#endif

QUERN_HD float bits_to_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
#endif
}

QUERN_HD float half_to_float(uint16_t h) {
#ifdef __CUDA_ARCH__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x400u) return bits_to_float(sign | ((rest << 13) + 0x38000000u));
  const float tiny = static_cast<float>(rest) * 0x1p-24f;
  return sign ? -tiny : tiny;
#endif
}

QUERN_HD float bf16_to_float(uint16_t b) { return bits_to_float(static_cast<uint32_t>(b) << 16); }

// OCP FP8 E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN.
QUERN_HD float e4m3_to_float(uint8_t v) {
  const uint32_t sign = static_cast<uint32_t>(v & 0x80u) << 24;
  const uint32_t rest = v & 0x7fu;
  if (rest == 0x7fu) return bits_to_float(0x7fc00000u);
  if (rest >= 8u) return bits_to_float(sign | ((rest << 20) + 0x3c000000u));
  const float tiny = static_cast<float>(rest) * 0x1p-9f;
  return sign ? -tiny : tiny;
}

// 2^(e - 127), the E8M0 scale of MXFP4; e = 0 gives the subnormal 2^-127, 255 infinity.
QUERN_HD float e8m0_to_float(uint8_t e) {
  return bits_to_float(e == 0 ? 0x00400000u : static_cast<uint32_t>(e) << 23);
}

// Twice the OCP FP4 E2M1 value of a nibble: ±{0, 1, 2, 3, 4, 6, 8, 12}.
QUERN_HD int e2m1_twice(uint32_t nibble) {
  const int magnitude = static_cast<int>((0x0c08060403020100ull >> (8 * (nibble & 7u))) & 0xffu);
  return nibble & 8u ? -magnitude : magnitude;
}
QUERN_HD float e2m1_to_float(uint32_t nibble) { return 0.5f * static_cast<float>(e2m1_twice(nibble)); }

// The 16 levels of IQ4_NL and IQ4_XS.
QUERN_HD int iq4_level(uint32_t nibble) {
  // -127 -104 -83 -65 -49 -35 -22 -10 | 1 13 25 38 53 69 89 113, a byte each, lowest first
  const uint64_t half = nibble & 8u ? 0x7159453526190d01ull : 0xf6eaddcfbfad9881ull;
  return static_cast<int8_t>(half >> (8 * (nibble & 7u)));
}

// The sign byte of a 7-bit sign code: its eighth bit makes the number of ones even.
QUERN_HD uint32_t sign_byte(uint32_t code) {
  uint32_t p = code ^ (code >> 4);
  p ^= p >> 2;
  p ^= p >> 1;
  return code | ((p & 1u) << 7);
}

struct BlockQ8_0 {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d;
  int8_t q[32];
};
struct BlockQ4_0 {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d;
  uint8_t q[16];
};
struct BlockQ4_1 {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d, m;
  uint8_t q[16];
};
struct BlockQ5_0 {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d;
  uint8_t h[4];
  uint8_t q[16];
};
struct BlockQ5_1 {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d, m;
  uint8_t h[4];
  uint8_t q[16];
};
struct BlockQ2_K {
  static constexpr int kValues = 256, kGroup = 16;
  uint8_t s[16];
  uint8_t q[64];
  uint16_t d, m;
};
struct BlockQ3_K {
  static constexpr int kValues = 256, kGroup = 16;
  uint8_t h[32];
  uint8_t q[64];
  uint8_t s[12];
  uint16_t d;
};
struct BlockQ4_K {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d, m;
  uint8_t s[12];
  uint8_t q[128];
};
struct BlockQ5_K {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d, m;
  uint8_t s[12];
  uint8_t h[32];
  uint8_t q[128];
};
struct BlockQ6_K {
  static constexpr int kValues = 256, kGroup = 16;
  uint8_t q[128];
  uint8_t h[64];
  int8_t s[16];
  uint16_t d;
};
struct BlockIQ4_NL {
  static constexpr int kValues = 32, kGroup = 32;
  uint16_t d;
  uint8_t q[16];
};
struct BlockIQ4_XS {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d, sh;
  uint8_t sl[4];
  uint8_t q[128];
};
struct BlockMXFP4 {
  static constexpr int kValues = 32, kGroup = 32;
  uint8_t e;
  uint8_t q[16];
};
struct BlockNVFP4 {
  static constexpr int kValues = 64, kGroup = 16;
  uint8_t s[4];
  uint8_t q[32];
};
struct BlockIQ2_XXS {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d;
  uint16_t q[32];  // per group of 32: four index bytes, then a u32 of four sign codes and the scale
};
struct BlockIQ2_XS {
  static constexpr int kValues = 256, kGroup = 16;
  uint16_t d;
  uint16_t q[32];  // 9 bits of index, 7 of sign code, for 8 values each
  uint8_t s[8];
};
struct BlockIQ2_S {
  static constexpr int kValues = 256, kGroup = 16;
  uint16_t d;
  uint8_t q[32];
  uint8_t signs[32];
  uint8_t h[8];
  uint8_t s[8];
};
struct BlockIQ3_XXS {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d;
  uint8_t q[64];
  uint8_t s[32];  // eight u32: four sign codes and the scale
};
struct BlockIQ3_S {
  static constexpr int kValues = 256, kGroup = 32;
  uint16_t d;
  uint8_t q[64];
  uint8_t h[8];
  uint8_t signs[32];
  uint8_t s[4];
};
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockMXFP4) == 17 && sizeof(BlockNVFP4) == 36 && sizeof(BlockIQ2_XXS) == 66);
static_assert(sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82 && sizeof(BlockIQ3_XXS) == 98);
static_assert(sizeof(BlockIQ3_S) == 110);

// The 6-bit scale and minimum of group g of Q4_K and Q5_K: groups 0-3 lie in the low 6 bits of bytes g and
// g+4; of groups 4-7 the low 4 bits share byte g+4 and the high 2 top bytes g-4 and g.
QUERN_HD int k_scale(const uint8_t* s, int g) {
  return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
}
QUERN_HD int k_min(const uint8_t* s, int g) {
  return g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
}
// The 6-bit scale of group g of Q3_K, already less 32: 4 low bits in bytes 0-7, 2 high bits in bytes 8-11.
QUERN_HD int q3_scale(const uint8_t* s, int g) {
  const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
  return (low | (((s[8 + (g & 3)] >> (2 * (g >> 2))) & 3) << 4)) - 32;
}
QUERN_HD int iq4_xs_scale(const BlockIQ4_XS& b, int g) {
  return (((b.sl[g >> 1] >> (4 * (g & 1))) & 15) | (((b.sh >> (2 * g)) & 3) << 4)) - 32;
}

QUERN_HD void decode_group(const BlockQ8_0& b, int, float* out) {
  const float d = half_to_float(b.d);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(b.q[j]);
}
QUERN_HD void decode_group(const BlockQ4_0& b, int, float* out) {
  const float d = half_to_float(b.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((b.q[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((b.q[j] >> 4) - 8);
  }
}
QUERN_HD void decode_group(const BlockQ4_1& b, int, float* out) {
  const float d = half_to_float(b.d), m = half_to_float(b.m);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(b.q[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(b.q[j] >> 4) + m;
  }
}
QUERN_HD void decode_group(const BlockQ5_0& b, int, float* out) {
  const float d = half_to_float(b.d);
  for (int j = 0; j < 16; ++j) {
    const int low = (b.h[j >> 3] >> (j & 7)) & 1, high = (b.h[2 + (j >> 3)] >> (j & 7)) & 1;
    out[j] = d * static_cast<float>(((b.q[j] & 15) | (low << 4)) - 16);
    out[j + 16] = d * static_cast<float>(((b.q[j] >> 4) | (high << 4)) - 16);
  }
}
QUERN_HD void decode_group(const BlockQ5_1& b, int, float* out) {
  const float d = half_to_float(b.d), m = half_to_float(b.m);
  for (int j = 0; j < 16; ++j) {
    const int low = (b.h[j >> 3] >> (j & 7)) & 1, high = (b.h[2 + (j >> 3)] >> (j & 7)) & 1;
    out[j] = d * static_cast<float>((b.q[j] & 15) | (low << 4)) + m;
    out[j + 16] = d * static_cast<float>((b.q[j] >> 4) | (high << 4)) + m;
  }
}
// A 128-value half has 32 bytes; its group r of 16 takes bits 2·(r div 2) of the first or the last 16 of
// them.
QUERN_HD void decode_group(const BlockQ2_K& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(b.s[g] & 15);
  const float m = half_to_float(b.m) * static_cast<float>(b.s[g] >> 4);
  const uint8_t* q = b.q + 32 * (g >> 3) + 16 * (g & 1);
  const int shift = 2 * ((g & 7) >> 1);
  for (int j = 0; j < 16; ++j) out[j] = d * static_cast<float>((q[j] >> shift) & 3) - m;
}
// Low bits as Q2_K; the third bit is bit g div 2 of h, inverted.
QUERN_HD void decode_group(const BlockQ3_K& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(q3_scale(b.s, g));
  const uint8_t* q = b.q + 32 * (g >> 3) + 16 * (g & 1);
  const uint8_t* h = b.h + 16 * (g & 1);
  const int shift = 2 * ((g & 7) >> 1);
  for (int j = 0; j < 16; ++j)
    out[j] = d * static_cast<float>(((q[j] >> shift) & 3) - ((h[j] >> (g >> 1)) & 1 ? 0 : 4));
}
// Groups 2i and 2i+1 are the low and high nibbles of 32 bytes.
QUERN_HD void decode_group(const BlockQ4_K& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(k_scale(b.s, g));
  const float m = half_to_float(b.m) * static_cast<float>(k_min(b.s, g));
  const uint8_t* q = b.q + 32 * (g >> 1);
  const int shift = 4 * (g & 1);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>((q[j] >> shift) & 15) - m;
}
// As Q4_K; the fifth bit is bit g of h.
QUERN_HD void decode_group(const BlockQ5_K& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(k_scale(b.s, g));
  const float m = half_to_float(b.m) * static_cast<float>(k_min(b.s, g));
  const uint8_t* q = b.q + 32 * (g >> 1);
  const int shift = 4 * (g & 1);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(((q[j] >> shift) & 15) | (((b.h[j] >> g) & 1) << 4)) - m;
}
// A 128-value half has 64 bytes of nibbles and 32 of high bits; its quarter c takes nibble c div 2 of bytes
// 32·(c mod 2) …, and bits 2c of the high bytes.
QUERN_HD void decode_group(const BlockQ6_K& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(b.s[g]);
  const int half = g >> 3, quarter = (g & 7) >> 1, odd = g & 1;
  const uint8_t* q = b.q + 64 * half + 32 * (quarter & 1) + 16 * odd;
  const uint8_t* h = b.h + 32 * half + 16 * odd;
  for (int j = 0; j < 16; ++j) {
    const int low = (q[j] >> (4 * (quarter >> 1))) & 15, high = (h[j] >> (2 * quarter)) & 3;
    out[j] = d * static_cast<float>((low | (high << 4)) - 32);
  }
}
QUERN_HD void decode_group(const BlockIQ4_NL& b, int, float* out) {
  const float d = half_to_float(b.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(iq4_level(b.q[j] & 15u));
    out[j + 16] = d * static_cast<float>(iq4_level(b.q[j] >> 4));
  }
}
QUERN_HD void decode_group(const BlockIQ4_XS& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(iq4_xs_scale(b, g));
  const uint8_t* q = b.q + 16 * g;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(iq4_level(q[j] & 15u));
    out[j + 16] = d * static_cast<float>(iq4_level(q[j] >> 4));
  }
}
QUERN_HD void decode_group(const BlockMXFP4& b, int, float* out) {
  const float d = e8m0_to_float(b.e) * 0.5f;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(e2m1_twice(b.q[j] & 15u));
    out[j + 16] = d * static_cast<float>(e2m1_twice(b.q[j] >> 4));
  }
}
QUERN_HD void decode_group(const BlockNVFP4& b, int g, float* out) {
  const float d = e4m3_to_float(b.s[g] & 0x7f) * 0.5f;
  const uint8_t* q = b.q + 8 * g;
  for (int j = 0; j < 8; ++j) {
    out[j] = d * static_cast<float>(e2m1_twice(q[j] & 15u));
    out[j + 8] = d * static_cast<float>(e2m1_twice(q[j] >> 4));
  }
}

// n magnitudes of a grid entry with their signs.
QUERN_HD void decode_grid(uint64_t entry, uint32_t signs, int n, float d, float* out) {
  for (int j = 0; j < n; ++j) {
    const float v = d * static_cast<float>((entry >> (8 * j)) & 0xffu);
    out[j] = (signs >> j) & 1u ? -v : v;
  }
}
QUERN_HD void decode_group(const BlockIQ2_XXS& b, int g, float* out) {
  const uint16_t* q = b.q + 4 * g;
  const uint32_t index = q[0] | static_cast<uint32_t>(q[1]) << 16;
  const uint32_t signs = q[2] | static_cast<uint32_t>(q[3]) << 16;
  const float d = half_to_float(b.d) * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
  for (int i = 0; i < 4; ++i)
    decode_grid(QUERN_GRID_ENTRY(kIq2XxsGrid, (index >> (8 * i)) & 0xffu),
                sign_byte((signs >> (7 * i)) & 0x7fu), 8, d, out + 8 * i);
}
QUERN_HD void decode_group(const BlockIQ2_XS& b, int g, float* out) {
  const float d =
      half_to_float(b.d) * (0.5f + static_cast<float>((b.s[g >> 1] >> (4 * (g & 1))) & 15)) * 0.25f;
  for (int i = 0; i < 2; ++i) {
    const uint32_t q = b.q[2 * g + i];
    decode_grid(QUERN_GRID_ENTRY(kIq2XsGrid, q & 511u), sign_byte(q >> 9), 8, d, out + 8 * i);
  }
}
QUERN_HD void decode_group(const BlockIQ2_S& b, int g, float* out) {
  const float d =
      half_to_float(b.d) * (0.5f + static_cast<float>((b.s[g >> 1] >> (4 * (g & 1))) & 15)) * 0.25f;
  for (int i = 0; i < 2; ++i) {
    const int k = 2 * g + i;
    const uint32_t index = b.q[k] | (((b.h[k >> 2] >> (2 * (k & 3))) & 3u) << 8);
    decode_grid(QUERN_GRID_ENTRY(kIq2SGrid, index), b.signs[k], 8, d, out + 8 * i);
  }
}
QUERN_HD void decode_group(const BlockIQ3_XXS& b, int g, float* out) {
  const uint8_t* s = b.s + 4 * g;
  const uint32_t signs = s[0] | s[1] << 8 | s[2] << 16 | static_cast<uint32_t>(s[3]) << 24;
  const float d = half_to_float(b.d) * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
  for (int i = 0; i < 8; ++i)
    decode_grid(QUERN_GRID_ENTRY(kIq3XxsGrid, b.q[8 * g + i]),
                sign_byte((signs >> (7 * (i >> 1))) & 0x7fu) >> (4 * (i & 1)), 4, d, out + 4 * i);
}
QUERN_HD void decode_group(const BlockIQ3_S& b, int g, float* out) {
  const float d = half_to_float(b.d) * static_cast<float>(1 + 2 * ((b.s[g >> 1] >> (4 * (g & 1))) & 15));
  for (int i = 0; i < 8; ++i) {
    const uint32_t index = b.q[8 * g + i] | (((b.h[g] >> i) & 1u) << 8);
    decode_grid(QUERN_GRID_ENTRY(kIq3SGrid, index),
                static_cast<uint32_t>(b.signs[4 * g + (i >> 1)]) >> (4 * (i & 1)), 4, d, out + 4 * i);
  }
}

template <typename Block>
QUERN_HD void decode_block(const Block& b, float* out) {
  for (int g = 0; g < Block::kValues / Block::kGroup; ++g) decode_group(b, g, out + g * Block::kGroup);
}

// fn.template operator()<Block>() for the block type of a GGUF dtype; false for every other dtype.
template <typename F>
bool with_block_type(DType dtype, F&& fn) {
  switch (dtype) {
    case DType::Q8_0:
      fn.template operator()<BlockQ8_0>();
      return true;
    case DType::Q4_0:
      fn.template operator()<BlockQ4_0>();
      return true;
    case DType::Q4_1:
      fn.template operator()<BlockQ4_1>();
      return true;
    case DType::Q5_0:
      fn.template operator()<BlockQ5_0>();
      return true;
    case DType::Q5_1:
      fn.template operator()<BlockQ5_1>();
      return true;
    case DType::Q2_K:
      fn.template operator()<BlockQ2_K>();
      return true;
    case DType::Q3_K:
      fn.template operator()<BlockQ3_K>();
      return true;
    case DType::Q4_K:
      fn.template operator()<BlockQ4_K>();
      return true;
    case DType::Q5_K:
      fn.template operator()<BlockQ5_K>();
      return true;
    case DType::Q6_K:
      fn.template operator()<BlockQ6_K>();
      return true;
    case DType::IQ4_NL:
      fn.template operator()<BlockIQ4_NL>();
      return true;
    case DType::IQ4_XS:
      fn.template operator()<BlockIQ4_XS>();
      return true;
    case DType::MXFP4:
      fn.template operator()<BlockMXFP4>();
      return true;
    case DType::NVFP4:
      fn.template operator()<BlockNVFP4>();
      return true;
    case DType::IQ2_XXS:
      fn.template operator()<BlockIQ2_XXS>();
      return true;
    case DType::IQ2_XS:
      fn.template operator()<BlockIQ2_XS>();
      return true;
    case DType::IQ2_S:
      fn.template operator()<BlockIQ2_S>();
      return true;
    case DType::IQ3_XXS:
      fn.template operator()<BlockIQ3_XXS>();
      return true;
    case DType::IQ3_S:
      fn.template operator()<BlockIQ3_S>();
      return true;
    default:
      return false;
  }
}

}  // namespace quant

// Host only: out[0 … k) = the k values of one row of `dtype`, k a whole number of blocks. F32, F16, BF16,
// F8E4M3 (without its scales) and every block type; any other is a bug of the caller. `row` needs no
// alignment.
void decode_row(DType dtype, const std::byte* row, int64_t k, float* out);

}  // namespace quern

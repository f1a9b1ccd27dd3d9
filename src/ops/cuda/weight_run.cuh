// How kernels read weights: in runs of 16 neighbouring elements of a row, turned into eight words of two BF16.
//
// A format is a type with
//   Raw                      what a run is in memory; zero bytes decode to zeros
//   load(raw, w, row, k)     k a multiple of 16; a run at or beyond w.k, or a row at or beyond w.n, is zeros
//   load_wide(raw, …)        the same from pointers to the row and its scales, where w.wide holds, without a branch
//   decode(raw, words)       words hold elements (2i, 2i + 1), of 4-bit codes (i, i + 4) of each eight; the scales of
//                            blocks and rows, and kRest, are left out
//   decode_ordered(…)        for the prefill kernels: words hold elements (2i, 2i + 1), every scale but the
//                            global one applied
// The mantissas of E4M3, of E2M1 · E4M3 and of 4-bit integers fit a BF16, so `decode` is exact for them; other
// formats are rounded to BF16 once.
#pragma once

#include <cstring>

#include "ops/cuda/mma.cuh"
#include "ops/quant_formats.h"
#include "ops/scalar.h"
#include "ops/weight.h"
#include "tensor/stream.h"

namespace quern::cuda {

enum class WeightKind : int32_t { F32, F16, BF16, F8Block, F8Row, F4, Blocks };

// A Weight as kernels take it.
struct WeightView {
  const uint8_t* data = nullptr;
  const void* scale = nullptr;
  const float* global_scales = nullptr;  // per expert; null: `global_scale`
  int64_t row_bytes = 0;
  int64_t scale_stride = 0;   // elements from one row of scales to the next
  int64_t expert_bytes = 0;   // from one expert to the next
  int64_t expert_scales = 0;  // scale elements from one expert to the next
  int32_t n = 0, k = 0;
  float global_scale = 1;
  WeightKind kind = WeightKind::F32;
  DType dtype = DType::F32;
  bool scale_is_bf16 = false;
  bool wide = false;  // runs may be read with wide loads: aligned, k a multiple of 16

  __device__ __forceinline__ WeightView expert(int e) const {
    WeightView w = *this;
    w.data += e * expert_bytes;
    if (kind == WeightKind::F4) {
      w.scale = static_cast<const uint8_t*>(scale) + e * expert_scales;
    } else if (scale_is_bf16) {
      w.scale = static_cast<const uint16_t*>(scale) + e * expert_scales;
    } else {
      w.scale = static_cast<const float*>(scale) + e * expert_scales;
    }
    if (global_scales) w.global_scale = global_scales[e];
    return w;
  }
  __device__ __forceinline__ float scale_at(int64_t i) const {
    return scale_is_bf16 ? quant::bf16_to_float(static_cast<const uint16_t*>(scale)[i])
                         : static_cast<const float*>(scale)[i];
  }
  __device__ __forceinline__ const uint8_t* row_of(int row) const {
    return data + min(row, n - 1) * row_bytes;
  }
  __device__ __forceinline__ const uint8_t* scales_of(int row) const {
    return static_cast<const uint8_t*>(scale) + min(row, n - 1) * scale_stride;
  }
  // The factor of a whole row that runs leave out.
  __device__ __forceinline__ float row_factor(int row) const {
    return kind == WeightKind::F8Row ? (row < n ? scale_at(row * scale_stride) : 0.0f) : global_scale;
  }
  // Of the 128×128 block that holds (row, k).
  __device__ __forceinline__ float block_scale(int row, int k) const {
    return row < n && k < this->k ? scale_at((row >> 7) * scale_stride + (k >> 7)) : 0.0f;
  }
};

WeightView weight_view(const Weight& w);
// `w`, or its values in BF16 scratch of the stream where it cannot be read in wide runs.
WeightView wide_view(Stream& s, const WeightView& w);
WeightView weight_view(const ExpertWeights& w);

// ---- pieces ----

// Four E4M3 bytes to two words of BF16, exactly: the code's exponent and mantissa moved to a BF16's place
// give value · 2^-120, subnormals included.
__device__ __forceinline__ void e4m3_words(uint32_t bytes, uint32_t& w0, uint32_t& w1) {
  const uint32_t a = __byte_perm(bytes, 0, 0x1404), b = __byte_perm(bytes, 0, 0x3424);  // byte << 8 in halves
  const uint32_t x = (a & 0x80008000u) | ((a & 0x7f007f00u) >> 4);
  const uint32_t y = (b & 0x80008000u) | ((b & 0x7f007f00u) >> 4);
  w0 = mul_bf16x2(x, 0x7b807b80u);  // 2^120
  w1 = mul_bf16x2(y, 0x7b807b80u);
}
// Eight E2M1 codes to four words: word i holds codes i and i + 4, times `factor` · 2^-126.
__device__ __forceinline__ void e2m1_words(uint32_t codes, uint32_t factor, uint32_t* w) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t c = codes >> (4 * i);
    w[i] = mul_bf16x2(((c << 12) & 0x80008000u) | ((c << 6) & 0x01c001c0u), factor);
  }
}
// An E4M3 scale times 2^117 in both halves: with e2m1_words' 2^-126 the product is value · scale · 2^-9.
__device__ __forceinline__ uint32_t f4_factor(uint32_t scale_byte) {
  const uint32_t x = ((scale_byte & 0x80u) << 8) | ((scale_byte & 0x7fu) << 4);  // scale · 2^-120
  const uint32_t one = mul_bf16x2(x, 0x7b80u);                                   // · 2^120
  return mul_bf16x2(one * 0x10001u, 0x7a007a00u);                                // · 2^117
}
inline constexpr float kF4Rest = 512.0f;  // what f4_factor leaves out

// Weights are read once and in program order.
__device__ __forceinline__ uint4 load_once16(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_once8(const uint8_t* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

__device__ __forceinline__ void put16(uint32_t* w, const uint4& v) {
  w[0] = v.x;
  w[1] = v.y;
  w[2] = v.z;
  w[3] = v.w;
}

// Bytes [offset, offset + 4 n) of a row, zeros from `end` on, one by one: short or unaligned rows.
__device__ __forceinline__ void load_bytes_singly(uint32_t* words, const uint8_t* row, int64_t offset,
                                                  int64_t end, int n) {
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    uint32_t word = 0;
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      if (offset + 4 * i + b < end) word |= static_cast<uint32_t>(row[offset + 4 * i + b]) << (8 * b);
    }
    words[i] = word;
  }
}
template <int kBytes>
__device__ __forceinline__ void load_bytes(uint32_t* raw, const uint8_t* row, int64_t offset, int64_t end,
                                           bool wide) {
  if (wide) {
    if (offset >= end) return;
    if constexpr (kBytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        const uint4 v = load_once16(row + offset + 16 * i);
        raw[4 * i] = v.x;
        raw[4 * i + 1] = v.y;
        raw[4 * i + 2] = v.z;
        raw[4 * i + 3] = v.w;
      }
    } else {
      const uint2 v = load_once8(row + offset);
      raw[0] = v.x;
      raw[1] = v.y;
    }
    return;
  }
  uint32_t words[kBytes / 4];
  load_bytes_singly(words, row, offset, end, kBytes / 4);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) raw[i] = words[i];
}

__device__ __forceinline__ void pair_order(const uint32_t* f4, uint32_t* ordered) {
#pragma unroll
  for (int h = 0; h < 8; h += 4) {
    ordered[h] = __byte_perm(f4[h], f4[h + 1], 0x5410);
    ordered[h + 1] = __byte_perm(f4[h + 2], f4[h + 3], 0x5410);
    ordered[h + 2] = __byte_perm(f4[h], f4[h + 1], 0x7632);
    ordered[h + 3] = __byte_perm(f4[h + 2], f4[h + 3], 0x7632);
  }
}

// ---- formats ----

struct RunF32 {
  static constexpr WeightKind kKind = WeightKind::F32;
  struct Raw {
    alignas(16) uint32_t w[16];
  };
  static constexpr float kRest = 1;
  __device__ static __forceinline__ void load(Raw& r, const WeightView& w, int row, int k) {
    r = {};
    if (row < w.n) load_bytes<64>(r.w, w.data + row * w.row_bytes, int64_t{k} * 4, int64_t{w.k} * 4, w.wide);
  }
  __device__ static __forceinline__ void load_wide(Raw& r, const uint8_t* row, const uint8_t*, int k, DType) {
#pragma unroll
    for (int i = 0; i < 4; ++i) put16(r.w + 4 * i, load_once16(row + 4 * k + 16 * i));
  }
  __device__ static __forceinline__ void decode(const Raw& r, uint32_t* out) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = pack_bf16(__uint_as_float(r.w[2 * i]), __uint_as_float(r.w[2 * i + 1]));
  }
  __device__ static __forceinline__ void decode_ordered(const Raw& r, const WeightView&, int, int,
                                                        uint32_t* out) {
    decode(r, out);
  }
};

template <bool kIsF16>
struct Run16 {
  static constexpr WeightKind kKind = kIsF16 ? WeightKind::F16 : WeightKind::BF16;
  struct Raw {
    alignas(16) uint32_t w[8];
  };
  static constexpr float kRest = 1;
  __device__ static __forceinline__ void load(Raw& r, const WeightView& w, int row, int k) {
    r = {};
    if (row < w.n) load_bytes<32>(r.w, w.data + row * w.row_bytes, int64_t{k} * 2, int64_t{w.k} * 2, w.wide);
  }
  __device__ static __forceinline__ void load_wide(Raw& r, const uint8_t* row, const uint8_t*, int k, DType) {
    put16(r.w, load_once16(row + 2 * k));
    put16(r.w + 4, load_once16(row + 2 * k + 16));
  }
  __device__ static __forceinline__ void decode(const Raw& r, uint32_t* out) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kIsF16) {
        out[i] = pack_bf16(quant::half_to_float(r.w[i] & 0xffffu), quant::half_to_float(r.w[i] >> 16));
      } else {
        out[i] = r.w[i];
      }
    }
  }
  __device__ static __forceinline__ void decode_ordered(const Raw& r, const WeightView&, int, int,
                                                        uint32_t* out) {
    decode(r, out);
  }
};

template <bool kBlocks>
struct RunF8 {
  static constexpr WeightKind kKind = kBlocks ? WeightKind::F8Block : WeightKind::F8Row;
  struct Raw {
    alignas(16) uint32_t w[4];
  };
  static constexpr float kRest = 1;
  __device__ static __forceinline__ void load(Raw& r, const WeightView& w, int row, int k) {
    r = {};
    if (row < w.n) load_bytes<16>(r.w, w.data + row * w.row_bytes, k, w.k, w.wide);
  }
  __device__ static __forceinline__ void load_wide(Raw& r, const uint8_t* row, const uint8_t*, int k, DType) {
    put16(r.w, load_once16(row + k));
  }
  __device__ static __forceinline__ void decode(const Raw& r, uint32_t* out) {
#pragma unroll
    for (int i = 0; i < 4; ++i) e4m3_words(r.w[i], out[2 * i], out[2 * i + 1]);
  }
  __device__ static __forceinline__ void decode_ordered(const Raw& r, const WeightView& w, int row, int k,
                                                        uint32_t* out) {
    decode(r, out);
    if constexpr (kBlocks) {
      const float scale = w.block_scale(row, k);
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = pack_bf16(bf16_low(out[i]) * scale, bf16_high(out[i]) * scale);
    }
  }
};

struct RunF4 {
  static constexpr WeightKind kKind = WeightKind::F4;
  struct Raw {
    alignas(8) uint32_t w[2];
    uint32_t scale;
  };
  static constexpr float kRest = kF4Rest;
  __device__ static __forceinline__ void load(Raw& r, const WeightView& w, int row, int k) {
    r = {};
    if (row >= w.n || k >= w.k) return;
    load_bytes<8>(r.w, w.data + row * w.row_bytes, k / 2, w.k / 2, w.wide);
    r.scale = __ldg(static_cast<const uint8_t*>(w.scale) + row * w.scale_stride + k / 16);
  }
  __device__ static __forceinline__ void load_wide(Raw& r, const uint8_t* row, const uint8_t* scales, int k,
                                                   DType) {
    const uint2 v = load_once8(row + k / 2);
    r.w[0] = v.x;
    r.w[1] = v.y;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(r.scale) : "l"(scales + k / 16));
  }
  __device__ static __forceinline__ void decode(const Raw& r, uint32_t* out) {
    const uint32_t factor = f4_factor(r.scale);
    e2m1_words(r.w[0], factor, out);
    e2m1_words(r.w[1], factor, out + 4);
  }
  __device__ static __forceinline__ void decode_ordered(const Raw& r, const WeightView&, int, int,
                                                        uint32_t* out) {
    uint32_t split[8];
    decode(r, split);
    pair_order(split, out);
  }
};

// GGUF block types, through the one decoder of ops/quant_formats.h. A call, not inlined: one body for all.
template <typename Block>
__device__ __forceinline__ void block_run(const uint8_t* row, int k, uint32_t* out) {
  const Block& block = reinterpret_cast<const Block*>(row)[k / Block::kValues];
  const int at = k % Block::kValues;
  float v[Block::kGroup];
  quant::decode_group(block, at / Block::kGroup, v);
  const bool second = Block::kGroup == 32 && at % 32 == 16;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float lo = second ? v[(2 * i + 16) % Block::kGroup] : v[2 * i];
    const float hi = second ? v[(2 * i + 17) % Block::kGroup] : v[2 * i + 1];
    out[i] = pack_bf16(lo, hi);
  }
}
static __device__ __noinline__ void any_block_run(DType dtype, const uint8_t* row, int k, uint32_t* out) {
  switch (dtype) {
    case DType::Q8_0:
      return block_run<quant::BlockQ8_0>(row, k, out);
    case DType::Q4_0:
      return block_run<quant::BlockQ4_0>(row, k, out);
    case DType::Q4_1:
      return block_run<quant::BlockQ4_1>(row, k, out);
    case DType::Q5_0:
      return block_run<quant::BlockQ5_0>(row, k, out);
    case DType::Q5_1:
      return block_run<quant::BlockQ5_1>(row, k, out);
    case DType::Q2_K:
      return block_run<quant::BlockQ2_K>(row, k, out);
    case DType::Q3_K:
      return block_run<quant::BlockQ3_K>(row, k, out);
    case DType::Q4_K:
      return block_run<quant::BlockQ4_K>(row, k, out);
    case DType::Q5_K:
      return block_run<quant::BlockQ5_K>(row, k, out);
    case DType::Q6_K:
      return block_run<quant::BlockQ6_K>(row, k, out);
    case DType::IQ4_NL:
      return block_run<quant::BlockIQ4_NL>(row, k, out);
    case DType::IQ4_XS:
      return block_run<quant::BlockIQ4_XS>(row, k, out);
    case DType::MXFP4:
      return block_run<quant::BlockMXFP4>(row, k, out);
    case DType::NVFP4:
      return block_run<quant::BlockNVFP4>(row, k, out);
    case DType::IQ2_XXS:
      return block_run<quant::BlockIQ2_XXS>(row, k, out);
    case DType::IQ2_XS:
      return block_run<quant::BlockIQ2_XS>(row, k, out);
    case DType::IQ2_S:
      return block_run<quant::BlockIQ2_S>(row, k, out);
    case DType::IQ3_XXS:
      return block_run<quant::BlockIQ3_XXS>(row, k, out);
    case DType::IQ3_S:
      return block_run<quant::BlockIQ3_S>(row, k, out);
    default:
      __trap();
  }
}

struct RunBlocks {
  static constexpr WeightKind kKind = WeightKind::Blocks;
  struct Raw {
    uint32_t w[8];
  };
  static constexpr float kRest = 1;
  __device__ static __forceinline__ void load(Raw& r, const WeightView& w, int row, int k) {
    r = {};
    if (row < w.n && k < w.k) {
      uint32_t out[8];
      any_block_run(w.dtype, w.data + row * w.row_bytes, k, out);
#pragma unroll
      for (int i = 0; i < 8; ++i) r.w[i] = out[i];
    }
  }
  __device__ static __forceinline__ void load_wide(Raw& r, const uint8_t* row, const uint8_t*, int k,
                                                   DType dtype) {
    uint32_t out[8];
    any_block_run(dtype, row, k, out);
#pragma unroll
    for (int i = 0; i < 8; ++i) r.w[i] = out[i];
  }
  __device__ static __forceinline__ void decode(const Raw& r, uint32_t* out) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = r.w[i];
  }
  __device__ static __forceinline__ void decode_ordered(const Raw& r, const WeightView&, int, int,
                                                        uint32_t* out) {
    decode(r, out);
  }
};

// Calls f with the format's type.
template <typename F>
void with_format_host(WeightKind kind, F&& f) {
  switch (kind) {
    case WeightKind::F8Block:
      return f(RunF8<true>{});
    case WeightKind::F4:
      return f(RunF4{});
    case WeightKind::BF16:
      return f(Run16<false>{});
    case WeightKind::F8Row:
      return f(RunF8<false>{});
    case WeightKind::F16:
      return f(Run16<true>{});
    case WeightKind::F32:
      return f(RunF32{});
    case WeightKind::Blocks:
      return f(RunBlocks{});
  }
}
template <typename F>
__device__ __forceinline__ void with_format(WeightKind kind, F&& f) {
  switch (kind) {
    case WeightKind::F8Block:
      f(RunF8<true>{});
      break;
    case WeightKind::F4:
      f(RunF4{});
      break;
    case WeightKind::BF16:
      f(Run16<false>{});
      break;
    case WeightKind::F8Row:
      f(RunF8<false>{});
      break;
    case WeightKind::F16:
      f(Run16<true>{});
      break;
    case WeightKind::F32:
      f(RunF32{});
      break;
    case WeightKind::Blocks:
      f(RunBlocks{});
      break;
  }
}

}  // namespace quern::cuda

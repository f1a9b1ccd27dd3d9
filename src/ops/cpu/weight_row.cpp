// Weight rows in f32: the values of ops/quant_formats.h bit for bit, sixteen codes at a time. Codes become signed
// bytes, bytes become floats, and each group is multiplied by its scale (and its minimum taken off), in that order,
// as the one decoder does. Grid formats and the scalar target go through that decoder itself.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/cpu/matmul.h"
#include "ops/quant_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/weight_row.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// out[i] = scale · codes[i], less `minimum` where the format has one; n is a multiple of 16.
template <bool kMinimum>
HWY_INLINE void emit(const int8_t* codes, int64_t n, float scale, float minimum, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    auto v = hn::Mul(hn::Set(d, scale), hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i))));
    if constexpr (kMinimum) v = hn::Sub(v, hn::Set(d, minimum));
    hn::StoreU(v, d, out + i);
  }
}

void Fp8Row(const uint8_t* bytes, int64_t n, float scale, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::PromoteTo(d32, hn::LoadU(d8, bytes + i));
    const auto rest = hn::And(v, hn::Set(d32, 0x7fu));
    const auto sign = hn::ShiftLeft<24>(hn::Xor(v, rest));
    // The exponent's bias differs by 120; the product is exact, subnormals included.
    auto f = hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(rest)), hn::Set(d, 0x1p120f));
    f = hn::BitCast(d, hn::Or(hn::BitCast(d32, f), sign));
    f = hn::IfThenElse(hn::RebindMask(d, hn::Eq(rest, hn::Set(d32, 0x7fu))),
                       hn::BitCast(d, hn::Set(d32, 0x7fc00000u)), f);
    hn::StoreU(hn::Mul(f, hn::Set(d, scale)), d, out + i);
  }
  for (; i < n; ++i) out[i] = quant::e4m3_to_float(bytes[i]) * scale;
}

#if HWY_TARGET != HWY_SCALAR
using Bytes = hn::FixedTag<uint8_t, 16>;
using Codes = hn::Vec<Bytes>;

HWY_INLINE Codes load(const uint8_t* p) { return hn::LoadU(Bytes(), p); }
HWY_INLINE Codes field(Codes v, int shift, uint8_t mask) {  // bits of each byte
  const hn::FixedTag<uint16_t, 8> d16;
  return hn::And(hn::BitCast(Bytes(), hn::ShiftRightSame(hn::BitCast(d16, v), shift)),
                 hn::Set(Bytes(), mask));
}
HWY_INLINE Codes low4(Codes v) { return hn::And(v, hn::Set(Bytes(), uint8_t{15})); }
HWY_INLINE Codes high4(Codes v) { return field(v, 4, 15); }
HWY_INLINE void store(Codes v, int8_t* codes) { hn::StoreU(v, Bytes(), reinterpret_cast<uint8_t*>(codes)); }
HWY_INLINE Codes less(Codes v, uint8_t n) { return hn::Sub(v, hn::Set(Bytes(), n)); }
// Bit j of 16 bits as byte j: 16 or 0.
HWY_INLINE Codes bits_as_16(const uint8_t* h) {
  HWY_ALIGN static constexpr uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  HWY_ALIGN uint8_t spread[16];
  std::memset(spread, h[0], 8);
  std::memset(spread + 8, h[1], 8);
  const auto bit = hn::Load(Bytes(), kBit);
  const auto set = hn::Eq(hn::And(hn::Load(Bytes(), spread), bit), bit);
  return hn::IfThenElseZero(set, hn::Set(Bytes(), uint8_t{16}));
}
HWY_INLINE Codes iq4_levels(Codes nibbles) {
  HWY_ALIGN static constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
  return hn::TableLookupBytes(hn::Load(Bytes(), reinterpret_cast<const uint8_t*>(kLevels)), nibbles);
}
HWY_INLINE Codes e2m1_levels(Codes nibbles) {
  HWY_ALIGN static constexpr int8_t kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return hn::TableLookupBytes(hn::Load(Bytes(), reinterpret_cast<const uint8_t*>(kLevels)), nibbles);
}

HWY_INLINE void decode(const quant::BlockQ8_0& b, int8_t*, float* out) {
  emit<false>(b.q, 32, quant::half_to_float(b.d), 0, out);
}
HWY_INLINE void decode(const quant::BlockQ4_0& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(less(low4(q), 8), codes);
  store(less(high4(q), 8), codes + 16);
  emit<false>(codes, 32, quant::half_to_float(b.d), 0, out);
}
HWY_INLINE void decode(const quant::BlockQ4_1& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(low4(q), codes);
  store(high4(q), codes + 16);
  emit<true>(codes, 32, quant::half_to_float(b.d), -quant::half_to_float(b.m), out);
}
HWY_INLINE void decode(const quant::BlockQ5_0& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(less(hn::Or(low4(q), bits_as_16(b.h)), 16), codes);
  store(less(hn::Or(high4(q), bits_as_16(b.h + 2)), 16), codes + 16);
  emit<false>(codes, 32, quant::half_to_float(b.d), 0, out);
}
HWY_INLINE void decode(const quant::BlockQ5_1& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(hn::Or(low4(q), bits_as_16(b.h)), codes);
  store(hn::Or(high4(q), bits_as_16(b.h + 2)), codes + 16);
  emit<true>(codes, 32, quant::half_to_float(b.d), -quant::half_to_float(b.m), out);
}
HWY_INLINE void decode(const quant::BlockQ2_K& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d), m = quant::half_to_float(b.m);
  for (int g = 0; g < 16; ++g) {
    store(field(load(b.q + 32 * (g >> 3) + 16 * (g & 1)), 2 * ((g & 7) >> 1), 3), codes);
    emit<true>(codes, 16, d * static_cast<float>(b.s[g] & 15), m * static_cast<float>(b.s[g] >> 4),
               out + 16 * g);
  }
}
HWY_INLINE void decode(const quant::BlockQ3_K& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d);
  for (int g = 0; g < 16; ++g) {
    const Codes low = field(load(b.q + 32 * (g >> 3) + 16 * (g & 1)), 2 * ((g & 7) >> 1), 3);
    const Codes high = field(load(b.h + 16 * (g & 1)), g >> 1, 1);
    store(less(hn::Add(low, hn::Add(hn::Add(high, high), hn::Add(high, high))), 4), codes);
    emit<false>(codes, 16, d * static_cast<float>(quant::q3_scale(b.s, g)), 0, out + 16 * g);
  }
}
HWY_INLINE void decode(const quant::BlockQ4_K& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d), m = quant::half_to_float(b.m);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* q = b.q + 32 * (g >> 1);
    store(field(load(q), 4 * (g & 1), 15), codes);
    store(field(load(q + 16), 4 * (g & 1), 15), codes + 16);
    emit<true>(codes, 32, d * static_cast<float>(quant::k_scale(b.s, g)),
               m * static_cast<float>(quant::k_min(b.s, g)), out + 32 * g);
  }
}
HWY_INLINE void decode(const quant::BlockQ5_K& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d), m = quant::half_to_float(b.m);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* q = b.q + 32 * (g >> 1);
    for (int i = 0; i < 32; i += 16) {
      const Codes high = field(load(b.h + i), g, 1);
      const hn::FixedTag<uint16_t, 8> d16;
      const Codes sixteen = hn::BitCast(Bytes(), hn::ShiftLeft<4>(hn::BitCast(d16, high)));
      store(hn::Or(field(load(q + i), 4 * (g & 1), 15), sixteen), codes + i);
    }
    emit<true>(codes, 32, d * static_cast<float>(quant::k_scale(b.s, g)),
               m * static_cast<float>(quant::k_min(b.s, g)), out + 32 * g);
  }
}
HWY_INLINE void decode(const quant::BlockQ6_K& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d);
  for (int g = 0; g < 16; ++g) {
    const int half = g >> 3, quarter = (g & 7) >> 1, odd = g & 1;
    const Codes low = field(load(b.q + 64 * half + 32 * (quarter & 1) + 16 * odd), 4 * (quarter >> 1), 15);
    const Codes high = field(load(b.h + 32 * half + 16 * odd), 2 * quarter, 3);
    const hn::FixedTag<uint16_t, 8> d16;
    store(less(hn::Or(low, hn::BitCast(Bytes(), hn::ShiftLeft<4>(hn::BitCast(d16, high)))), 32), codes);
    emit<false>(codes, 16, d * static_cast<float>(b.s[g]), 0, out + 16 * g);
  }
}
HWY_INLINE void decode(const quant::BlockIQ4_NL& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(iq4_levels(low4(q)), codes);
  store(iq4_levels(high4(q)), codes + 16);
  emit<false>(codes, 32, quant::half_to_float(b.d), 0, out);
}
HWY_INLINE void decode(const quant::BlockIQ4_XS& b, int8_t* codes, float* out) {
  const float d = quant::half_to_float(b.d);
  for (int g = 0; g < 8; ++g) {
    const Codes q = load(b.q + 16 * g);
    store(iq4_levels(low4(q)), codes);
    store(iq4_levels(high4(q)), codes + 16);
    emit<false>(codes, 32, d * static_cast<float>(quant::iq4_xs_scale(b, g)), 0, out + 32 * g);
  }
}
HWY_INLINE void decode(const quant::BlockMXFP4& b, int8_t* codes, float* out) {
  const Codes q = load(b.q);
  store(e2m1_levels(low4(q)), codes);
  store(e2m1_levels(high4(q)), codes + 16);
  emit<false>(codes, 32, quant::e8m0_to_float(b.e) * 0.5f, 0, out);
}
HWY_INLINE void decode(const quant::BlockNVFP4& b, int8_t* codes, float* out) {
  for (int g = 0; g < 4; g += 2) {
    const Codes q = load(b.q + 8 * g);  // two groups: low and high nibbles of 8 bytes each
    store(e2m1_levels(low4(q)), codes);
    store(e2m1_levels(high4(q)), codes + 16);
    for (int i = 0; i < 2; ++i) {
      HWY_ALIGN int8_t group[16];
      std::memcpy(group, codes + 8 * i, 8);
      std::memcpy(group + 8, codes + 16 + 8 * i, 8);
      emit<false>(group, 16, quant::e4m3_to_float(b.s[g + i] & 0x7f) * 0.5f, 0, out + 16 * (g + i));
    }
  }
}
// Grids: the one decoder.
template <class Block>
HWY_INLINE void decode(const Block& b, int8_t*, float* out) {
  quant::decode_block(b, out);
}

void BlockRow(DType dtype, const std::byte* row, int64_t k, float* out) {
  const bool known = quant::with_block_type(dtype, [&]<typename Block>() HWY_ATTR {
    HWY_ALIGN int8_t codes[32];
    // Read in place: loads from a fresh copy would wait for stores of other widths. Files align tensors; a row that is
    // not aligned goes through the copy.
    if (reinterpret_cast<uintptr_t>(row) % alignof(Block) != 0) return decode_row(dtype, row, k, out);
    const auto* blocks = reinterpret_cast<const Block*>(row);
    for (int64_t i = 0; i < k / Block::kValues; ++i) decode(blocks[i], codes, out + i * Block::kValues);
  });
  if (!known) decode_row(dtype, row, k, out);
}

void Fp4Row(const uint8_t* bytes, const uint8_t* scales, int64_t n, float global_scale, float* out) {
  HWY_ALIGN int8_t codes[32];
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const Codes q = load(bytes + i / 2);
    const Codes low = e2m1_levels(low4(q)), high = e2m1_levels(high4(q));
    store(hn::InterleaveLower(Bytes(), low, high), codes);
    store(hn::InterleaveUpper(Bytes(), low, high), codes + 16);
    for (int64_t j = 0; j < 2; ++j)
      emit<false>(codes + 16 * j, 16, 0.5f * (quant::e4m3_to_float(scales[i / 16 + j]) * global_scale), 0,
                  out + i + 16 * j);
  }
  for (; i < n; ++i) {
    const uint32_t nibble = i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15u;
    out[i] = quant::e2m1_to_float(nibble) * (quant::e4m3_to_float(scales[i / 16]) * global_scale);
  }
}

#else  // one lane: the one decoder does it all

void BlockRow(DType dtype, const std::byte* row, int64_t k, float* out) { decode_row(dtype, row, k, out); }
void Fp4Row(const uint8_t* bytes, const uint8_t* scales, int64_t n, float global_scale, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t nibble = i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15u;
    out[i] = quant::e2m1_to_float(nibble) * (quant::e4m3_to_float(scales[i / 16]) * global_scale);
  }
}
#endif

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quern {
HWY_EXPORT(BlockRow);
HWY_EXPORT(Fp8Row);
HWY_EXPORT(Fp4Row);

namespace cpu {

float fp8_scale(const Weight& w, int64_t r, int64_t column) {
  if (!w.scale) return w.global_scale;
  const bool per_row = w.scale.shape[0] == w.n() && w.scale.cols() == 1;
  const bool whole = w.scale.elements() == 1;
  const int64_t row = whole ? 0 : per_row ? r : r / 128, col = whole || per_row ? 0 : column / 128;
  const float scale = w.scale.dtype == DType::BF16 ? quant::bf16_to_float(w.scale.row<uint16_t>(row)[col])
                                                   : w.scale.row<float>(row)[col];
  return scale * w.global_scale;
}

void fp8_scales(const Weight& w, int64_t r, int64_t n, int64_t column, float* scales) {
  const bool per_row = w.scale && w.scale.cols() == 1;
  for (int64_t i = 0; i < n; ++i)
    scales[i] = i == 0 || per_row || (r + i) % 128 == 0 ? fp8_scale(w, r + i, column) : scales[i - 1];
}

void weight_row(const Weight& w, int64_t r, float* out) {
  const int64_t k = w.k();
  const std::byte* row = w.data.data + r * row_bytes(w.data.dtype, w.data.row_stride);
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (w.data.dtype) {
    case DType::F8E4M3:
      for (int64_t i = 0; i < k; i += 128)
        HWY_DYNAMIC_DISPATCH(Fp8Row)(bytes + i, std::min<int64_t>(k - i, 128), fp8_scale(w, r, i), out + i);
      return;
    case DType::F4E2M1:
      HWY_DYNAMIC_DISPATCH(Fp4Row)(bytes, w.scale.row<uint8_t>(r), k, w.global_scale, out);
      return;
    default:
      HWY_DYNAMIC_DISPATCH(BlockRow)(w.data.dtype, row, k, out);
      if (w.data.dtype != DType::NVFP4 || w.global_scale == 1) return;
      for (int64_t i = 0; i < k; ++i) out[i] *= w.global_scale;
  }
}

float* thread_scratch(int slot, int64_t n) {
  thread_local std::vector<float> buffers[4];
  auto& b = buffers[slot];
  if (static_cast<int64_t>(b.size()) < n) b.resize(static_cast<size_t>(n));
  return b.data();
}

}  // namespace cpu
}  // namespace quern
#endif

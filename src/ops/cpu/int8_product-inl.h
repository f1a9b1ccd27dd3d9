// Int8 products of one level (see vector-inl.h).
//
// kLanes weight rows are unpacked together, a stretch of columns at a time, into a panel:
//
//   codes [columns / 4][kLanes][4] u8      scale, minimum [groups][kLanes] f32
//
// Sixteen bytes of each row are loaded and transposed as 32-bit words before anything else, so that splitting
// nibbles or adding high bits works on whole vectors, and a vector of codes meets four activations of a row,
// broadcast. The panel serves all rows before the next stretch; sums wait in memory in between, as they are.

namespace quern::cpu::QUERN_LEVEL {

inline constexpr int kTileRows = QUERN_WIDE ? 6 : QUERN_VNNI ? 4 : 3;
inline constexpr int kPanels = 2;          // panels that a tile covers
inline constexpr int64_t kStretch = 512;   // columns of a panel: two panels fit the first-level cache
inline constexpr int64_t kRowBlock = 512;  // rows whose sums wait between stretches

struct Panel {
  alignas(64) uint8_t codes[kStretch * kLanes];
  alignas(64) float scale[kStretch / 16 * kLanes];
  alignas(64) float minimum[kStretch / 16 * kLanes];
};

// ---- unpacking ----

inline V nibble0(V v) { return bit_and(v, all8(15)); }
inline V nibble1(V v) { return bit_and(right16<4>(v), all8(15)); }
template <int kShift>
inline V bits(V v, uint8_t mask) {
  return bit_and(right16<kShift>(v), all8(mask));
}

// to[i] = the halves at `at` of block i of every row. Collected first and widened after: loads of bytes just
// stored by narrower stores would wait. One by one through registers: compilers else make vectors of them, at
// two shuffles each.
inline void half_scales(const Rows& rows, int64_t at, int64_t stride, int64_t n, float* to) {
  uint16_t h[kStretch / 32 * kLanes];
  for (int j = 0; j < kLanes; ++j) {
    const uint8_t* from = rows[j] + at;
    for (int64_t i = 0; i < n; ++i, from += stride) {
      uint16_t half;
      std::memcpy(&half, from, 2);
      h[i * kLanes + j] = unknown(half);
    }
  }
  for (int64_t i = 0; i < n; ++i) storef(to + i * kLanes, halves(h + i * kLanes));
}

alignas(16) inline constexpr int8_t kIq4Codes[16] = {1,    24,   45,   63,  79,  93,  106, 118,
                                                     -127, -115, -103, -90, -75, -59, -39, -15};
alignas(16) inline constexpr int8_t kE2m1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                      16, 15, 14, 13, 12, 10, 8,  4};
inline __m128i table(const int8_t* t) { return _mm_load_si128(reinterpret_cast<const __m128i*>(t)); }

// codes: the stretch's, n whole blocks of every row from rows[] on.
template <class Block>
struct Unpack;

struct AsIs {
  V operator()(V v) const { return v; }
};
struct Lookup {
  const int8_t* codes;
  V operator()(V v) const { return lookup(table(codes), v); }
};
// Blocks of 32 with nibbles in halves order at kAt, a half scale at 0, and maybe a half minimum at 2.
template <int kBytes, int kAt, bool kMinimum>
struct UnpackNibbles {
  template <class F>
  static void codes(const Rows& rows, int64_t n, uint8_t* to, F code) {
    for (int64_t i = 0; i < n; ++i, to += 8 * kVectorBytes) {
      V q[4];
      transpose(rows, i * kBytes + kAt, q);
      for (int j = 0; j < 4; ++j) {
        store(to + j * kVectorBytes, code(nibble0(q[j])));
        store(to + (j + 4) * kVectorBytes, code(nibble1(q[j])));
      }
    }
  }
  static void scales(const Rows& rows, int64_t n, Panel& p) {
    half_scales(rows, 0, kBytes, n, p.scale);
    if constexpr (kMinimum) half_scales(rows, 2, kBytes, n, p.minimum);
  }
};
template <>
struct Unpack<quant::BlockQ4_0> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    using Layout = UnpackNibbles<18, 2, false>;
    Layout::codes(rows, n, p.codes, AsIs());
    Layout::scales(rows, n, p);
  }
};
template <>
struct Unpack<quant::BlockQ4_1> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    using Layout = UnpackNibbles<20, 4, true>;
    Layout::codes(rows, n, p.codes, AsIs());
    Layout::scales(rows, n, p);
  }
};
template <>
struct Unpack<quant::BlockIQ4_NL> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    using Layout = UnpackNibbles<18, 2, false>;
    Layout::codes(rows, n, p.codes, Lookup{kIq4Codes});
    Layout::scales(rows, n, p);
  }
};
// Bits 4j … 4j + 3 of the 32 high bits as bytes of 16 or 0.
inline V fifth_bits(V high, int j) {
  alignas(16) static constexpr int8_t kSpread[4][16] = {
      {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12},
      {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13},
      {2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14, 14, 14},
      {3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15, 15, 15, 15}};
  V v = shuffle(high, table(kSpread[j / 2]));
  if (j % 2) v = right16<4>(v);
  v = bit_and(v, all32(0x08040201));
  alignas(16) static constexpr int8_t kSixteen[16] = {0,  16, 16, 16, 16, 16, 16, 16,
                                                      16, 16, 16, 16, 16, 16, 16, 16};
  return lookup(table(kSixteen), v);
}
// Nibbles at `at` of one block of every row, with the words of their high bits.
inline void five_bits(const Rows& rows, int64_t at, V high, uint8_t* to) {
  V q[4];
  transpose(rows, at, q);
  for (int j = 0; j < 4; ++j) {
    store(to + j * kVectorBytes, bit_or(nibble0(q[j]), fifth_bits(high, j)));
    store(to + (j + 4) * kVectorBytes, bit_or(nibble1(q[j]), fifth_bits(high, j + 4)));
  }
}
template <>
struct Unpack<quant::BlockQ5_0> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    for (int64_t i = 0; i < n; ++i) {
      V first[4];
      transpose(rows, i * 22, first);  // d and the low 16 high bits; the others and two bytes of nibbles
      five_bits(rows, i * 22 + 6, bit_or(right32<16>(first[0]), left32<16>(first[1])),
                p.codes + i * 8 * kVectorBytes);
      storef(p.scale + i * kLanes, low_half(first[0]));
    }
  }
};
template <>
struct Unpack<quant::BlockQ5_1> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    for (int64_t i = 0; i < n; ++i) {
      V first[4];
      transpose(rows, i * 24, first);  // d and m; the high bits
      five_bits(rows, i * 24 + 8, first[1], p.codes + i * 8 * kVectorBytes);
      storef(p.scale + i * kLanes, low_half(first[0]));
      storef(p.minimum + i * kLanes, low_half(right32<16>(first[0])));
    }
  }
};
template <>
struct Unpack<quant::BlockMXFP4> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    UnpackNibbles<17, 1, false>::codes(rows, n, p.codes, Lookup{kE2m1Codes});
    for (int64_t i = 0; i < n; ++i)
      for (int j = 0; j < kLanes; ++j) p.scale[i * kLanes + j] = quant::e8m0_to_float(rows[j][i * 17]) * 0.5f;
  }
};
template <>
struct Unpack<quant::BlockQ8_0> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i)
      for (int half = 0; half < 2; ++half, to += 4 * kVectorBytes) {
        V q[4];
        transpose(rows, i * 34 + 2 + 16 * half, q);
        for (int j = 0; j < 4; ++j) store(to + j * kVectorBytes, bit_xor(q[j], all8(128)));
      }
    half_scales(rows, 0, 34, n, p.scale);
  }
};

// The eight scales and minima of a Q4_K or Q5_K block: its first 16 bytes are d, m and the 6-bit fields
// (quant::k_scale, quant::k_min).
inline void k_scales(const Rows& rows, int64_t at, float* scale, float* minimum) {
  V w[4];
  transpose(rows, at, w);
  const VF d = low_half(w[0]), m = mul(allf(-1), low_half(right32<16>(w[0])));
  const auto emit = [&](int g, V s, V least) {
    storef(scale + g * kLanes, mul(d, to_float(s)));
    storef(minimum + g * kLanes, mul(m, to_float(least)));
  };
  const auto fields = [&]<int kByte>() {
    const V a = bit_and(right32<8 * kByte>(w[1]), all32(255)),
            b = bit_and(right32<8 * kByte>(w[2]), all32(255)),
            c = bit_and(right32<8 * kByte>(w[3]), all32(255));
    emit(kByte, bit_and(a, all32(63)), bit_and(b, all32(63)));
    emit(kByte + 4, bit_or(bit_and(c, all32(15)), left32<4>(right32<6>(a))),
         bit_or(right32<4>(c), left32<4>(right32<6>(b))));
  };
  fields.template operator()<0>();
  fields.template operator()<1>();
  fields.template operator()<2>();
  fields.template operator()<3>();
}
template <>
struct Unpack<quant::BlockQ4_K> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i, to += 64 * kVectorBytes) {
      for (int pair = 0; pair < 4; ++pair)
        for (int half = 0; half < 2; ++half) {
          V q[4];
          transpose(rows, i * 144 + 16 + 32 * pair + 16 * half, q);
          uint8_t* group = to + (16 * pair + 4 * half) * kVectorBytes;
          for (int j = 0; j < 4; ++j) {
            store(group + j * kVectorBytes, nibble0(q[j]));
            store(group + (j + 8) * kVectorBytes, nibble1(q[j]));
          }
        }
      k_scales(rows, i * 144, p.scale + i * 8 * kLanes, p.minimum + i * 8 * kLanes);
    }
  }
};
template <>
struct Unpack<quant::BlockQ5_K> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i, to += 64 * kVectorBytes) {
      for (int half = 0; half < 2; ++half) {
        V h[4];
        transpose(rows, i * 176 + 16 + 16 * half, h);
        for (int pair = 0; pair < 4; ++pair) {
          V q[4];
          transpose(rows, i * 176 + 48 + 32 * pair + 16 * half, q);
          uint8_t* group = to + (16 * pair + 4 * half) * kVectorBytes;
          for (int j = 0; j < 4; ++j) {
            // Bits 2·pair and 2·pair + 1 of h, used up from below.
            const V fifth0 = bit_and(left16<4>(h[j]), all8(16));
            const V fifth1 = bit_and(left16<3>(h[j]), all8(16));
            h[j] = right16<2>(h[j]);
            store(group + j * kVectorBytes, bit_or(nibble0(q[j]), fifth0));
            store(group + (j + 8) * kVectorBytes, bit_or(nibble1(q[j]), fifth1));
          }
        }
      }
      k_scales(rows, i * 176, p.scale + i * 8 * kLanes, p.minimum + i * 8 * kLanes);
    }
  }
};
// Sixteen signed bytes at `at` of every row, times d: the scales of 16 groups.
inline void signed_scales(const Rows& rows, int64_t at, VF d, float* to) {
  V s[4];
  transpose(rows, at, s);
  for (int j = 0; j < 4; ++j) {
    storef(to + (4 * j) * kLanes, mul(d, to_float(signed_byte3(left32<24>(s[j])))));
    storef(to + (4 * j + 1) * kLanes, mul(d, to_float(signed_byte3(left32<16>(s[j])))));
    storef(to + (4 * j + 2) * kLanes, mul(d, to_float(signed_byte3(left32<8>(s[j])))));
    storef(to + (4 * j + 3) * kLanes, mul(d, to_float(signed_byte3(s[j]))));
  }
}
template <>
struct Unpack<quant::BlockQ6_K> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    alignas(64) float d[kStretch / 256 * kLanes];
    half_scales(rows, 208, 210, n, d);
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i)
      for (int half = 0; half < 2; ++half, to += 32 * kVectorBytes) {
        for (int odd = 0; odd < 2; ++odd) {
          V h[4];
          transpose(rows, i * 210 + 128 + 32 * half + 16 * odd, h);
          for (int pair = 0; pair < 2; ++pair) {
            V q[4];
            transpose(rows, i * 210 + 64 * half + 32 * pair + 16 * odd, q);
            uint8_t* group = to + (8 * pair + 4 * odd) * kVectorBytes;  // quarters `pair` and `pair` + 2
            for (int j = 0; j < 4; ++j) {
              const V high0 = bit_and(pair == 0 ? left16<4>(h[j]) : left16<2>(h[j]), all8(48));
              const V high1 = bit_and(pair == 0 ? h[j] : right16<2>(h[j]), all8(48));
              store(group + j * kVectorBytes, bit_or(nibble0(q[j]), high0));
              store(group + (j + 16) * kVectorBytes, bit_or(nibble1(q[j]), high1));
            }
          }
        }
      }
    for (int64_t i = 0; i < n; ++i)
      signed_scales(rows, i * 210 + 192, loadf(d + i * kLanes), p.scale + i * 16 * kLanes);
  }
};
template <>
struct Unpack<quant::BlockQ2_K> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    alignas(64) float d[kStretch / 256 * kLanes], m[kStretch / 256 * kLanes];
    half_scales(rows, 80, 84, n, d);
    half_scales(rows, 82, 84, n, m);
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i)
      for (int half = 0; half < 2; ++half, to += 32 * kVectorBytes)
        for (int odd = 0; odd < 2; ++odd) {
          V q[4];
          transpose(rows, i * 84 + 16 + 32 * half + 16 * odd, q);
          for (int j = 0; j < 4; ++j) {
            uint8_t* at = to + (4 * odd + j) * kVectorBytes;
            store(at, bit_and(q[j], all8(3)));
            store(at + 8 * kVectorBytes, bits<2>(q[j], 3));
            store(at + 16 * kVectorBytes, bits<4>(q[j], 3));
            store(at + 24 * kVectorBytes, bits<6>(q[j], 3));
          }
        }
    for (int64_t i = 0; i < n; ++i) {
      V s[4];
      transpose(rows, i * 84, s);
      const VF scale = loadf(d + i * kLanes), least = mul(allf(-1), loadf(m + i * kLanes));
      for (int g = 0; g < 16; ++g) {
        const V byte = bit_and(s[g / 4], all32(255));
        s[g / 4] = right32<8>(s[g / 4]);
        storef(p.scale + (i * 16 + g) * kLanes, mul(scale, to_float(bit_and(byte, all32(15)))));
        storef(p.minimum + (i * 16 + g) * kLanes, mul(least, to_float(right32<4>(byte))));
      }
    }
  }
};
template <>
struct Unpack<quant::BlockQ3_K> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i, to += 64 * kVectorBytes)
      for (int odd = 0; odd < 2; ++odd) {
        V h[4];
        transpose(rows, i * 110 + 16 * odd, h);
        for (int half = 0; half < 2; ++half) {
          V q[4];
          transpose(rows, i * 110 + 32 + 32 * half + 16 * odd, q);
          for (int j = 0; j < 4; ++j) {
            uint8_t* at = to + (32 * half + 4 * odd + j) * kVectorBytes;
            // Bits 4·half … 4·half + 3 of h, one for each two-bit field.
            const V high = half == 0 ? h[j] : right16<4>(h[j]);
            store(at, bit_or(bit_and(q[j], all8(3)), bit_and(left16<2>(high), all8(4))));
            store(at + 8 * kVectorBytes, bit_or(bits<2>(q[j], 3), bit_and(left16<1>(high), all8(4))));
            store(at + 16 * kVectorBytes, bit_or(bits<4>(q[j], 3), bit_and(high, all8(4))));
            store(at + 24 * kVectorBytes, bit_or(bits<6>(q[j], 3), bits<1>(high, 4)));
          }
        }
      }
    for (int64_t i = 0; i < n; ++i) {
      V w[4];
      transpose(rows, i * 110 + 94, w);  // the last 16 bytes: two of q, the fields, d
      const VF d = low_half(right32<16>(w[3]));
      const V s[3] = {bit_or(right32<16>(w[0]), left32<16>(w[1])),
                      bit_or(right32<16>(w[1]), left32<16>(w[2])),
                      bit_or(right32<16>(w[2]), left32<16>(w[3]))};
      const auto four = [&]<int kByte>() {  // groups kByte, kByte + 4, + 8, + 12
        const V a = bit_and(right32<8 * kByte>(s[0]), all32(255)),
                b = bit_and(right32<8 * kByte>(s[1]), all32(255)), high = right32<8 * kByte>(s[2]);
        const auto emit = [&](int g, V low, V top) {
          const V six = bit_or(bit_and(low, all32(15)), bit_and(top, all32(48)));
          storef(p.scale + (i * 16 + g) * kLanes, mul(d, to_float(add32(six, all32(-32)))));
        };
        emit(kByte, a, left32<4>(high));
        emit(kByte + 4, b, left32<2>(high));
        emit(kByte + 8, right32<4>(a), high);
        emit(kByte + 12, right32<4>(b), right32<2>(high));
      };
      four.template operator()<0>();
      four.template operator()<1>();
      four.template operator()<2>();
      four.template operator()<3>();
    }
  }
};
template <>
struct Unpack<quant::BlockIQ4_XS> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i) {
      V first[4];
      transpose(rows, i * 136, first);
      const VF d = low_half(first[0]);
      V high = right32<16>(first[0]), low = first[1];
      for (int g = 0; g < 8; ++g, to += 8 * kVectorBytes) {
        V q[4];
        transpose(rows, i * 136 + 8 + 16 * g, q);
        for (int j = 0; j < 4; ++j) {
          store(to + j * kVectorBytes, lookup(table(kIq4Codes), nibble0(q[j])));
          store(to + (j + 4) * kVectorBytes, lookup(table(kIq4Codes), nibble1(q[j])));
        }
        const V s = bit_or(bit_and(low, all32(15)), left32<4>(bit_and(high, all32(3))));
        storef(p.scale + (i * 8 + g) * kLanes, mul(d, to_float(add32(s, all32(-32)))));
        low = right32<4>(low);
        high = right32<2>(high);
      }
    }
  }
};
template <>
struct Unpack<quant::BlockNVFP4> {
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    for (int64_t i = 0; i < n; ++i)
      for (int two = 0; two < 2; ++two, to += 8 * kVectorBytes) {
        V q[4];
        transpose(rows, i * 36 + 4 + 16 * two, q);
        for (int g = 0; g < 2; ++g)
          for (int j = 0; j < 2; ++j) {
            uint8_t* at = to + (4 * g + j) * kVectorBytes;
            store(at, lookup(table(kE2m1Codes), nibble0(q[2 * g + j])));
            store(at + 2 * kVectorBytes, lookup(table(kE2m1Codes), nibble1(q[2 * g + j])));
          }
      }
    for (int64_t i = 0; i < n; ++i) {
      V first[4];
      transpose(rows, i * 36, first);
      for (int g = 0; g < 4; ++g) {
        storef(p.scale + (4 * i + g) * kLanes, mul(from_e4m3(bit_and(first[0], all32(0x7f))), allf(0.5f)));
        first[0] = right32<8>(first[0]);
      }
    }
  }
};
template <>
struct Unpack<BlockE2M1> {  // codes only: the scales lie elsewhere
  static void run(const Rows& rows, int64_t n, Panel& p) {
    uint8_t* to = p.codes;
    alignas(16) static constexpr int8_t kLow[16] = {0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13};
    alignas(16) static constexpr int8_t kHigh[16] = {2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15};
    const V even = all32(0x00ff00ff);
    for (int64_t i = 0; i < n; ++i) {
      V q[4];
      transpose(rows, i * 16, q);
      for (int j = 0; j < 4; ++j)
        for (const auto* order : {kLow, kHigh}) {
          const V v = shuffle(q[j], table(order));  // each byte twice: its low nibble first
          const V nibbles = bit_or(bit_and(nibble0(v), even), bit_and(nibble1(v), bit_xor(even, all8(255))));
          store(to, lookup(table(kE2m1Codes), nibbles));
          to += kVectorBytes;
        }
    }
  }
};

// ---- multiplying ----

// Rows of rounded activations from a group of 32 on.
struct RowView {
  const int8_t* q;
  const float *d, *sum;        // of 32, or sums of 16 for groups of 16
  const int32_t* minus_codes;  // likewise
};

inline V dot4(V acc, V codes, V x) {
#if QUERN_VNNI && QUERN_WIDE
  return _mm512_dpbusd_epi32(acc, codes, x);
#elif QUERN_VNNI
  return _mm256_dpbusd_avx_epi32(acc, codes, x);
#else
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
#endif
}
inline int32_t word(const int8_t* q) {
  int32_t w;
  std::memcpy(&w, q, 4);
  return w;
}

// acc[r][c] += Σ codes · q over kGroup values.
template <int kGroup, int kBits, int R>
[[gnu::always_inline]] inline void group_dot(const uint8_t* const* codes, const RowView* x, int64_t at,
                                             V (&acc)[R][kPanels]) {
#if QUERN_VNNI
#pragma GCC unroll 8
  for (int t = 0; t < kGroup / 4; ++t) {
    V w[kPanels];
    for (int c = 0; c < kPanels; ++c) w[c] = load(codes[c] + t * kVectorBytes);
    for (int r = 0; r < R; ++r) {
      const V xs = all32(word(x[r].q + at + 4 * t));
      for (int c = 0; c < kPanels; ++c) acc[r][c] = dot4(acc[r][c], w[c], xs);
    }
  }
#else
  if constexpr (kBits == 8) {
    // Pairs of an 8-bit code and an activation overflow 16 bits: |w| times x with w's sign does not.
#pragma GCC unroll 8
    for (int t = 0; t < kGroup / 4; ++t) {
      V w[kPanels], size[kPanels];
      for (int c = 0; c < kPanels; ++c) {
        w[c] = bit_xor(load(codes[c] + t * kVectorBytes), all8(128));
        size[c] = _mm256_abs_epi8(w[c]);
      }
      for (int r = 0; r < R; ++r) {
        const V xs = all32(word(x[r].q + at + 4 * t));
        for (int c = 0; c < kPanels; ++c) acc[r][c] = dot4(acc[r][c], size[c], _mm256_sign_epi8(xs, w[c]));
      }
    }
  } else {
    // Sums of `kRun` pairs stay within 16 bits: 2 · kRun · (2^kBits - 1) · 127 < 2^15.
    constexpr int kRun = kBits <= 4 ? 8 : kBits == 5 ? 4 : 2;
    constexpr int kSteps = kGroup / 4, kWidth = kRun < kSteps ? kRun : kSteps;
#pragma GCC unroll 4
    for (int t0 = 0; t0 < kSteps; t0 += kWidth) {
      V sums[R][kPanels];
#pragma GCC unroll 8
      for (int t = t0; t < t0 + kWidth; ++t) {
        V w[kPanels];
        for (int c = 0; c < kPanels; ++c) w[c] = load(codes[c] + t * kVectorBytes);
        for (int r = 0; r < R; ++r) {
          const V xs = all32(word(x[r].q + at + 4 * t));
          for (int c = 0; c < kPanels; ++c) {
            const V pairs = _mm256_maddubs_epi16(w[c], xs);
            sums[r][c] = t == t0 ? pairs : _mm256_add_epi16(sums[r][c], pairs);
          }
        }
      }
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < kPanels; ++c)
          acc[r][c] = _mm256_add_epi32(acc[r][c], _mm256_madd_epi16(sums[r][c], _mm256_set1_epi16(1)));
    }
  }
#endif
}

// Adds `n` groups of 32 columns to the sums of R rows, kPanels · kLanes floats each, one row after the other.
template <int kGroup, bool kMinimum, int kBits, int R>
void tile(const Panel* panels, const RowView* x, int64_t n, int shift, float* sums) {
  constexpr bool kSigned = !QUERN_VNNI && kBits == 8;  // no zero point to take off
  const __m128i zero_bits = _mm_cvtsi32_si128(shift);
  const uint8_t* codes[kPanels];
  const float *scale[kPanels], *minimum[kPanels];
  VF y[R][kPanels];
  for (int c = 0; c < kPanels; ++c) {
    codes[c] = panels[c].codes;
    scale[c] = panels[c].scale;
    minimum[c] = panels[c].minimum;
    for (int r = 0; r < R; ++r) y[r][c] = loadf(sums + (r * kPanels + c) * kLanes);
  }
  for (int64_t i = 0; i < n * (32 / kGroup); ++i) {
    V acc[R][kPanels];
    for (int r = 0; r < R; ++r) {
      const V start = kMinimum || kSigned ? zero() : left32(all32(x[r].minus_codes[i]), zero_bits);
      for (int c = 0; c < kPanels; ++c) acc[r][c] = start;
    }
    group_dot<kGroup, kBits, R>(codes, x, i * kGroup, acc);
    for (int r = 0; r < R; ++r) {
      const VF d = allf(x[r].d[kGroup == 32 ? i : i / 2]);
      for (int c = 0; c < kPanels; ++c) y[r][c] = fma(mul(loadf(scale[c]), d), to_float(acc[r][c]), y[r][c]);
      if constexpr (kMinimum) {
        const VF sum = allf(x[r].sum[i]);
        for (int c = 0; c < kPanels; ++c) y[r][c] = fma(loadf(minimum[c]), sum, y[r][c]);
      }
    }
    for (int c = 0; c < kPanels; ++c) {
      codes[c] += kGroup / 4 * kVectorBytes;
      scale[c] += kLanes;
      minimum[c] += kLanes;
    }
  }
  for (int c = 0; c < kPanels; ++c)
    for (int r = 0; r < R; ++r) storef(sums + (r * kPanels + c) * kLanes, y[r][c]);
}

template <int kGroup, bool kMinimum, int kBits, int... kRows>
void tiles(std::integer_sequence<int, kRows...>, const Panel* panels, const RowView* x, int64_t rows,
           int64_t n, int shift, float* sums) {
  using Tile = void (*)(const Panel*, const RowView*, int64_t, int, float*);
  static constexpr Tile kTiles[] = {tile<kGroup, kMinimum, kBits, kRows + 1>...};
  const int64_t count = (rows + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < count; ++t) {
    const int64_t begin = rows * t / count, end = rows * (t + 1) / count;
    kTiles[end - begin - 1](panels, x + begin, n, shift, sums + begin * kPanels * kLanes);
  }
}

// Where a product with mostly equal families of tiles needs no code of its own: VNNI takes codes of any width
// alike.
constexpr int tile_bits(int bits) { return QUERN_VNNI ? 8 : bits < 4 ? 4 : bits; }

template <class Block>
void multiply_blocks(const ProductJob& job, int64_t n0, int64_t n1) {
  using Format = Int8Format<Block>;
  const Weight& w = *job.w;
  const int64_t k = w.k(), stride = row_bytes(w.data.dtype, w.data.row_stride);
  const auto* weights = reinterpret_cast<const uint8_t*>(w.data.data);
  constexpr int64_t kSums = kPanels * kLanes;
  // Few rows: short stretches, so that requests for what comes next are spread. 128 bytes of sixteen rows are
  // already many at once; eight rows would pay more for tiles begun more often.
  constexpr int64_t kQuarter = kStretch / 4, kQuarterBytes = kQuarter * sizeof(Block) / Block::kValues;
  constexpr int64_t kFewStretch =
      std::max<int64_t>(QUERN_WIDE && kQuarterBytes > 128 ? kQuarter / 2 : kQuarter, Block::kValues);
  alignas(64) Panel panels[kPanels];
  alignas(64) float few_sums[16 * kSums];
  alignas(64) uint8_t copies[kLanes * (kStretch / Block::kValues) * sizeof(Block)];
  RowView views[kTileRows * 16];
  const int64_t row_length = k / Block::kValues * static_cast<int64_t>(sizeof(Block));
  for (int64_t r0 = 0; r0 < job.n_rows; r0 += kRowBlock) {
    const int64_t rows = std::min(job.n_rows - r0, kRowBlock);
    float* sums = rows <= 16 ? few_sums : thread_scratch(0, rows * kSums);
    const int64_t stretch = rows <= 16 ? kFewStretch : kStretch;
    const int64_t stretch_bytes = stretch / Block::kValues * static_cast<int64_t>(sizeof(Block));
    for (int64_t n = n0; n < n1; n += kSums) {
      std::memset(sums, 0, static_cast<size_t>(rows * kSums) * sizeof(float));
      for (int64_t k0 = 0; k0 < k; k0 += stretch) {
        const int64_t columns = std::min(k - k0, stretch), block0 = k0 / Block::kValues;
        for (int c = 0; c < kPanels; ++c) {
          const int64_t row = n + c * kLanes, at = block0 * static_cast<int64_t>(sizeof(Block));
          // What is asked for lies two stretches on; past the end of the row, in the rows after these.
          const bool same_rows = k0 + 2 * stretch < k;
          const int64_t ask_row = same_rows ? row : row + kSums;
          const uint8_t* ask_at =
              weights + ask_row * stride + at + 2 * stretch_bytes - (same_rows ? 0 : row_length);
          for (int64_t j = std::min<int64_t>(n1 - ask_row, kLanes); j > 0; --j, ask_at += stride)
            ask(ask_at, stretch_bytes);
          const Rows from = rows_of(weights, stride, row, n1, at,
                                    columns / Block::kValues * static_cast<int64_t>(sizeof(Block)), copies);
          Unpack<Block>::run(from, columns / Block::kValues, panels[c]);
          if constexpr (std::is_same_v<Block, BlockE2M1>) {
            for (int j = 0; j < kLanes; ++j) {
              const auto* s = w.scale.row<const uint8_t>(std::min(n + c * kLanes + j, n1 - 1)) + k0 / 16;
              for (int64_t g = 0; g < columns / 16; ++g)
                panels[c].scale[g * kLanes + j] = Format::scale(s[g], w.global_scale);
            }
          }
        }
        for (int64_t r = 0; r < rows; r += kTileRows * 16) {
          const int64_t some = std::min<int64_t>(rows - r, kTileRows * 16);
          for (int64_t i = 0; i < some; ++i) {
            const ConstInt8Record x(job.rounded_row(r0 + r + i), k);
            constexpr bool kSmall = Block::kGroup == 16;
            views[i] = {x.q + k0, x.d + k0 / 32, (kSmall ? x.sum16 : x.sum32) + k0 / Block::kGroup,
                        (kSmall ? x.minus16 : x.minus32) + k0 / Block::kGroup};
          }
          tiles<Block::kGroup, Format::kMinimum, tile_bits(Format::kBits)>(
              std::make_integer_sequence<int, kTileRows>(), panels, views, some, columns / 32, Format::kShift,
              sums + r * kSums);
        }
      }
      const auto width = static_cast<size_t>(std::min(n1 - n, kSums)) * sizeof(float);
      for (int64_t i = 0; i < rows; ++i) std::memcpy(job.y_row(r0 + i) + n, sums + i * kSums, width);
    }
  }
}

// Sums of the eight words of kLanes rows: v[j] holds row j, or on 512 bits rows (j, j + 4) and from v[4] on (j + 4, j + 8).
inline V sums_of_rows(const V (&v)[8]) {
  V a[4];
  for (int j = 0; j < 4; ++j) a[j] = add32(low32(v[2 * j], v[2 * j + 1]), high32(v[2 * j], v[2 * j + 1]));
  const V b = add32(low64(a[0], a[1]), high64(a[0], a[1])), c = add32(low64(a[2], a[3]), high64(a[2], a[3]));
  return add32(even128(b, c), odd128(b, c));
}

// One row with Q8_0 weights, where unpacking into a panel for one use would be most of the work: 32 codes of a weight row
// meet the activations as they lie, and sums are turned instead of codes. Scales are collected a chunk before they are
// used. [n0, n1) are whole vectors of outputs.
void one_row_q8_0(const ProductJob& job, int64_t n0, int64_t n1) {
  using Format = Int8Format<quant::BlockQ8_0>;
  constexpr int64_t kBytes = sizeof(quant::BlockQ8_0), kChunk = 4, kAhead = 4 * kChunk * kBytes;
  const Weight& w = *job.w;
  const int64_t k = w.k(), stride = row_bytes(w.data.dtype, w.data.row_stride), blocks = k / 32;
  const auto* weights = reinterpret_cast<const uint8_t*>(w.data.data);
  const ConstInt8Record x(job.rounded_row(0), k);
  alignas(64) float scales[2][kChunk * kLanes];
  for (int64_t n = n0; n < n1; n += kLanes) {
    const Rows rows{weights + n * stride, stride};
    const auto collect = [&](int64_t block) {
      half_scales({rows.at + block * kBytes, stride}, 0, kBytes, std::min(blocks - block, kChunk),
                  scales[block / kChunk % 2]);
    };
    VF y = zerof();
    collect(0);
    for (int64_t i0 = 0; i0 < blocks; i0 += kChunk) {
      // What is asked for lies four chunks on; past the end of the rows, in the rows after these.
      const int64_t at = i0 * kBytes + kAhead;
      const bool same_rows = at < stride;
      if (same_rows || n + kLanes < n1) {
        const uint8_t* ask_at = rows.at + at + (same_rows ? 0 : (kLanes - 1) * stride);
        for (int j = 0; j < kLanes; ++j, ask_at += stride) ask(ask_at, kChunk * kBytes);
      }
      if (i0 + kChunk < blocks) collect(i0 + kChunk);
      const float* scale = scales[i0 / kChunk % 2];
      for (int64_t i = i0; i < std::min(i0 + kChunk, blocks); ++i, scale += kLanes) {
        const V xs = both256(x.q + 32 * i);
        const uint8_t* codes = rows.at + i * kBytes + 2;
        V v[8];
        for (int j = 0; j < 8; ++j) {
          const V q = two256(codes + (QUERN_WIDE && j >= 4 ? j + 4 : j) * stride, 4 * stride);
#if QUERN_VNNI
          v[j] = dot4(zero(), bit_xor(q, all8(128)), xs);
#else
          v[j] = dot4(zero(), _mm256_abs_epi8(q), _mm256_sign_epi8(xs, q));
#endif
        }
        V dot = sums_of_rows(v);
        if constexpr (QUERN_VNNI) dot = add32(dot, all32(x.minus32[i] * (1 << Format::kShift)));
        y = fma(mul(loadf(scale), allf(x.d[i])), to_float(dot), y);
      }
    }
    storef(job.y_row(0) + n, y);
  }
}

void int8_product(const ProductJob& job, int64_t n0, int64_t n1) {
  if (job.w->data.dtype == DType::Q8_0 && job.n_rows == 1) {
    const int64_t whole = n0 + (n1 - n0) / kLanes * kLanes;
    one_row_q8_0(job, n0, whole);
    n0 = whole;
    if (n0 == n1) return;
  }
  with_int8_block(job.w->data.dtype, [&]<class Block>() { multiply_blocks<Block>(job, n0, n1); });
}

// ---- rounding ----

void round_row(const float* x, int64_t k, std::byte* record) {
  const Int8Record r(record, k);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t g = 0; g < k / 32; ++g) {
    __m256 v[4];
    __m256i top = _mm256_setzero_si256();
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm256_loadu_ps(x + 32 * g + 8 * j);
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
    }
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    const GroupScale s = group_scale(static_cast<uint32_t>(_mm_cvtsi128_si32(t)));
    __m256i q[4];
    for (int j = 0; j < 4; ++j) {
      q[j] = _mm256_setzero_si256();
      if (s.inverse > 0) q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], _mm256_set1_ps(s.inverse)));
    }
    const auto total = [](__m256i a) {
      __m128i h = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
      h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
      return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
    };
    r.store_sums(g, s.d, total(_mm256_add_epi32(q[0], q[1])), total(_mm256_add_epi32(q[2], q[3])));
    // Packing works on halves of vectors: words 0 4 1 5 2 6 3 7 come out.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(r.q + 32 * g),
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
}

}  // namespace quern::cpu::QUERN_LEVEL

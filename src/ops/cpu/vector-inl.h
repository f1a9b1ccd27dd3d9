// The vectors of one level of product.h, in raw intrinsics (see level-inl.h). Lanes are outputs.

namespace quern::cpu::QUERN_LEVEL {

#if QUERN_WIDE
using V = __m512i;
using VF = __m512;
inline constexpr int kLanes = 16;
inline V bit_and(V a, V b) { return _mm512_and_si512(a, b); }
inline V bit_or(V a, V b) { return _mm512_or_si512(a, b); }
inline V bit_xor(V a, V b) { return _mm512_xor_si512(a, b); }
template <int kBits>
inline V right16(V a) {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
inline V left16(V a) {
  return _mm512_slli_epi16(a, kBits);
}
template <int kBits>
inline V right32(V a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
inline V left32(V a) {
  return _mm512_slli_epi32(a, kBits);
}
inline V signed_byte3(V a) { return _mm512_srai_epi32(a, 24); }
inline V signed_right4(V a) { return _mm512_srai_epi32(a, 4); }
inline V left32(V a, __m128i bits) { return _mm512_sll_epi32(a, bits); }
inline V add32(V a, V b) { return _mm512_add_epi32(a, b); }
// Whether any byte lies outside [least, most].
inline bool outside8(V a, uint8_t least, uint8_t most) {
  const V top = _mm512_set1_epi8(static_cast<char>(most - least));
  return _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(a, _mm512_set1_epi8(static_cast<char>(least))), top) != 0;
}
inline V zero() { return _mm512_setzero_si512(); }
inline V all8(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline V all32(int32_t x) { return _mm512_set1_epi32(x); }
inline V low32(V a, V b) { return _mm512_unpacklo_epi32(a, b); }
inline V high32(V a, V b) { return _mm512_unpackhi_epi32(a, b); }
inline V low64(V a, V b) { return _mm512_unpacklo_epi64(a, b); }
inline V high64(V a, V b) { return _mm512_unpackhi_epi64(a, b); }
inline V lookup(__m128i table, V i) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i); }
inline V shuffle(V v, __m128i order) { return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order)); }
inline V load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store(uint8_t* p, V v) { _mm512_storeu_si512(p, v); }
inline VF loadf(const float* p) { return _mm512_loadu_ps(p); }
inline void storef(float* p, VF v) { _mm512_storeu_ps(p, v); }
inline VF allf(float x) { return _mm512_set1_ps(x); }
inline VF zerof() { return _mm512_setzero_ps(); }
inline VF add(VF a, VF b) { return _mm512_add_ps(a, b); }
inline VF mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
inline VF fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
inline VF to_float(V v) { return _mm512_cvtepi32_ps(v); }
inline VF as_float(V v) { return _mm512_castsi512_ps(v); }
inline V as_bits(VF v) { return _mm512_castps_si512(v); }
// a where v < n, else b
inline VF where_less(V v, int32_t n, VF a, VF b) {
  return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(v, all32(n)), b, a);
}
inline VF halves(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline VF low_half(V v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
// 16 bytes from each of `at`, 4, 8 and 12 strides on.
inline V load_rows(const uint8_t* at, int64_t stride) {
  const auto part = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * stride)); };
  V v = _mm512_castsi128_si512(part(0));
  v = _mm512_inserti32x4(v, part(4), 1);
  v = _mm512_inserti32x4(v, part(8), 2);
  return _mm512_inserti32x4(v, part(12), 3);
}
// 32 bytes from `at` and from a step on; the same 32 twice; the even and the odd 128 bits of two vectors.
inline V two256(const uint8_t* at, int64_t step) {
  const auto part = [&](int64_t i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i)); };
  return _mm512_inserti64x4(_mm512_castsi256_si512(part(0)), part(step), 1);
}
inline V both256(const int8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V even128(V a, V b) { return _mm512_shuffle_i32x4(a, b, 0x88); }
inline V odd128(V a, V b) { return _mm512_shuffle_i32x4(a, b, 0xdd); }
#else
using V = __m256i;
using VF = __m256;
inline constexpr int kLanes = 8;
inline V bit_and(V a, V b) { return _mm256_and_si256(a, b); }
inline V bit_or(V a, V b) { return _mm256_or_si256(a, b); }
inline V bit_xor(V a, V b) { return _mm256_xor_si256(a, b); }
template <int kBits>
inline V right16(V a) {
  return _mm256_srli_epi16(a, kBits);
}
template <int kBits>
inline V left16(V a) {
  return _mm256_slli_epi16(a, kBits);
}
template <int kBits>
inline V right32(V a) {
  return _mm256_srli_epi32(a, kBits);
}
template <int kBits>
inline V left32(V a) {
  return _mm256_slli_epi32(a, kBits);
}
inline V signed_byte3(V a) { return _mm256_srai_epi32(a, 24); }
inline V signed_right4(V a) { return _mm256_srai_epi32(a, 4); }
inline V left32(V a, __m128i bits) { return _mm256_sll_epi32(a, bits); }
inline V add32(V a, V b) { return _mm256_add_epi32(a, b); }
inline bool outside8(V a, uint8_t least, uint8_t most) {
  const V top = _mm256_set1_epi8(static_cast<char>(most - least));
  const V over = _mm256_sub_epi8(a, _mm256_set1_epi8(static_cast<char>(least)));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(over, top), top)) != -1;
}
inline V zero() { return _mm256_setzero_si256(); }
inline V all8(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline V all32(int32_t x) { return _mm256_set1_epi32(x); }
inline V low32(V a, V b) { return _mm256_unpacklo_epi32(a, b); }
inline V high32(V a, V b) { return _mm256_unpackhi_epi32(a, b); }
inline V low64(V a, V b) { return _mm256_unpacklo_epi64(a, b); }
inline V high64(V a, V b) { return _mm256_unpackhi_epi64(a, b); }
inline V lookup(__m128i table, V i) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i); }
inline V shuffle(V v, __m128i order) { return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order)); }
inline V load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline VF loadf(const float* p) { return _mm256_loadu_ps(p); }
inline void storef(float* p, VF v) { _mm256_storeu_ps(p, v); }
inline VF allf(float x) { return _mm256_set1_ps(x); }
inline VF zerof() { return _mm256_setzero_ps(); }
inline VF add(VF a, VF b) { return _mm256_add_ps(a, b); }
inline VF mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
inline VF fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VF to_float(V v) { return _mm256_cvtepi32_ps(v); }
inline VF as_float(V v) { return _mm256_castsi256_ps(v); }
inline V as_bits(VF v) { return _mm256_castps_si256(v); }
inline VF where_less(V v, int32_t n, VF a, VF b) {
  return _mm256_blendv_ps(b, a, as_float(_mm256_cmpgt_epi32(all32(n), v)));
}
inline VF halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline VF low_half(V v) {
  v = bit_and(v, all32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
inline V load_rows(const uint8_t* at, int64_t stride) {
  const auto part = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * stride)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(4), 1);
}
inline V two256(const uint8_t* at, int64_t) { return load(at); }
inline V both256(const int8_t* p) { return load(reinterpret_cast<const uint8_t*>(p)); }
inline V even128(V a, V b) { return _mm256_permute2x128_si256(a, b, 0x20); }
inline V odd128(V a, V b) { return _mm256_permute2x128_si256(a, b, 0x31); }
#endif

inline constexpr int kVectorBytes = 4 * kLanes;

// kLanes rows of bytes, evenly spaced.
struct Rows {
  const uint8_t* at;
  int64_t stride;
  const uint8_t* operator[](int64_t i) const { return at + i * stride; }
};

// A value that the compiler knows nothing of.
template <class T>
inline T unknown(T x) {
  asm("" : "+r"(x));
  return x;
}

// Bytes [at, at + 16) of every row: lane i of out[j] holds bytes 4j … 4j + 3 of row i. The stride is made
// unknown each time: compilers else keep its sixteen multiples, more than there are registers, where addresses
// have multiples by 1, 2, 4 and 8 for nothing.
inline void transpose(const Rows& rows, int64_t at, V out[4]) {
  const int64_t stride = unknown(rows.stride);
  const uint8_t* p = rows.at + at;
  const V r0 = load_rows(p, stride), r1 = load_rows(p + stride, stride),
          r2 = load_rows(p + 2 * stride, stride), r3 = load_rows(p + 3 * stride, stride);
  const V a = low32(r0, r1), b = high32(r0, r1), c = low32(r2, r3), d = high32(r2, r3);
  out[0] = low64(a, c);
  out[1] = high64(a, c);
  out[2] = low64(b, d);
  out[3] = high64(b, d);
}

// Rows [row, row + kLanes) of `weights`, `bytes` of each from `at` on. Where the rows end before, at `end`,
// copies of those that are there, in `copies` [kLanes, bytes], and zeros.
inline Rows rows_of(const uint8_t* weights, int64_t stride, int64_t row, int64_t end, int64_t at,
                    int64_t bytes, uint8_t* copies) {
  if (row + kLanes <= end) return {weights + row * stride + at, stride};
  std::memset(copies, 0, static_cast<size_t>(kLanes * bytes));
  for (int64_t i = row; i < end; ++i)
    std::memcpy(copies + (i - row) * bytes, weights + i * stride + at, static_cast<size_t>(bytes));
  return {copies, bytes};
}

// OCP E4M3 bytes in the low bits of lanes; bit 7 is the sign.
inline VF from_e4m3(V bytes) {
  const V rest = bit_and(bytes, all32(0x7f));
  VF v = where_less(rest, 8, mul(to_float(rest), allf(0x1p-9f)),
                    as_float(add32(left32<20>(rest), all32(0x3c000000))));
  v = where_less(rest, 0x7f, v, as_float(all32(0x7fc00000)));
  return as_float(bit_or(as_bits(v), left32<24>(bit_xor(bytes, rest))));
}

// OCP E4M3 in the top bytes of lanes, neither zero, subnormal nor NaN: sign and fields moved to those of an f32,
// whose exponent counts from 120 higher.
inline VF normal_e4m3(V word) {
  const V fields = bit_and(signed_right4(word), all32(static_cast<int32_t>(0x87f00000u)));
  return as_float(add32(fields, all32(0x3c000000)));
}

// Asks memory for `bytes` that a weight row will be read at, two stretches from now: rows lie far apart, and what the
// processor foresees by itself are fewer streams than the rows of a panel.
inline void ask(const uint8_t* at, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) _mm_prefetch(reinterpret_cast<const char*>(at + b), _MM_HINT_T0);
}

}  // namespace quern::cpu::QUERN_LEVEL

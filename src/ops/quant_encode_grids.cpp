// Encoders of the IQ2 and IQ3 types: magnitudes come from a code book of tuples, signs are kept apart.
//
// Each magnitude is rounded to one of the book's levels; a table built once says which entry is nearest to
// every tuple of levels. Where signs are codes of even parity (XXS, XS), an odd number of minus signs costs the
// smallest magnitude its sign.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/quant_encode.h"
#include "ops/quant_encode_blocks.h"

namespace quern::quant {
namespace {

// A book of n tuples of `width` magnitudes out of a few levels.
struct Book {
  int width = 0;
  std::vector<float> levels;      // ascending
  std::vector<uint16_t> nearest;  // by the tuple's number in base levels.size(), first value lowest
  std::vector<std::array<uint8_t, 8>> entries;

  template <typename T, size_t n>
  Book(const T (&grid)[n], int tuple_width) : width(tuple_width) {
    std::vector<bool> present(256);
    for (const T e : grid) {
      std::array<uint8_t, 8> values{};
      for (int j = 0; j < width; ++j) {
        values[static_cast<size_t>(j)] = static_cast<uint8_t>(static_cast<uint64_t>(e) >> (8 * j));
        present[values[static_cast<size_t>(j)]] = true;
      }
      entries.push_back(values);
    }
    for (int v = 0; v < 256; ++v) {
      if (present[static_cast<size_t>(v)]) levels.push_back(static_cast<float>(v));
    }
    size_t count = 1;
    for (int j = 0; j < width; ++j) count *= levels.size();
    nearest.resize(count);
    for (size_t t = 0; t < count; ++t) {
      float best = INFINITY;
      for (size_t e = 0; e < entries.size(); ++e) {
        float error = 0;
        size_t rest = t;
        for (int j = 0; j < width; ++j, rest /= levels.size()) {
          const float d =
              levels[rest % levels.size()] - static_cast<float>(entries[e][static_cast<size_t>(j)]);
          error += d * d;
        }
        if (error < best) {
          best = error;
          nearest[t] = static_cast<uint16_t>(e);
        }
      }
    }
  }

  int find(const float* magnitudes) const {
    size_t number = 0, place = 1;
    for (int j = 0; j < width; ++j, place *= levels.size()) {
      size_t l = 0;
      while (l + 1 < levels.size() && 2 * magnitudes[j] > levels[l] + levels[l + 1]) ++l;
      number += l * place;
    }
    return nearest[number];
  }
};

// The choice for one group of n values: entries and sign bytes (of 8 values each).
struct Choice {
  int entries[8] = {};
  uint32_t signs[4] = {};
  float xq = 0, qq = 0;  // Σ w x q and Σ w q², with signs
};

Choice choose(const Book& book, const float* x, const float* w, int n, float scale, bool even_signs) {
  Choice c;
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < n; i += 8) {
    float magnitude[8];
    uint32_t signs = 0;
    int weakest = 0;
    for (int j = 0; j < 8; ++j) {
      magnitude[j] = std::fabs(x[i + j]) * inverse;
      signs |= (std::signbit(x[i + j]) ? 1u : 0u) << j;
      if (w[i + j] * magnitude[j] < w[i + weakest] * magnitude[weakest]) weakest = j;
    }
    if (even_signs && __builtin_parity(signs) != 0) {
      signs ^= 1u << weakest;
      magnitude[weakest] = 0;
    }
    c.signs[i / 8] = signs;
    for (int t = 0; t < 8; t += book.width) {
      const int e = book.find(magnitude + t);
      c.entries[(i + t) / book.width] = e;
      for (int j = 0; j < book.width; ++j) {
        const float q = static_cast<float>(book.entries[static_cast<size_t>(e)][static_cast<size_t>(j)]);
        const float v = (signs >> (t + j)) & 1 ? -q : q;
        c.xq += w[i + t + j] * x[i + t + j] * v;
        c.qq += w[i + t + j] * q * q;
      }
    }
  }
  return c;
}

float fit(const Book& book, const float* x, const float* w, int n, bool even_signs) {
  float far = 0;
  for (int i = 0; i < n; ++i) far = std::max(far, std::fabs(x[i]));
  if (!(far > 1e-30f)) return 0;
  float best = 0, best_gain = 0;
  for (const float stretch : {0.55f, 0.7f, 0.85f, 1.0f, 1.2f}) {
    const Choice c = choose(book, x, w, n, far * stretch / book.levels.back(), even_signs);
    if (c.qq > 0 && c.xq > 0 && c.xq * c.xq > best_gain * c.qq) {
      best_gain = c.xq * c.xq / c.qq;
      best = c.xq / c.qq;
    }
  }
  return best;
}

// Fits groups of kSize, rounds their scales to d·(a + b·c) with c in [0, 15], and chooses again for those.
template <int kSize>
void encode_groups(const Book& book, const float* x, bool even_signs, float a, float b, uint16_t& d_bits,
                   int* scale_codes, Choice* out) {
  constexpr int kGroups = 256 / kSize;
  float w[256], scales[kGroups], largest = 0, mean = 0;
  for (int i = 0; i < 256; ++i) mean += x[i] * x[i] / 256;
  for (int i = 0; i < 256; ++i) w[i] = mean + x[i] * x[i];
  for (int g = 0; g < kGroups; ++g) {
    scales[g] = fit(book, x + g * kSize, w + g * kSize, kSize, even_signs);
    largest = std::max(largest, scales[g]);
  }
  d_bits = float_to_half(largest / (a + 15 * b));
  const float d = half_to_float(d_bits);
  for (int g = 0; g < kGroups; ++g) {
    const float ratio = d > 0 ? scales[g] / d : 0;
    scale_codes[g] = std::clamp(static_cast<int>(std::lrintf((ratio - a) / b)), 0, 15);
    out[g] = choose(book, x + g * kSize, w + g * kSize, kSize,
                    d * (a + b * static_cast<float>(scale_codes[g])), even_signs);
  }
}

}  // namespace

void encode_block(const float* x, BlockIQ2_XXS& b) {
  static const Book book(kIq2XxsGrid, 8);
  int scales[8];
  Choice choice[8];
  encode_groups<32>(book, x, true, 0.125f, 0.25f, b.d, scales, choice);
  for (int g = 0; g < 8; ++g) {
    uint32_t index = 0, signs = static_cast<uint32_t>(scales[g]) << 28;
    for (int i = 0; i < 4; ++i) {
      index |= static_cast<uint32_t>(choice[g].entries[i]) << (8 * i);
      signs |= (choice[g].signs[i] & 127u) << (7 * i);
    }
    std::memcpy(b.q + 4 * g, &index, 4);
    std::memcpy(b.q + 4 * g + 2, &signs, 4);
  }
}

void encode_block(const float* x, BlockIQ2_XS& b) {
  static const Book book(kIq2XsGrid, 8);
  int scales[16];
  Choice choice[16];
  encode_groups<16>(book, x, true, 0.125f, 0.25f, b.d, scales, choice);
  for (int g = 0; g < 16; ++g) {
    for (int i = 0; i < 2; ++i)
      b.q[2 * g + i] = static_cast<uint16_t>(static_cast<uint32_t>(choice[g].entries[i]) |
                                             (choice[g].signs[i] & 127u) << 9);
  }
  for (int g = 0; g < 8; ++g) b.s[g] = static_cast<uint8_t>(scales[2 * g] | scales[2 * g + 1] << 4);
}

void encode_block(const float* x, BlockIQ2_S& b) {
  static const Book book(kIq2SGrid, 8);
  int scales[16];
  Choice choice[16];
  encode_groups<16>(book, x, false, 0.125f, 0.25f, b.d, scales, choice);
  std::memset(b.h, 0, sizeof b.h);
  for (int k = 0; k < 32; ++k) {
    const int entry = choice[k / 2].entries[k % 2];
    b.q[k] = static_cast<uint8_t>(entry & 255);
    b.signs[k] = static_cast<uint8_t>(choice[k / 2].signs[k % 2]);
    b.h[k >> 2] = static_cast<uint8_t>(b.h[k >> 2] | (entry >> 8) << (2 * (k & 3)));
  }
  for (int g = 0; g < 8; ++g) b.s[g] = static_cast<uint8_t>(scales[2 * g] | scales[2 * g + 1] << 4);
}

void encode_block(const float* x, BlockIQ3_XXS& b) {
  static const Book book(kIq3XxsGrid, 4);
  int scales[8];
  Choice choice[8];
  encode_groups<32>(book, x, true, 0.25f, 0.5f, b.d, scales, choice);
  for (int g = 0; g < 8; ++g) {
    uint32_t signs = static_cast<uint32_t>(scales[g]) << 28;
    for (int i = 0; i < 4; ++i) signs |= (choice[g].signs[i] & 127u) << (7 * i);
    for (int i = 0; i < 8; ++i) b.q[8 * g + i] = static_cast<uint8_t>(choice[g].entries[i]);
    std::memcpy(b.s + 4 * g, &signs, 4);
  }
}

void encode_block(const float* x, BlockIQ3_S& b) {
  static const Book book(kIq3SGrid, 4);
  int scales[8];
  Choice choice[8];
  encode_groups<32>(book, x, false, 1, 2, b.d, scales, choice);
  std::memset(b.h, 0, sizeof b.h);
  std::memset(b.s, 0, sizeof b.s);
  for (int g = 0; g < 8; ++g) {
    b.s[g >> 1] = static_cast<uint8_t>(b.s[g >> 1] | scales[g] << (4 * (g & 1)));
    for (int i = 0; i < 8; ++i) {
      b.q[8 * g + i] = static_cast<uint8_t>(choice[g].entries[i] & 255);
      b.h[g] = static_cast<uint8_t>(b.h[g] | (choice[g].entries[i] >> 8) << i);
    }
    for (int i = 0; i < 4; ++i) b.signs[4 * g + i] = static_cast<uint8_t>(choice[g].signs[i]);
  }
}

}  // namespace quern::quant

// Every op in double precision, loops straight from the headers' formulas. The only other copy of the model's
// arithmetic; it never ships.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace quern::reference {

using Vector = std::vector<double>;

inline size_t at(int64_t i) { return static_cast<size_t>(i); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }
inline double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

// x [rows, k] · W [n, k]ᵀ
inline Vector linear(const Vector& x, const Vector& w, int64_t rows, int64_t n, int64_t k) {
  Vector y(at(rows * n));
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += x[at(t * k + j)] * w[at(i * k + j)];
      y[at(t * n + i)] = sum;
    }
  return y;
}

// Rows of x [rows, k] with each group of 32 rounded to 8 bits (ops/cpu/product.h). Which code a value gets is
// decided by f32 arithmetic, so this is done in f32; the values they stand for are double.
struct Rounded {
  std::vector<int> codes;
  Vector values;
};
inline Rounded round_to_int8(const Vector& x, int64_t rows, int64_t k) {
  Rounded out{std::vector<int>(x.size()), Vector(x.size())};
  for (int64_t begin = 0; begin < rows * k; begin += 32) {
    float top = 0;
    for (int64_t i = begin; i < begin + 32; ++i) top = std::max(top, std::abs(static_cast<float>(x[at(i)])));
    const float d = top / 127.0f, inverse = top > 0 ? 127.0f / top : 0;
    for (int64_t i = begin; i < begin + 32; ++i) {
      out.codes[at(i)] = static_cast<int>(std::nearbyint(static_cast<float>(x[at(i)]) * inverse));
      out.values[at(i)] = double{d} * out.codes[at(i)];
    }
  }
  return out;
}

// Norm of d values at x, with one plus the weight, or with the weight itself.
inline Vector rms(const double* x, const double* w, int64_t d, double eps, bool zero_centred = true) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += x[i] * x[i];
  const double r = 1 / std::sqrt(sum / static_cast<double>(d) + eps);
  Vector y(at(d));
  for (int64_t i = 0; i < d; ++i) y[at(i)] = x[i] * r * (zero_centred ? 1 + w[i] : w[i]);
  return y;
}

// x [rows, groups·d], w [groups·d]
inline Vector rms_norm(const Vector& x, const Vector& w, int64_t rows, int64_t groups, int64_t d,
                       double eps) {
  Vector y(x.size());
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t g = 0; g < groups; ++g) {
      const Vector part = rms(&x[at((t * groups + g) * d)], &w[at(g * d)], d, eps);
      std::copy(part.begin(), part.end(), y.begin() + (t * groups + g) * d);
    }
  return y;
}

struct Mix {
  Vector h, inj;
};
// x [rows, S·H]; down [R, S·H], up [S·H, R], inject [S, S·H] or empty
inline Mix hc_mix(const Vector& x, const Vector& norm, const Vector& down, const Vector& up,
                  const Vector& inject, int64_t rows, int64_t S, int64_t H, int64_t R, double eps) {
  Mix out{Vector(at(rows * H)), {}};
  const Vector n = rms_norm(x, norm, rows, S, H, eps);
  Vector low = linear(n, down, rows, R, S * H);
  for (double& v : low) v = silu(v / static_cast<double>(S));
  const Vector mix = linear(low, up, rows, S * H, R);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t s = 0; s < S; ++s)
      for (int64_t i = 0; i < H; ++i) {
        const size_t e = at((t * S + s) * H + i);
        out.h[at(t * H + i)] += sigmoid(mix[e]) * n[e] / static_cast<double>(S);
      }
  if (!inject.empty()) {
    out.inj = linear(n, inject, rows, S, S * H);
    for (double& v : out.inj) v = 2 * sigmoid(v / static_cast<double>(S));
  }
  return out;
}

struct Route {
  std::vector<int> ids;
  Vector p;
};
// The K largest of softmax(logits), ties to the lower id.
inline Route route(const double* logits, int64_t E, int64_t K, bool renormalise) {
  const double top = *std::max_element(logits, logits + E);
  Vector p(at(E));
  double sum = 0, chosen = 0;
  for (int64_t e = 0; e < E; ++e) sum += p[at(e)] = std::exp(logits[e] - top);
  Route r;
  for (int64_t e = 0; e < E; ++e) r.ids.push_back(static_cast<int>(e));
  std::stable_sort(r.ids.begin(), r.ids.end(), [&](int a, int b) { return p[at(a)] > p[at(b)]; });
  r.ids.resize(at(K));
  for (const int e : r.ids) chosen += p[at(e)];
  for (const int e : r.ids) r.p.push_back(p[at(e)] / (renormalise ? chosen : sum));
  return r;
}

// down · (silu(gate·h) ⊙ up·h) of one row
inline Vector expert(const double* h, const Vector& gate, const Vector& up, const Vector& down, int64_t I,
                     int64_t H) {
  const Vector row(h, h + H);
  Vector g = linear(row, gate, 1, I, H);
  const Vector u = linear(row, up, 1, I, H);
  for (int64_t i = 0; i < I; ++i) g[at(i)] = silu(g[at(i)]) * u[at(i)];
  return linear(g, down, 1, H, I);
}

struct DeltaShape {
  int64_t n_k, n_v, d_k, d_v;
  bool tiled, silu_gate;
};
// A whole sequence from position 0; conv [C, 4]
inline Vector delta_net(const Vector& qkv, const Vector& z, const Vector& a, const Vector& b,
                        const DeltaShape& s, const Vector& conv, const Vector& decay, const Vector& dt_bias,
                        const Vector& norm, int64_t rows, double eps) {
  const int64_t keys = s.n_k * s.d_k, C = 2 * keys + s.n_v * s.d_v;
  Vector y(at(rows * s.n_v * s.d_v)), M(at(s.n_v * s.d_k * s.d_v));
  for (int64_t t = 0; t < rows; ++t) {
    Vector c(at(C));
    for (int64_t i = 0; i < C; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j)
        if (t - 3 + j >= 0) sum += conv[at(i * 4 + j)] * qkv[at((t - 3 + j) * C + i)];
      c[at(i)] = silu(sum);
    }
    for (int64_t head = 0; head < 2 * s.n_k; ++head) {
      double* x = &c[at(head * s.d_k)];
      double sum = 0;
      for (int64_t i = 0; i < s.d_k; ++i) sum += x[i] * x[i];
      const double r = 1 / std::sqrt(sum + 1e-6) / (head < s.n_k ? std::sqrt(static_cast<double>(s.d_k)) : 1);
      for (int64_t i = 0; i < s.d_k; ++i) x[i] *= r;
    }
    for (int64_t head = 0; head < s.n_v; ++head) {
      const int64_t kh = s.tiled ? head % s.n_k : head / (s.n_v / s.n_k);
      const double *q = &c[at(kh * s.d_k)], *k = &c[at(keys + kh * s.d_k)],
                   *v = &c[at(2 * keys + head * s.d_v)];
      double* m = &M[at(head * s.d_k * s.d_v)];
      const double beta = sigmoid(b[at(t * s.n_v + head)]);
      const double e = std::exp(decay[at(head)] * softplus(a[at(t * s.n_v + head)] + dt_bias[at(head)]));
      Vector o(at(s.d_v));
      for (int64_t j = 0; j < s.d_v; ++j) {
        double mk = 0;
        for (int64_t i = 0; i < s.d_k; ++i) mk += (m[i * s.d_v + j] *= e) * k[i];
        const double d = beta * (v[j] - mk);
        for (int64_t i = 0; i < s.d_k; ++i) o[at(j)] += (m[i * s.d_v + j] += k[i] * d) * q[i];
      }
      const Vector n = rms(o.data(), norm.data(), s.d_v, eps, false);
      for (int64_t j = 0; j < s.d_v; ++j) {
        const size_t to = at((t * s.n_v + head) * s.d_v + j);
        y[to] = n[at(j)] * (s.silu_gate ? silu(z[to]) : sigmoid(z[to]));
      }
    }
  }
  return y;
}

// Norm, then rotation of the first d_rope values by position · theta^(-2i/d_rope), the frequency and the angle
// rounded to f32 as the header says.
inline Vector rms_rope(const double* x, const Vector& w, int64_t d, int64_t d_rope, double position,
                       double theta, double eps) {
  Vector y = rms(x, w.data(), d, eps);
  for (int64_t i = 0; i < d_rope / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(d_rope);
    const float frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    const double angle = static_cast<float>(position) * frequency;
    const double p = y[at(i)], q = y[at(i + d_rope / 2)];
    y[at(i)] = p * std::cos(angle) - q * std::sin(angle);
    y[at(i + d_rope / 2)] = q * std::cos(angle) + p * std::sin(angle);
  }
  return y;
}

// The best `budget` blocks, ties to the lowest, ascending.
inline std::vector<int> best_blocks(const Vector& scores, int64_t budget) {
  std::vector<int> order;
  for (size_t b = 0; b < scores.size(); ++b) order.push_back(static_cast<int>(b));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[at(a)] > scores[at(b)]; });
  if (static_cast<int64_t>(order.size()) > budget) order.resize(at(budget));
  std::sort(order.begin(), order.end());
  return order;
}

struct SparseShape {
  int64_t n_heads, n_kv, d_head, d_rope, index_heads, d_index, budget;
  double theta;
};
struct Sparse {
  Vector y;                              // [rows, n_heads·d_head]
  std::vector<std::vector<int>> blocks;  // chosen, per row
  std::vector<Vector> scores;            // of all complete blocks, per row
};
// A whole sequence from position 0; norms: q, k, index_q, index_k
inline Sparse sparse_attention(const Vector& q_gate, const Vector& k, const Vector& v, const Vector& qi,
                               const Vector& ki, const SparseShape& s, const Vector& norm_q,
                               const Vector& norm_k, const Vector& norm_iq, const Vector& norm_ik,
                               int64_t rows, double eps) {
  Sparse out{Vector(at(rows * s.n_heads * s.d_head)), {}, {}};
  std::vector<Vector> keys, pooled;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < s.n_kv; ++h)
      keys.push_back(rms_rope(&k[at((t * s.n_kv + h) * s.d_head)], norm_k, s.d_head, s.d_rope,
                              static_cast<double>(t), s.theta, eps));
    if (t % 4 == 3) {
      Vector mean(at(s.d_index));
      for (int64_t j = t - 3; j <= t; ++j)
        for (int64_t i = 0; i < s.d_index; ++i) mean[at(i)] += ki[at(j * s.d_index + i)] / 4;
      pooled.push_back(
          rms_rope(mean.data(), norm_ik, s.d_index, s.d_rope, static_cast<double>(t - 3), s.theta, eps));
    }
    Vector scores(pooled.size());
    for (int64_t h = 0; h < s.index_heads; ++h) {
      const Vector query = rms_rope(&qi[at((t * s.index_heads + h) * s.d_index)], norm_iq, s.d_index,
                                    s.d_rope, static_cast<double>(t), s.theta, eps);
      for (size_t b = 0; b < pooled.size(); ++b) {
        double dot = 0;
        for (int64_t i = 0; i < s.d_index; ++i) dot += query[at(i)] * pooled[b][at(i)];
        scores[b] += std::max(dot, 0.0) / std::sqrt(static_cast<double>(s.d_index));
      }
    }
    out.blocks.push_back(best_blocks(scores, s.budget));
    out.scores.push_back(scores);
    std::vector<int64_t> visible;
    for (const int b : out.blocks.back())
      for (int64_t j = 0; j < 4; ++j) visible.push_back(4 * b + j);
    for (int64_t p = (t + 1) / 4 * 4; p <= t; ++p) visible.push_back(p);
    for (int64_t h = 0; h < s.n_heads; ++h) {
      const int64_t kv = h / (s.n_heads / s.n_kv);
      const double* row = &q_gate[at((t * s.n_heads + h) * 2 * s.d_head)];
      const Vector query = rms_rope(row, norm_q, s.d_head, s.d_rope, static_cast<double>(t), s.theta, eps);
      Vector p;
      double top = -HUGE_VAL, sum = 0;
      for (const int64_t j : visible) {
        double dot = 0;
        for (int64_t i = 0; i < s.d_head; ++i) dot += query[at(i)] * keys[at(j * s.n_kv + kv)][at(i)];
        p.push_back(dot / std::sqrt(static_cast<double>(s.d_head)));
        top = std::max(top, p.back());
      }
      for (double& x : p) sum += x = std::exp(x - top);
      for (int64_t i = 0; i < s.d_head; ++i) {
        double o = 0;
        for (size_t j = 0; j < p.size(); ++j) o += p[j] * v[at((visible[j] * s.n_kv + kv) * s.d_head + i)];
        out.y[at((t * s.n_heads + h) * s.d_head + i)] = o / sum * sigmoid(row[s.d_head + i]);
      }
    }
  }
  return out;
}

// Table rows of token t of `ids`, as MODEL.md words it.
inline std::vector<int64_t> ngram_rows(const std::vector<int32_t>& ids, int64_t t,
                                       const std::vector<int64_t>& a, const std::vector<int64_t>& vocab,
                                       const std::vector<int64_t>& offset, int64_t eos) {
  int64_t w[3] = {ids[at(t)], eos, eos};
  for (int64_t back = 1; back < 3; ++back) {
    if (t - back < 0 || ids[at(t - back)] == eos) break;
    w[back] = ids[at(t - back)];
  }
  __extension__ typedef __int128 Wide;
  const auto product = [&](int i) {  // modulo 2^64, as a signed number
    Wide p = static_cast<Wide>(w[i]) * a[at(i)];
    return static_cast<int64_t>(static_cast<uint64_t>(p));
  };
  const int64_t m2 = product(0) ^ product(1), m3 = m2 ^ product(2);
  std::vector<int64_t> rows;
  for (size_t h = 0; h < vocab.size(); ++h) {
    const int64_t m = h < vocab.size() / 2 ? m2 : m3;
    rows.push_back(((m % vocab[h]) + vocab[h]) % vocab[h] + offset[h]);
  }
  return rows;
}

// A whole sequence from position 0. x [rows, S·H] → x after the block
inline Vector ple_add(const Vector& x, const Vector& key, const Vector& value, const Vector& norm_key,
                      const Vector& norm_query, const Vector& norm_conv, const Vector& conv, int64_t rows,
                      int64_t S, int64_t H, double eps) {
  const int64_t W = S * H;
  const Vector k = rms_norm(key, norm_key, rows, S, H, eps), q = rms_norm(x, norm_query, rows, S, H, eps);
  Vector v(x.size());
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t s = 0; s < S; ++s) {
      double g = 0;
      for (int64_t i = 0; i < H; ++i) g += k[at(t * W + s * H + i)] * q[at(t * W + s * H + i)];
      g /= std::sqrt(static_cast<double>(H));
      const double sign = g > 0 ? 1 : g < 0 ? -1 : 0;
      g = sign * std::sqrt(std::max(std::abs(g), 1e-6));
      for (int64_t i = 0; i < H; ++i) v[at(t * W + s * H + i)] = sigmoid(g) * value[at(t * H + i)];
    }
  const Vector u = rms_norm(v, norm_conv, rows, S, H, eps);
  Vector out(x.size());
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t c = 0; c < W; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j)
        if (t - 3 * (3 - j) >= 0) sum += conv[at(c * 4 + j)] * u[at((t - 3 * (3 - j)) * W + c)];
      out[at(t * W + c)] = x[at(t * W + c)] + v[at(t * W + c)] + silu(sum);
    }
  return out;
}

}  // namespace quern::reference

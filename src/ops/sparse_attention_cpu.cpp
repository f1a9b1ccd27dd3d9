#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/scalar.h"
#include "ops/sparse_attention.h"

namespace quern::cpu {
namespace {

// Norm and rotation of one head, in place.
struct NormRope {
  const float* w;
  int64_t d;
  int d_rope;
  const float* frequency;  // [d_rope / 2]
  float eps;

  void operator()(float* x, int32_t position) const {
    const float r = 1.0f / std::sqrt(simd::sum_squares(x, d) / static_cast<float>(d) + eps);
    simd::norm_scale(x, x, r, w, d);
    const int half = d_rope / 2;
    for (int i = 0; i < half; ++i) {
      const float angle = scalar::rope_angle(position, frequency[i]);
      const float c = std::cos(angle), sn = std::sin(angle), a = x[i], b = x[i + half];
      x[i] = a * c - b * sn;
      x[i + half] = b * c + a * sn;
    }
  }
};

void store_kv(std::byte* to, const float* from, int64_t n, DType type) {
  if (type == DType::F32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  auto* half = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < n; ++i)
    half[i] = type == DType::BF16 ? scalar::f32_to_bf16(from[i]) : scalar::f32_to_f16(from[i]);
}

int64_t page_of(const BatchView& batch, const Segment& segment, int64_t page) {
  return batch.page_tables[segment.page_table + page];
}

// Entry `at` (position + shift) of K or V in its page.
std::byte* entry(const Tensor& pages, int64_t page, int kv_head, int64_t at) {
  const int64_t row = (page * pages.shape[1] + kv_head) * kPageTokens + at % kPageTokens;
  return pages.data + row * row_bytes(pages.dtype, pages.cols());
}

float* pooled_key(const Tensor& pooled, int64_t page, int64_t block) {
  return pooled.as<float>() + (page * kPageBlocks + block % kPageBlocks) * pooled.cols();
}

// Blocks [0, n) of `scores` in, the best `budget` of them out, ascending; ties go to the lowest block.
void choose_blocks(int32_t* blocks, const float* scores, float* order, int64_t n, int64_t budget) {
  std::copy(scores, scores + n, order);
  std::nth_element(order, order + budget - 1, order + n, std::greater<float>());
  const float border = order[budget - 1];
  int64_t above = 0;
  for (int64_t b = 0; b < n; ++b) above += scores[b] > border;
  int64_t ties = budget - above, count = 0;
  for (int64_t b = 0; b < n && count < budget; ++b) {
    if (scores[b] > border || (scores[b] == border && ties-- > 0)) blocks[count++] = static_cast<int32_t>(b);
  }
}

}  // namespace

void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps) {
  ScratchScope scope(s);
  float* frequency = s.scratch(DType::F32, {1, std::max(shape.d_rope / 2, 1)}).as<float>();
  for (int i = 0; i < shape.d_rope / 2; ++i)
    frequency[i] = scalar::rope_frequency(i, shape.d_rope, shape.rope_theta);
  const auto rope = [&](const Tensor& w, int64_t d) {
    return NormRope{w.as<float>(), d, shape.d_rope, frequency, eps};
  };
  const NormRope norm_q = rope(norms.q, shape.d_head), norm_k = rope(norms.k, shape.d_head);
  const NormRope norm_qi = rope(norms.index_q, shape.d_index), norm_ki = rope(norms.index_k, shape.d_index);

  s.pool().parallel_for(batch.n_rows, 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Segment& segment = batch.segments[batch.segment_of[t]];
      const int32_t p = batch.positions[t];
      for (int h = 0; h < shape.n_heads; ++h) norm_q(q_gate.row<float>(t) + int64_t{h} * 2 * shape.d_head, p);
      for (int h = 0; h < shape.index_heads; ++h) norm_qi(qi.row<float>(t) + int64_t{h} * shape.d_index, p);
      if (segment.role == Role::Pad) continue;
      const int64_t at = int64_t{p} + cache.shift, page = page_of(batch, segment, at / kPageTokens);
      for (int h = 0; h < shape.n_kv; ++h) {
        float* key = k.row<float>(t) + int64_t{h} * shape.d_head;
        norm_k(key, p);
        store_kv(entry(cache.k, page, h, at), key, shape.d_head, cache.k.dtype);
        store_kv(entry(cache.v, page, h, at), v.row<float>(t) + int64_t{h} * shape.d_head, shape.d_head,
                 cache.v.dtype);
      }
      if (p % kBlockTokens != kBlockTokens - 1) continue;
      const int64_t block = p / kBlockTokens + cache.shift;
      float* pooled = pooled_key(cache.pooled, page_of(batch, segment, block / kPageBlocks), block);
      const float* raw[kBlockTokens];
      for (int64_t j = 0; j < kBlockTokens; ++j) {
        const int64_t back = kBlockTokens - 1 - j;
        raw[j] = t - back >= segment.row
                     ? ki.row<float>(t - back)
                     : cache.ring.as<float>() +
                           (segment.slot * kConvRing + (p - back) % kConvRing) * shape.d_index;
      }
      for (int i = 0; i < shape.d_index; ++i)
        pooled[i] = (((raw[0][i] + raw[1][i]) + raw[2][i]) + raw[3][i]) / 4.0f;
      norm_ki(pooled, p - (kBlockTokens - 1));
    }
  });
  for (int64_t i = 0; i < batch.n_segments; ++i) {  // after every row has read the ring
    const Segment& segment = batch.segments[i];
    if (segment.role == Role::Pad) continue;
    for (int64_t r = std::max<int64_t>(segment.n_rows - kConvRing, 0); r < segment.n_rows; ++r) {
      std::memcpy(cache.ring.as<float>() +
                      (segment.slot * kConvRing + (segment.position + r) % kConvRing) * shape.d_index,
                  ki.row<float>(segment.row + r), static_cast<size_t>(shape.d_index) * sizeof(float));
    }
  }
}

void qsa_select(Stream& s, const Selection& selection, Tensor qi, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.d_index));
  s.pool().parallel_for(batch.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Segment& segment = batch.segments[batch.segment_of[t]];
      const int64_t n = segment.role == Role::Pad ? 0 : (batch.positions[t] + 1) / kBlockTokens;
      int32_t* blocks = selection.blocks.row<int32_t>(t);
      selection.counts.as<int32_t>()[t] = static_cast<int32_t>(std::min<int64_t>(n, shape.budget_blocks));
      if (n <= shape.budget_blocks) {
        for (int64_t b = 0; b < n; ++b) blocks[b] = static_cast<int32_t>(b);
        continue;
      }
      float* scores = thread_scratch(0, n);
      for (int64_t b = 0; b < n; b += kPageBlocks) {
        const float* keys[kPageBlocks];
        const int64_t count = std::min<int64_t>(n - b, kPageBlocks);
        for (int64_t j = 0; j < count; ++j) {
          const int64_t at = b + j + cache.shift;
          keys[j] = pooled_key(cache.pooled, page_of(batch, segment, at / kPageBlocks), at);
        }
        simd::index_scores(scores + b, qi.row<float>(t), keys, shape.index_heads, shape.d_index, count,
                           scale);
      }
      choose_blocks(blocks, scores, thread_scratch(1, n), n, shape.budget_blocks);
    }
  });
}

void qsa_attend(Stream& s, Tensor y, Tensor q_gate, const Selection& selection, const QsaShape& shape,
                const QsaCache& cache, const BatchView& batch) {
  const int64_t group = shape.n_heads / shape.n_kv, d = shape.d_head;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  s.pool().parallel_for(batch.n_rows * shape.n_kv, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / shape.n_kv;
      const int kv = static_cast<int>(i % shape.n_kv);
      const Segment& segment = batch.segments[batch.segment_of[t]];
      float* o = y.row<float>(t) + kv * group * d;
      std::fill(o, o + group * d, 0.0f);
      if (segment.role == Role::Pad) continue;
      float* m = thread_scratch(0, 2 * group);
      std::fill(m, m + group, -HUGE_VALF);
      std::fill(m + group, m + 2 * group, 0.0f);
      const simd::AttentionState state{m, m + group, o};
      const float* q[64];
      QUERN_CHECK(group <= 64, "qsa_attend: more than 64 query heads share a key head");
      for (int64_t h = 0; h < group; ++h) q[h] = q_gate.row<float>(t) + (kv * group + h) * 2 * d;

      const void* keys[kRunTokens];
      const void* values[kRunTokens];
      int64_t in_run = 0;
      const auto push = [&](int64_t position) {
        const int64_t at = position + cache.shift, page = page_of(batch, segment, at / kPageTokens);
        keys[in_run] = entry(cache.k, page, kv, at);
        values[in_run] = entry(cache.v, page, kv, at);
        if (++in_run < kRunTokens) return;
        simd::attend_run(state, q, group, d, keys, values, cache.k.dtype, in_run, scale);
        in_run = 0;
      };
      const int64_t visible = batch.positions[t] + 1;
      const int32_t* blocks = selection.blocks.row<int32_t>(t);
      for (int32_t b = 0; b < selection.counts.as<int32_t>()[t]; ++b)
        for (int64_t j = 0; j < kBlockTokens; ++j) push(int64_t{blocks[b]} * kBlockTokens + j);
      for (int64_t p = visible / kBlockTokens * kBlockTokens; p < visible; ++p) push(p);
      if (in_run > 0) simd::attend_run(state, q, group, d, keys, values, cache.k.dtype, in_run, scale);

      for (int64_t h = 0; h < group; ++h) {
        simd::scale(o + h * d, o + h * d, 1.0f / state.l[h], d);
        simd::gate_sigmoid(o + h * d, q[h] + d, d);
      }
    }
  });
}

}  // namespace quern::cpu

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/ple.h"
#include "ops/scalar.h"

namespace quern::cpu {

void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table) {
  const auto heads = static_cast<int64_t>(hash.vocab.size());
  ScratchScope scope(s);
  const Tensor rows = s.scratch(DType::I64, {std::max<int64_t>(batch.n_rows, 1), heads});
  for (int64_t t = 0; t < batch.n_rows; ++t) {
    // All addresses of the step are known before the first row is read, so the misses overlap.
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = scalar::ngram_row(
          batch.windows + 3 * t, hash.multiplier.data(), hash.vocab[static_cast<size_t>(h)],
          hash.offset[static_cast<size_t>(h)], static_cast<int>(h), static_cast<int>(heads), hash.eos);
      const int64_t part = row / table.rows_per_part;
      rows.row<int64_t>(t)[h] = row;
      QUERN_CHECK(row >= 0 && part < static_cast<int64_t>(table.parts.size()),
                  "ple_rows: a row beyond the table");
      const Tensor& data = table.parts[static_cast<size_t>(part)].data;
      const int64_t bytes = row_bytes(data.dtype, data.row_stride);
      const std::byte* at = data.data + row % table.rows_per_part * bytes;
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
    }
  }
  s.pool().parallel_for(batch.n_rows * heads, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads, h = i % heads, row = rows.row<int64_t>(t)[h];
      const Weight& part = table.parts[static_cast<size_t>(row / table.rows_per_part)];
      weight_row(part, row % table.rows_per_part, emb.row<float>(t) + h * table.d_row);
    }
  });
}

void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps) {
  const int64_t wide = x.cols(), width = wide / streams;
  ScratchScope scope(s);
  const Tensor v = s.scratch(DType::F32, {std::max<int64_t>(batch.n_rows, 1), wide});
  const Tensor u = s.scratch(DType::F32, {std::max<int64_t>(batch.n_rows, 1), wide});
  const auto inverse_rms = [&](const float* p) {
    return 1.0f / std::sqrt(simd::sum_squares(p, width) / static_cast<float>(width) + eps);
  };
  s.pool().parallel_for(batch.n_rows * streams, 2, [&](int64_t begin, int64_t end) {
    float* k = thread_scratch(1, width);
    float* q = thread_scratch(2, width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / streams, at = i % streams * width;
      simd::norm_scale(k, key.row<float>(t) + at, inverse_rms(key.row<float>(t) + at),
                       w.norm_key.as<float>() + at, width);
      simd::norm_scale(q, x.row<float>(t) + at, inverse_rms(x.row<float>(t) + at),
                       w.norm_query.as<float>() + at, width);
      const float g = scalar::signed_sqrt(simd::dot(k, q, width) / std::sqrt(static_cast<float>(width)));
      simd::scale(v.row<float>(t) + at, value.row<float>(t), scalar::sigmoid(g), width);
      simd::norm_scale(u.row<float>(t) + at, v.row<float>(t) + at, inverse_rms(v.row<float>(t) + at),
                       w.norm_conv.as<float>() + at, width);
    }
  });
  s.pool().parallel_for(batch.n_rows, 1, [&](int64_t begin, int64_t end) {
    float* conv = thread_scratch(1, wide);
    for (int64_t t = begin; t < end; ++t) {
      const Segment& segment = batch.segments[batch.segment_of[t]];
      const float* taps[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t back = 3 * (3 - j), position = batch.positions[t] - back;
        taps[j] = position < 0 ? nullptr
                  : t - back >= segment.row
                      ? u.row<float>(t - back)
                      : ring.as<float>() + (segment.slot * kPleRing + position % kPleRing) * wide;
      }
      simd::conv4_silu(conv, taps, w.conv.as<float>(), wide);
      simd::axpy(x.row<float>(t), 1.0f, v.row<float>(t), wide);
      simd::axpy(x.row<float>(t), 1.0f, conv, wide);
    }
  });
  s.pool().parallel_for(batch.n_segments, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Segment& segment = batch.segments[i];
      if (segment.role == Role::Pad) continue;
      for (int64_t r = std::max<int64_t>(segment.n_rows - kPleRing, 0); r < segment.n_rows; ++r) {
        std::memcpy(ring.as<float>() + (segment.slot * kPleRing + (segment.position + r) % kPleRing) * wide,
                    u.row<float>(segment.row + r), static_cast<size_t>(wide) * sizeof(float));
      }
    }
  });
}

}  // namespace quern::cpu

#include <algorithm>
#include <cmath>

#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/hyper_connection.h"
#include "ops/scalar.h"

namespace quern::cpu {

// n exists for a block of rows at a time: two times 96 rows of S·H stay within the last-level cache.
constexpr int64_t kMixRows = 96;

void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps) {
  const int64_t wide = x.cols(), width = h.cols(), rank = w.down.n();
  const float inverse = 1.0f / static_cast<float>(streams);
  ScratchScope scope(s);
  const int64_t block = std::min(kMixRows, x.shape[0]);
  const Tensor n = s.scratch(DType::F32, {block, wide});
  const Tensor up = s.scratch(DType::F32, {block, wide});
  const Tensor low = s.scratch(DType::F32, {block, rank});
  for (int64_t t0 = 0; t0 < x.shape[0]; t0 += block) {
    const int64_t rows = std::min(block, x.shape[0] - t0);
    s.pool().parallel_for(rows * streams, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / streams, stream = i % streams;
        const float* from = x.row<float>(t0 + t) + stream * width;
        const float r = 1.0f / std::sqrt(simd::sum_squares(from, width) / static_cast<float>(width) + eps);
        simd::norm_scale(n.row<float>(t) + stream * width, from, r, w.norm.as<float>() + stream * width,
                         width);
      }
    });
    const Input wide_rows{n.as<float>(), wide, rows, wide};
    RowProduct first[2] = {{.w = &w.down, .y = low.as<float>(), .y_stride = rank, .n_rows = rows}, {}};
    if (inj) first[1] = {.w = &w.inject, .y = inj.row<float>(t0), .y_stride = inj.row_stride, .n_rows = rows};
    matmul(s, {&wide_rows, 1}, {first, inj ? size_t{2} : size_t{1}});
    for (int64_t t = 0; t < rows; ++t) {
      simd::silu_scaled(low.row<float>(t), low.row<float>(t), inverse, rank);
      if (!inj) continue;
      float* to = inj.row<float>(t0 + t);
      for (int i = 0; i < streams; ++i) to[i] = 2.0f * scalar::sigmoid(to[i] * inverse);
    }
    const Input low_rows{low.as<float>(), rank, rows, rank};
    const RowProduct second{.w = &w.up, .y = up.as<float>(), .y_stride = wide, .n_rows = rows};
    matmul(s, {&low_rows, 1}, {&second, 1});
    s.pool().parallel_for(rows, 2, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        simd::mix_streams(h.row<float>(t0 + t), up.row<float>(t), n.row<float>(t), streams, width);
    });
  }
}

}  // namespace quern::cpu

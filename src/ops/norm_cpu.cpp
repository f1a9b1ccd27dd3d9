#include <cmath>

#include "ops/cpu/simd.h"
#include "ops/norm.h"

namespace quern::cpu {

void rms_norm(Stream& s, Tensor y, Tensor x, Tensor w, int groups, float eps) {
  const int64_t d = x.cols() / groups;
  s.pool().parallel_for(x.rows() * groups, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / groups, g = i % groups;
      const float* from = x.row<float>(t) + g * d;
      const float r = 1.0f / std::sqrt(simd::sum_squares(from, d) / static_cast<float>(d) + eps);
      simd::norm_scale(y.row<float>(t) + g * d, from, r, w.as<float>() + g * d, d);
    }
  });
}

}  // namespace quern::cpu

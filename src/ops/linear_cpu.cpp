#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/linear.h"

namespace quern::cpu {

void linear(Stream& s, std::span<const Product> products, Tensor x) {
  const Input input{x.as<float>(), x.row_stride, x.shape[0], x.shape[1]};
  RowProduct rows[kMaxProducts];
  for (size_t i = 0; i < products.size(); ++i) {
    rows[i] = {.w = products[i].w,
               .y = products[i].y.as<float>(),
               .y_stride = products[i].y.row_stride,
               .n_rows = x.shape[0]};
  }
  matmul(s, {&input, 1}, {rows, products.size()});
}

void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w) {
  ScratchScope scope(s);
  const Tensor y = s.scratch(DType::F32, {a.shape[0], w.n()});
  const Product product{y, &w};
  cpu::linear(s, {&product, 1}, a);
  const int64_t streams = inj.shape[1], n = w.n();
  s.pool().parallel_for(a.shape[0] * streams, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / streams, stream = i % streams;
      simd::axpy(x.row<float>(t) + stream * n, inj.row<float>(t)[stream], y.row<float>(t), n);
    }
  });
}

}  // namespace quern::cpu

#include "ops/linear.h"

#include <fmt/core.h>

#include "base/check.h"

namespace quern {
namespace {

void check_rows(const Tensor& t, int64_t rows, int64_t cols, const char* what) {
  QUERN_CHECK(t.rank == 2 && t.dtype == DType::F32, fmt::format("linear: {} is no f32 matrix", what));
  QUERN_CHECK(
      t.shape[0] == rows && t.shape[1] == cols,
      fmt::format("linear: {} is [{}, {}], expected [{}, {}]", what, t.shape[0], t.shape[1], rows, cols));
}

}  // namespace

void linear(Stream& s, Tensor y, Tensor x, const Weight& w, int64_t n_decode_rows) {
  const Product product{y, &w};
  linear(s, {&product, 1}, x, n_decode_rows);
}

void linear(Stream& s, std::span<const Product> products, Tensor x, [[maybe_unused]] int64_t n_decode_rows) {
  QUERN_CHECK(!products.empty() && products.size() <= kMaxProducts, "linear: 1 to kMaxProducts products");
  for (const Product& p : products) {
    check_rows(x, x.shape[0], p.w->k(), "x");
    check_rows(p.y, x.shape[0], p.w->n(), "y");
  }
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::linear(s, products, x, n_decode_rows);
  }
  cpu::linear(s, products, x);
}

void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w,
                   [[maybe_unused]] int64_t n_decode_rows) {
  check_rows(a, a.shape[0], w.k(), "a");
  check_rows(inj, a.shape[0], inj.shape[1], "inj");
  check_rows(x, a.shape[0], inj.shape[1] * w.n(), "x");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::linear_inject(s, x, inj, a, w, n_decode_rows);
  }
  cpu::linear_inject(s, x, inj, a, w);
}

}  // namespace quern

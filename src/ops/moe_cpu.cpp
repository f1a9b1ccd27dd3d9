#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <span>

#include "base/check.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/moe.h"
#include "ops/scalar.h"

namespace quern::cpu {
namespace {

// softmax, the K largest, largest first, ties to the lower id
void choose(int32_t* ids, float* p, float* l, const MoeWeights& w, int32_t* order) {
  const int64_t n = w.router.n(), k = w.top_k;
  const float top = *std::max_element(l, l + n);
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) {
    l[e] = std::exp(l[e] - top);
    sum += l[e];
  }
  for (int64_t e = 0; e < n; ++e) {
    l[e] /= sum;
    if (!(l[e] >= 0)) l[e] = 0;  // a NaN row chooses experts 0 … K-1; p stays NaN below
  }
  std::iota(order, order + n, 0);
  std::partial_sort(order, order + k, order + n,
                    [&](int32_t a, int32_t b) { return l[a] != l[b] ? l[a] > l[b] : a < b; });
  float chosen = 0;
  for (int64_t j = 0; j < k; ++j) chosen += l[order[j]];
  for (int64_t j = 0; j < k; ++j) {
    ids[j] = order[j];
    p[j] = w.renormalise ? l[order[j]] / chosen : l[order[j]];
    if (!(sum > 0)) p[j] = sum;
  }
}

}  // namespace

void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w) {
  ScratchScope scope(s);
  const Tensor logits = s.scratch(DType::F32, {h.shape[0], w.router.n()});
  const Tensor order = s.scratch(DType::I32, {h.shape[0], w.router.n()});
  const Input input{h.as<float>(), h.row_stride, h.shape[0], h.shape[1]};
  const RowProduct product{
      .w = &w.router, .y = logits.as<float>(), .y_stride = logits.row_stride, .n_rows = h.shape[0]};
  matmul(s, {&input, 1}, {&product, 1});
  s.pool().parallel_for(h.shape[0], 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      choose(ids.row<int32_t>(t), p.row<float>(t), logits.row<float>(t), w, order.row<int32_t>(t));
  });
}

// The T·K (row, choice) pairs are ordered by expert, rows ascending within one; the shared expert follows as
// one more group with all rows. Pair i's intermediate is row i of `act`, and its result row t·K + j of
// `results`.
void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w, Tensor y) {
  const int64_t rows = h.shape[0], k = w.top_k, experts = w.gate.n_experts, width = h.cols();
  const int64_t inner = w.gate.n, shared_inner = w.shared_gate.n(), pairs = rows * k;
  ScratchScope scope(s);
  const Tensor first = s.scratch(DType::I32, {1, experts + 1});
  const Tensor pair_row = s.scratch(DType::I32, {1, pairs});     // row of h
  const Tensor pair_result = s.scratch(DType::I32, {1, pairs});  // row of results
  int32_t* begin_of = first.as<int32_t>();
  std::fill(begin_of, begin_of + experts + 1, 0);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t j = 0; j < k; ++j) {
      const int32_t e = ids.row<int32_t>(t)[j];
      QUERN_CHECK(e >= 0 && e < experts, "moe: an expert id is outside [0, E)");
      ++begin_of[e + 1];
    }
  for (int64_t e = 0; e < experts; ++e) begin_of[e + 1] += begin_of[e];
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t j = 0; j < k; ++j) {
      const int32_t at = begin_of[ids.row<int32_t>(t)[j]]++;
      pair_row.as<int32_t>()[at] = static_cast<int32_t>(t);
      pair_result.as<int32_t>()[at] = static_cast<int32_t>(t * k + j);
    }
  for (int64_t e = experts; e > 0; --e) begin_of[e] = begin_of[e - 1];
  begin_of[0] = 0;

  const Tensor gate = s.scratch(DType::F32, {pairs, inner}), up = s.scratch(DType::F32, {pairs, inner});
  const Tensor shared_gate = s.scratch(DType::F32, {rows, shared_inner});
  const Tensor shared_up = s.scratch(DType::F32, {rows, shared_inner});
  const Tensor results = s.scratch(DType::F32, {pairs, width});
  const Tensor shared = s.scratch(DType::F32, {rows, width});
  const Tensor shared_weight = s.scratch(DType::F32, {rows, 1});

  const int64_t most = 2 * std::min(pairs, experts) + 3;
  auto* products = reinterpret_cast<RowProduct*>(
      s.scratch(DType::U8, {most, static_cast<int64_t>(sizeof(RowProduct))}).data);
  int64_t n_products = 0;
  const auto add = [&](const RowProduct& product) { new (&products[n_products++]) RowProduct(product); };
  const auto run = [&](std::span<const Input> inputs) {
    matmul(s, inputs, {products, static_cast<size_t>(n_products)});
    n_products = 0;
  };
  const auto to_inner = [&](const Weight& weight, Tensor out, int64_t from, int64_t n, bool all_rows) {
    add({.w = &weight,
         .x_rows = all_rows ? nullptr : pair_row.as<int32_t>() + from,
         .y = out.as<float>() + from * out.row_stride,
         .y_stride = out.row_stride,
         .n_rows = n});
  };
  const auto n_of = [&](int64_t e) { return int64_t{begin_of[e + 1] - begin_of[e]}; };
  for (int64_t e = 0; e < experts; ++e) {
    if (n_of(e) == 0) continue;
    to_inner(w.gate.items[static_cast<size_t>(e)], gate, begin_of[e], n_of(e), false);
    to_inner(w.up.items[static_cast<size_t>(e)], up, begin_of[e], n_of(e), false);
  }
  to_inner(w.shared_gate, shared_gate, 0, rows, true);
  to_inner(w.shared_up, shared_up, 0, rows, true);
  to_inner(w.shared_expert_gate, shared_weight, 0, rows, true);
  const Input hidden{h.as<float>(), h.row_stride, rows, width};
  run({&hidden, 1});

  s.pool().parallel_for(pairs + rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i < pairs) {
        simd::silu_mul(gate.row<float>(i), gate.row<float>(i), up.row<float>(i), inner);
      } else {
        simd::silu_mul(shared_gate.row<float>(i - pairs), shared_gate.row<float>(i - pairs),
                       shared_up.row<float>(i - pairs), shared_inner);
      }
    }
  });

  for (int64_t e = 0; e < experts; ++e) {
    if (n_of(e) == 0) continue;
    add({.w = &w.down.items[static_cast<size_t>(e)],
         .x_begin = begin_of[e],
         .y = results.as<float>(),
         .y_stride = results.row_stride,
         .y_rows = pair_result.as<int32_t>() + begin_of[e],
         .n_rows = n_of(e)});
  }
  add({.w = &w.shared_down,
       .input = 1,
       .y = shared.as<float>(),
       .y_stride = shared.row_stride,
       .n_rows = rows});
  const Input activated[2] = {{gate.as<float>(), gate.row_stride, pairs, inner},
                              {shared_gate.as<float>(), shared_gate.row_stride, rows, shared_inner}};
  run(activated);

  const int64_t streams = inj.cols();
  s.pool().parallel_for(rows, 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = results.row<float>(t * k);
      simd::scale(sum, sum, p.row<float>(t)[0], width);
      for (int64_t j = 1; j < k; ++j)
        simd::axpy(sum, p.row<float>(t)[j], results.row<float>(t * k + j), width);
      simd::axpy(sum, scalar::sigmoid(shared_weight.row<float>(t)[0]), shared.row<float>(t), width);
      for (int64_t i = 0; i < streams; ++i)
        simd::axpy(x.row<float>(t) + i * width, inj.row<float>(t)[i], sum, width);
      if (y) simd::scale(y.row<float>(t), sum, 1.0f, width);
    }
  });
}

}  // namespace quern::cpu

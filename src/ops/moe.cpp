#include "ops/moe.h"

#include "base/check.h"

namespace quern {
namespace {

void check_choice(const Tensor& ids, const Tensor& p, const Tensor& h, const MoeWeights& w) {
  QUERN_CHECK(h.rank == 2 && h.dtype == DType::F32 && h.cols() == w.router.k(), "moe: h is f32 [T, H]");
  QUERN_CHECK(w.top_k >= 1 && w.top_k <= w.router.n(), "moe: top_k is 1 to E");
  QUERN_CHECK(ids.dtype == DType::I32 && ids.shape[0] == h.shape[0] && ids.cols() == w.top_k,
              "moe: ids is i32 [T, K]");
  QUERN_CHECK(p.dtype == DType::F32 && p.shape[0] == h.shape[0] && p.cols() == w.top_k,
              "moe: p is f32 [T, K]");
}

void check_experts(const Tensor& x, const Tensor& inj, const Tensor& h, const MoeWeights& w,
                   const Tensor& y) {
  QUERN_CHECK(
      w.gate.n_experts == w.router.n() && w.up.n_experts == w.router.n() && w.down.n_experts == w.router.n(),
      "moe: the router and the experts differ in number");
  QUERN_CHECK(w.gate.k == h.cols() && w.up.k == h.cols() && w.down.n == h.cols() && w.down.k == w.gate.n &&
                  w.up.n == w.gate.n,
              "moe: experts are [I, H], [I, H], [H, I]");
  QUERN_CHECK(w.shared_gate.n() == w.shared_up.n() && w.shared_down.k() == w.shared_up.n() &&
                  w.shared_down.n() == h.cols() && w.shared_expert_gate.n() == 1,
              "moe: the shared expert is [I, H], [I, H], [H, I], its gate [1, H]");
  QUERN_CHECK(inj.dtype == DType::F32 && inj.shape[0] == h.shape[0], "moe: inj is f32 [T, S]");
  QUERN_CHECK(x.dtype == DType::F32 && x.shape[0] == h.shape[0] && x.cols() == inj.cols() * h.cols(),
              "moe: x is f32 [T, S·H]");
  QUERN_CHECK(!y || (y.dtype == DType::F32 && y.shape == h.shape), "moe: y is f32 [T, H]");
}

}  // namespace

void moe_route(Stream& s, Tensor ids, Tensor p, Tensor h, const MoeWeights& w,
               [[maybe_unused]] int64_t n_decode_rows) {
  check_choice(ids, p, h, w);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::moe_route(s, ids, p, h, w, n_decode_rows);
  }
  cpu::moe_route(s, ids, p, h, w);
}

void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
         [[maybe_unused]] int64_t n_decode_rows, Tensor y) {
  check_choice(ids, p, h, w);
  check_experts(x, inj, h, w, y);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::moe(s, x, inj, h, ids, p, w, n_decode_rows, y);
  }
  cpu::moe(s, x, inj, h, ids, p, w, y);
}

void moe_routed(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
                int64_t n_decode_rows, Tensor y) {
  check_choice(ids, p, h, w);
  check_experts(x, inj, h, w, y);
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::moe_routed(s, x, inj, h, ids, p, w, n_decode_rows, y);
  }
  moe_route(s, ids, p, h, w, n_decode_rows);
  moe(s, x, inj, h, ids, p, w, n_decode_rows, y);
}

}  // namespace quern

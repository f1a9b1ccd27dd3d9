#include "ops/delta_net.h"

#include "base/check.h"

namespace quern {
namespace {

void check_state(const DeltaNetShape& shape, const DeltaNetState& state) {
  QUERN_CHECK(shape.n_k > 0 && shape.n_v % shape.n_k == 0, "delta_net: n_v is a multiple of n_k");
  QUERN_CHECK(state.M.dtype == DType::F32 && state.M.rank == 4 && state.M.shape[1] == shape.n_v &&
                  state.M.shape[2] == shape.d_k && state.M.shape[3] == shape.d_v && state.M.packed(),
              "delta_net: M is f32 [slots, n_v, d_k, d_v]");
  QUERN_CHECK(state.pending.dtype == DType::F32 && state.pending.rank == 3 &&
                  state.pending.shape[1] == kMaxDrafts + 1 && state.pending.cols() == shape.pending_width(),
              "delta_net: pending is f32 [slots, 9, pending_width]");
}

}  // namespace

void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps) {
  const auto is = [&](const Tensor& t, int64_t cols) {
    return t.rank == 2 && t.dtype == DType::F32 && t.shape[0] == batch.n_rows && t.shape[1] == cols;
  };
  check_state(shape, state);
  QUERN_CHECK(is(qkv, shape.conv_channels()), "delta_net: qkv is f32 [T, C]");
  QUERN_CHECK(is(y, shape.n_v * shape.d_v) && is(z, shape.n_v * shape.d_v),
              "delta_net: y and z are f32 [T, n_v·d_v]");
  QUERN_CHECK(is(a, shape.n_v) && is(b, shape.n_v), "delta_net: a and b are f32 [T, n_v]");
  QUERN_CHECK(w.conv.dtype == DType::F32 && w.conv.rows() == shape.conv_channels() && w.conv.cols() == 4,
              "delta_net: conv is f32 [C, 4]");
  QUERN_CHECK(
      w.decay.elements() == shape.n_v && w.dt_bias.elements() == shape.n_v && w.norm.elements() == shape.d_v,
      "delta_net: decay and dt_bias are [n_v], norm is [d_v]");
  QUERN_CHECK(state.ring.dtype == DType::F32 && state.ring.rank == 3 && state.ring.shape[1] == kConvRing &&
                  state.ring.cols() == shape.conv_channels(),
              "delta_net: ring is f32 [slots, kConvRing, C]");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::delta_net(s, y, qkv, z, a, b, shape, w, state, batch, eps);
  }
  cpu::delta_net(s, y, qkv, z, a, b, shape, w, state, batch, eps);
}

void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending) {
  check_state(shape, state);
  QUERN_CHECK(slot >= 0 && slot < state.M.shape[0], "delta_net_commit: no such slot");
  QUERN_CHECK(n_pending >= 0 && n_pending <= kMaxDrafts + 1,
              "delta_net_commit: at most kMaxDrafts + 1 pending rows");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::delta_net_commit(s, shape, state, slot, n_pending);
  }
  cpu::delta_net_commit(s, shape, state, slot, n_pending);
}

}  // namespace quern

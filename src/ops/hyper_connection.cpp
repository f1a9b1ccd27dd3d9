#include "ops/hyper_connection.h"

#include "base/check.h"

namespace quern {

void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps,
            [[maybe_unused]] int64_t n_decode_rows) {
  QUERN_CHECK(x.rank == 2 && h.rank == 2 && x.dtype == DType::F32 && h.dtype == DType::F32,
              "hc_mix: x and h are f32");
  QUERN_CHECK(h.shape[0] == x.shape[0] && x.shape[1] == streams * h.shape[1],
              "hc_mix: x is [T, S·H], h is [T, H]");
  QUERN_CHECK(w.norm.elements() == x.cols() && w.norm.dtype == DType::F32, "hc_mix: norm is f32 [S·H]");
  QUERN_CHECK(w.down.k() == x.cols() && w.up.n() == x.cols() && w.down.n() == w.up.k(),
              "hc_mix: down is [R, S·H] and up [S·H, R]");
  QUERN_CHECK(static_cast<bool>(inj) == static_cast<bool>(w.inject), "hc_mix: inj comes with inject");
  if (inj) {
    QUERN_CHECK(inj.dtype == DType::F32 && inj.shape[0] == x.shape[0] && inj.shape[1] == streams,
                "hc_mix: inj is f32 [T, S]");
    QUERN_CHECK(w.inject.n() == streams && w.inject.k() == x.cols(), "hc_mix: inject is [S, S·H]");
  }
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda)
      return cuda::hc_mix(s, h, inj, x, w, streams, eps, n_decode_rows);
  }
  cpu::hc_mix(s, h, inj, x, w, streams, eps);
}

}  // namespace quern

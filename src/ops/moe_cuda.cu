// moe on CUDA: which rows take which path.
#include "ops/cuda/moe_launch.cuh"

namespace quern::cuda {

void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
         int64_t n_decode_rows, Tensor y) {
  QUERN_CHECK(ids.packed() && p.packed(), "moe: ids and p are packed");
  MoeView m;
  m.top_k = w.top_k;
  m.n_experts = static_cast<int32_t>(w.gate.n_experts);
  m.gate = weight_view(w.gate);
  m.up = weight_view(w.up);
  m.down = weight_view(w.down);
  m.shared_gate = weight_view(w.shared_gate);
  m.shared_up = weight_view(w.shared_up);
  m.shared_down = weight_view(w.shared_down);
  m.shared_expert_gate = weight_view(w.shared_expert_gate);
  for (const WeightView* v : {&m.gate, &m.up, &m.down, &m.shared_gate, &m.shared_up, &m.shared_down}) {
    QUERN_CHECK(v->wide, "moe: an expert's matrices on CUDA are a multiple of 16 wide and begin on 16 bytes");
  }
  const auto from = [&](int64_t begin, int64_t end) {
    MoeView v = m;
    v.h = rows_f32(h.slice_rows(begin, end));
    v.ids = ids.as<int32_t>() + begin * w.top_k;
    v.p = p.as<float>() + begin * w.top_k;
    v.x = x.as<float>() + begin * x.row_stride;
    v.x_stride = x.row_stride;
    v.injection = {inj.as<float>() + begin * inj.row_stride, inj.row_stride,
                   static_cast<int32_t>(inj.cols())};
    v.y = y ? y.as<float>() + begin * y.row_stride : nullptr;
    v.y_stride = y ? y.row_stride : 0;
    return v;
  };
  const int64_t n_rows = h.shape[0];
  const int64_t piece =
      std::max<int64_t>(kMaxDecodeEntries / w.top_k, 1);  // rows of one piece share expert reads
  for (int64_t begin = 0; begin < n_decode_rows; begin += piece)
    moe_decode(s, from(begin, std::min(begin + piece, n_decode_rows)));
  if (n_decode_rows < n_rows) moe_prefill(s, from(n_decode_rows, n_rows));
}

}  // namespace quern::cuda

// moe on CUDA: which rows take which path.
#include "ops/cuda/moe_launch.cuh"

namespace quern::cuda {
namespace {

// All rows of a batch.
MoeView view_of(Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w, Tensor y) {
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
  m.h = rows_f32(h);
  m.ids = ids.as<int32_t>();
  m.p = p.as<float>();
  m.x = x.as<float>();
  m.x_stride = x.row_stride;
  m.injection = {inj.as<float>(), inj.row_stride, static_cast<int32_t>(inj.cols())};
  m.y = y ? y.as<float>() : nullptr;
  m.y_stride = y ? y.row_stride : 0;
  return m;
}
MoeView rows_of(MoeView m, int64_t begin, int64_t end) {
  m.h.x += begin * m.h.stride;
  m.h.n_rows = static_cast<int32_t>(end - begin);
  m.ids += begin * m.top_k;
  m.p += begin * m.top_k;
  m.x += begin * m.x_stride;
  m.injection.inj += begin * m.injection.stride;
  if (m.y) m.y += begin * m.y_stride;
  return m;
}

}  // namespace

void moe(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
         int64_t n_decode_rows, Tensor y) {
  const MoeView m = view_of(x, inj, h, ids, p, w, y);
  const int64_t n_rows = h.shape[0];
  const int64_t piece =
      std::max<int64_t>(kMaxDecodeEntries / w.top_k, 1);  // rows of one piece share expert reads
  for (int64_t begin = 0; begin < n_decode_rows; begin += piece)
    moe_decode(s, rows_of(m, begin, std::min(begin + piece, n_decode_rows)));
  if (n_decode_rows < n_rows) moe_prefill(s, rows_of(m, n_decode_rows, n_rows));
}

void moe_routed(Stream& s, Tensor x, Tensor inj, Tensor h, Tensor ids, Tensor p, const MoeWeights& w,
                int64_t n_decode_rows, Tensor y) {
  if (h.shape[0] == 1 && n_decode_rows == 1 && w.router.n() <= kMaxRowExperts) {
    const MoeView m = view_of(x, inj, h, ids, p, w, y);
    if (takes_row(s, m)) {
      ScratchScope scope(s);
      const Tensor logits = s.scratch(DType::F32, {1, w.router.n()});
      moe_logits_decode(s, logits.as<float>(), router_view(w), m.h);
      moe_row(s, m, {logits.as<float>(), ids.as<int32_t>(), p.as<float>(), w.renormalise});
      return;
    }
  }
  cuda::moe_route(s, ids, p, h, w, n_decode_rows);
  cuda::moe(s, x, inj, h, ids, p, w, n_decode_rows, y);
}

}  // namespace quern::cuda

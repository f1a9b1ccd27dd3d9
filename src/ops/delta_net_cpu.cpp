#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/delta_net.h"
#include "ops/scalar.h"

namespace quern::cpu {
namespace {

// Where the parts of a pending row lie.
struct Pending {
  const DeltaNetShape& shape;
  const Tensor& rows;
  float* row(int64_t slot, int64_t i) const {
    return rows.as<float>() + (slot * (kMaxDrafts + 1) + i) * rows.cols();
  }
  float* k(float* row, int key_head) const { return row + key_head * shape.d_k; }
  float* v(float* row, int head) const { return row + shape.n_k * shape.d_k + head * shape.d_v; }
  float* decay(float* row, int head) const {
    return row + shape.n_k * shape.d_k + shape.n_v * shape.d_v + head;
  }
  float* beta(float* row, int head) const { return decay(row, head) + shape.n_v; }
};

int key_head(const DeltaNetShape& shape, int head) {
  return shape.order == HeadOrder::Grouped ? head / (shape.n_v / shape.n_k) : head % shape.n_k;
}

float* head_state(const DeltaNetShape& shape, const DeltaNetState& state, int64_t slot, int head) {
  return state.M.as<float>() + (slot * shape.n_v + head) * shape.d_k * shape.d_v;
}

void replay(const DeltaNetShape& shape, const DeltaNetState& state, int64_t slot, int head,
            int32_t n_pending) {
  const Pending pending{shape, state.pending};
  for (int32_t i = 0; i < n_pending; ++i) {
    float* row = pending.row(slot, i);
    simd::delta_step(head_state(shape, state, slot, head), pending.k(row, key_head(shape, head)), nullptr,
                     pending.v(row, head), *pending.decay(row, head), *pending.beta(row, head), nullptr,
                     shape.d_k, shape.d_v);
  }
}

// c = silu(conv(qkv)), q and k normalised in place. A row reads inputs of its own segment from the batch and
// earlier ones from the ring.
void conv_rows(Stream& s, Tensor c, Tensor qkv, const DeltaNetShape& shape, const DeltaNetWeights& w,
               const DeltaNetState& state, const BatchView& batch) {
  const int64_t channels = shape.conv_channels();
  s.pool().parallel_for(batch.n_rows, 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Segment& segment = batch.segments[batch.segment_of[t]];
      const float* taps[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t back = 3 - j, position = batch.positions[t] - back;
        taps[j] = position < 0 ? nullptr
                  : t - back >= segment.row
                      ? qkv.row<float>(t - back)
                      : state.ring.as<float>() + (segment.slot * kConvRing + position % kConvRing) * channels;
      }
      float* row = c.row<float>(t);
      simd::conv4_silu(row, taps, w.conv.as<float>(), channels);
      for (int h = 0; h < 2 * shape.n_k; ++h) {
        float* x = row + h * shape.d_k;
        const float norm = 1.0f / std::sqrt(simd::sum_squares(x, shape.d_k) + 1e-6f);
        simd::scale(x, x, h < shape.n_k ? norm / std::sqrt(static_cast<float>(shape.d_k)) : norm, shape.d_k);
      }
    }
  });
}

}  // namespace

void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps) {
  const Pending pending{shape, state.pending};
  const int64_t state_size = int64_t{shape.d_k} * shape.d_v, keys = int64_t{shape.n_k} * shape.d_k;
  ScratchScope scope(s);
  const Tensor c = s.scratch(DType::F32, {std::max<int64_t>(batch.n_rows, 1), shape.conv_channels()});
  conv_rows(s, c, qkv, shape, w, state, batch);

  s.pool().parallel_for(batch.n_segments * shape.n_v, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Segment& segment = batch.segments[i / shape.n_v];
      const int head = static_cast<int>(i % shape.n_v), kh = key_head(shape, head);
      if (segment.role == Role::Pad || segment.n_rows == 0) continue;
      replay(shape, state, segment.slot, head, segment.n_pending);
      float* M = head_state(shape, state, segment.slot, head);
      if (segment.role == Role::Decode) {  // its own rows run on a copy
        float* copy = thread_scratch(1, state_size);
        std::memcpy(copy, M, static_cast<size_t>(state_size) * sizeof(float));
        M = copy;
      }
      for (int64_t t = segment.row; t < segment.row + segment.n_rows; ++t) {
        const float* row = c.row<float>(t);
        const float beta = scalar::sigmoid(b.row<float>(t)[head]);
        const float decay = std::exp(w.decay.as<float>()[head] *
                                     scalar::softplus(a.row<float>(t)[head] + w.dt_bias.as<float>()[head]));
        const float* v = row + 2 * keys + head * shape.d_v;
        float* o = y.row<float>(t) + head * shape.d_v;
        simd::delta_step(M, row + keys + kh * shape.d_k, row + kh * shape.d_k, v, decay, beta, o, shape.d_k,
                         shape.d_v);
        if (segment.role == Role::Decode) {
          float* to = pending.row(segment.slot, t - segment.row);
          std::memcpy(pending.v(to, head), v, static_cast<size_t>(shape.d_v) * sizeof(float));
          *pending.decay(to, head) = decay;
          *pending.beta(to, head) = beta;
        }
        const float r =
            1.0f / std::sqrt(simd::sum_squares(o, shape.d_v) / static_cast<float>(shape.d_v) + eps);
        simd::norm_scale_plain(o, o, r, w.norm.as<float>(), shape.d_v);
        const float* gate = z.row<float>(t) + head * shape.d_v;
        shape.gate == GateType::Sigmoid ? simd::gate_sigmoid(o, gate, shape.d_v)
                                        : simd::gate_silu(o, gate, shape.d_v);
      }
    }
  });

  // What the next step reads: written after every head has replayed and every row has read its taps.
  s.pool().parallel_for(batch.n_segments, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Segment& segment = batch.segments[i];
      if (segment.role == Role::Pad) continue;
      for (int64_t r = segment.n_rows > kConvRing ? segment.n_rows - kConvRing : 0; r < segment.n_rows; ++r) {
        const int64_t slot = (segment.position + r) % kConvRing;
        std::memcpy(state.ring.as<float>() + (segment.slot * kConvRing + slot) * shape.conv_channels(),
                    qkv.row<float>(segment.row + r),
                    static_cast<size_t>(shape.conv_channels()) * sizeof(float));
      }
      if (segment.role != Role::Decode) continue;
      for (int64_t r = 0; r < segment.n_rows; ++r) {
        std::memcpy(pending.row(segment.slot, r), c.row<float>(segment.row + r) + keys,
                    static_cast<size_t>(keys) * sizeof(float));
      }
    }
  });
}

void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending) {
  s.pool().parallel_for(shape.n_v, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      replay(shape, state, slot, static_cast<int>(head), n_pending);
  });
}

}  // namespace quern::cpu

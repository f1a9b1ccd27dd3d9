// The delta net for decode segments: one block a value head, its state in registers from the first replayed
// row to the last drafted one, so the state is read once and written once a step.
//
// The value heads of a key head form a cluster: they all read the key rows in `pending` that the first of them
// will overwrite, so writes wait for the cluster. Everything between the projections happens here:
// convolution, silu, l2 norms, gates, the recurrence and the gated norm.
#include "ops/cuda/async.cuh"
#include "ops/cuda/delta_net_launch.cuh"

namespace quern::cuda {
namespace {

constexpr int kMaxRows = kMaxDrafts + 1;

__global__ __launch_bounds__(kStateThreads, 2) void delta_decode_kernel(const __grid_constant__ DeltaView d,
                                                                        int heads_per_key) {
  pdl_launch();
  __shared__ float c[kMaxRows][3][kHeadDim];  // q, k, v
  __shared__ float part[8 * kHeadDim], kv[2 * kHeadDim], reduced[kStateThreads / 32];
  __shared__ float gate[kMaxRows][3];  // decay, beta, k·q
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int key_head = static_cast<int>(blockIdx.x) / heads_per_key,
            member = static_cast<int>(blockIdx.x) % heads_per_key;
  const int head = d.value_head(key_head, member);
  pdl_wait();
  const Segment segment = d.batch.segments[blockIdx.y];
  const bool runs = segment.role == Role::Decode && segment.n_rows > 0;  // the same for the whole cluster
  float m[32];
  if (runs) {
    float* M = d.state(segment.slot, head);
    load_state(m, M);
    const int channel[3] = {key_head * kHeadDim, (d.n_k + key_head) * kHeadDim,
                            (2 * d.n_k + head) * kHeadDim};
    for (int i = tid; i < segment.n_rows * 3 * kHeadDim; i += kStateThreads) {
      const int r = i / (3 * kHeadDim), part_of = i / kHeadDim % 3, at = i % kHeadDim;
      c[r][part_of][at] = d.convolved(segment, segment.row + r, channel[part_of] + at);
    }
    __syncthreads();
    for (int r = warp; r < segment.n_rows; r += kStateThreads / 32) {
      float qq = 0, kk = 0;
      for (int i = lane; i < kHeadDim; i += 32) {
        qq = fmaf(c[r][0][i], c[r][0][i], qq);
        kk = fmaf(c[r][1][i], c[r][1][i], kk);
      }
      const float rq = rsqrtf(warp_sum(qq) + 1e-6f) / sqrtf(static_cast<float>(kHeadDim));
      const float rk = rsqrtf(warp_sum(kk) + 1e-6f);
      float kq = 0;
      for (int i = lane; i < kHeadDim; i += 32) {
        c[r][0][i] *= rq;
        c[r][1][i] *= rk;
        kq = fmaf(c[r][0][i], c[r][1][i], kq);
      }
      kq = warp_sum(kq);
      if (lane == 0) {
        gate[r][0] = expf(d.decay_of(segment.row + r, head));
        gate[r][1] = d.beta_of(segment.row + r, head);
        gate[r][2] = kq;
      }
    }
    replay(m, d, segment.slot, head, segment.n_pending, kv, part);
    if (segment.n_pending > 0) store_state(m, M);
    __syncthreads();
    for (int r = 0; r < segment.n_rows; ++r) {
      const float o = delta_step(m, c[r][1], c[r][0], c[r][2], gate[r][0], gate[r][1], gate[r][2], part);
      if (tid < kHeadDim) {
        const float q = warp_sum(o * o);
        if (lane == 0) reduced[warp] = q;
      }
      __syncthreads();
      if (tid < kHeadDim) {
        const float mean =
            (((reduced[0] + reduced[1]) + reduced[2]) + reduced[3]) / static_cast<float>(kHeadDim);
        const int64_t t = segment.row + r;
        const int64_t at = int64_t{head} * kHeadDim + tid;
        d.y[t * d.y_stride + at] =
            d.norm[tid] * (o * rsqrtf(mean + d.eps)) * d.gated(d.z[t * d.z_stride + at]);
      }
    }
  }
  cluster_arrive();
  cluster_wait();
  if (!runs) return;
  for (int r = 0; r < segment.n_rows; ++r) {
    float* row = d.pending_row(segment.slot, r);
    float* ring =
        d.ring + (int64_t{segment.slot} * kConvRing + (segment.position + r) % kConvRing) * d.channels();
    const float* qkv = d.qkv + (segment.row + r) * d.qkv_stride;
    for (int i = tid; i < 3 * kHeadDim; i += kStateThreads) {
      const int part_of = i / kHeadDim, at = i % kHeadDim;
      if (part_of < 2 && member != 0) continue;
      const int channel =
          part_of == 2 ? (2 * d.n_k + head) * kHeadDim + at : (part_of * d.n_k + key_head) * kHeadDim + at;
      ring[channel] = qkv[channel];
      if (part_of == 1) row[key_head * kHeadDim + at] = c[r][1][at];
      if (part_of == 2) row[d.pending_v(head) + at] = c[r][2][at];
    }
    if (tid == 0) {
      row[d.pending_decay(head)] = gate[r][0];
      row[d.pending_decay(head) + d.n_v] = gate[r][1];
    }
  }
}

__global__ __launch_bounds__(kStateThreads) void delta_commit_kernel(const __grid_constant__ DeltaView d,
                                                                     int slot, int n_pending) {
  pdl_launch();
  pdl_wait();
  __shared__ float part[8 * kHeadDim], kv[2 * kHeadDim];
  float m[32];
  float* M = d.state(slot, static_cast<int>(blockIdx.x));
  load_state(m, M);
  replay(m, d, slot, static_cast<int>(blockIdx.x), n_pending, kv, part);
  store_state(m, M);
}

DeltaView view_of(const DeltaNetShape& shape, const DeltaNetState& state) {
  QUERN_CHECK(shape.d_k == kHeadDim && shape.d_v == kHeadDim && shape.n_v % shape.n_k == 0 &&
                  shape.n_v / shape.n_k <= 8,
              "delta_net on CUDA takes heads of 128 and at most 8 value heads a key head");
  DeltaView d;
  d.M = state.M.as<float>();
  d.ring = state.ring.as<float>();
  d.pending = state.pending.as<float>();
  d.n_k = shape.n_k;
  d.n_v = shape.n_v;
  d.tiled = shape.order == HeadOrder::Tiled;
  d.silu_gate = shape.gate == GateType::Silu;
  return d;
}

}  // namespace

void delta_net_decode(Stream& s, const DeltaView& d) {
  const int per_key = d.n_v / d.n_k;
  launch(s, delta_decode_kernel,
         dim3(static_cast<unsigned>(d.n_v), static_cast<unsigned>(d.batch.n_segments)), kStateThreads, 0,
         per_key, d, per_key);
}

void delta_net(Stream& s, Tensor y, Tensor qkv, Tensor z, Tensor a, Tensor b, const DeltaNetShape& shape,
               const DeltaNetWeights& w, const DeltaNetState& state, const BatchView& batch, float eps) {
  DeltaView d = view_of(shape, state);
  d.qkv = qkv.as<float>();
  d.z = z.as<float>();
  d.a = a.as<float>();
  d.b = b.as<float>();
  d.y = y.as<float>();
  d.qkv_stride = qkv.row_stride;
  d.z_stride = z.row_stride;
  d.a_stride = a.row_stride;
  d.b_stride = b.row_stride;
  d.y_stride = y.row_stride;
  d.conv = w.conv.as<float>();
  d.decay = w.decay.as<float>();
  d.dt_bias = w.dt_bias.as<float>();
  d.norm = w.norm.as<float>();
  d.batch = batch;
  d.eps = eps;
  // A segment has rows of one role, and reads and writes its own slot only: the two may run in either order.
  if (batch.n_decode_rows > 0) delta_net_decode(s, d);
  if (batch.n_decode_rows < batch.n_rows) delta_net_prefill(s, d);
}

void delta_net_commit(Stream& s, const DeltaNetShape& shape, const DeltaNetState& state, int32_t slot,
                      int32_t n_pending) {
  if (n_pending == 0) return;
  launch(s, delta_commit_kernel, dim3(static_cast<unsigned>(shape.n_v)), kStateThreads, 0, 1,
         view_of(shape, state), slot, n_pending);
}

}  // namespace quern::cuda

// The delta net for decode segments: one or two blocks a value head, each with its columns of the state in registers
// from the first replayed row to the last drafted one, so the state is read once and written once a step.
//
// The blocks of a key head form a cluster: they all read the key rows in `pending` that the first of them will overwrite,
// so writes wait until the cluster has read; and the two blocks of a head norm their outputs together: each sends the other
// its sums of squares. Without clusters a head is one block, and a kernel behind this one puts the key rows there. Everything
// between the projections happens here: convolution, silu, l2 norms, gates, the recurrence and the gated norm.
#include "ops/cuda/async.cuh"
#include "ops/cuda/delta_net_launch.cuh"
#include "ops/cuda/pipeline.cuh"

namespace quern::cuda {
namespace {

constexpr int kMaxRows = kMaxDrafts + 1;

template <int kColumns>
__global__ __launch_bounds__(4 * kColumns, kColumns == 64 ? 3 : 1) void delta_decode_kernel(
    const __grid_constant__ DeltaView d, int heads_per_key, int max_rows, float* keys) {
  constexpr int kThreads = 4 * kColumns, kParts = kHeadDim / kColumns, kPartWarps = kColumns / 32;
  extern __shared__ __align__(16) float rows[];  // as few as there may be, to fit beside the kernel before
  const auto q = reinterpret_cast<float(*)[kHeadDim]>(rows), k = q + max_rows;
  const auto v = reinterpret_cast<float(*)[kColumns]>(k + max_rows), o = v + max_rows;
  __shared__ float part[8 * kColumns], kv[kHeadDim + kColumns];
  __shared__ float squares[kParts][kMaxRows][kPartWarps];  // of both blocks of the head
  __shared__ uint64_t all_squares;                         // the other block's have come
  __shared__ float gate[kMaxRows][3];                      // decay, beta, k·q
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int column_part = static_cast<int>(blockIdx.x) % kParts,
            at_head = static_cast<int>(blockIdx.x) / kParts;
  const int key_head = at_head / heads_per_key, member = at_head % heads_per_key,
            column0 = column_part * kColumns;
  const int head = d.value_head(key_head, member);
  // Segments are written by copies and at the end of a step. What the state, the rows before and the pending one hold is on
  // its way to the L2 cache; nothing is read of it yet.
  const Segment segment = d.batch.segments[blockIdx.y];
  if (kParts > 1 && tid == 0) {
    barrier_init(&all_squares, 1);
    fence_barrier_init();
    barrier_expect(&all_squares, segment.n_rows * kPartWarps * 4);
  }
  __syncwarp();
  cluster_arrive_relaxed();  // every block has its barrier
  {
    const float* M = d.state(segment.slot, head) + column0;
    for (int i = tid; i < kHeadDim * kColumns / 32; i += kThreads)
      prefetch_l2(M + i / (kColumns / 32) * kHeadDim + i % (kColumns / 32) * 32);
  }
  constexpr int kPerRow = 2 * kHeadDim + kColumns, kEach = (kPerRow + kThreads - 1) / kThreads;
  // The channel of a row's value `at`: q, then k, then the block's columns of v.
  const auto channel_of = [&](int at) {
    return at < kHeadDim       ? key_head * kHeadDim + at
           : at < 2 * kHeadDim ? (d.n_k + key_head) * kHeadDim + at - kHeadDim
                               : (2 * d.n_k + head) * kHeadDim + column0 + at - 2 * kHeadDim;
  };
  float4 taps[kEach];
  const float* input[kEach][4];  // a row's window, the oldest first: what is before position 0 is not read
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int channel = channel_of(min(tid + j * kThreads, kPerRow - 1));
    taps[j] = d.taps(channel);
#pragma unroll
    for (int back = 3; back > 0; --back) {
      input[j][3 - back] = d.ring_row(segment, max(segment.position - back, 0)) + channel;
      if (segment.position >= back) prefetch_l2(input[j][3 - back]);
      made_here(input[j][3 - back]);
    }
    input[j][3] = d.qkv + segment.row * d.qkv_stride + channel;
    made_here(input[j][3]);
  }
  const float rate = d.decay[head], bias = d.dt_bias[head];
  const float norm_of = tid < kColumns ? d.norm[column0 + tid] : 0.0f;
  if (segment.n_pending > 0) {
    const float* row = d.pending_row(segment.slot, 0);
    prefetch_l2(row + (tid < kHeadDim ? key_head * kHeadDim + tid
                                      : d.pending_v(head) + column0 + min(tid - kHeadDim, kColumns - 1)));
    if (tid < 2) prefetch_l2(row + d.pending_decay(head) + tid * d.n_v);
  }
  cluster_wait();
  pdl_wait();
  const bool runs = segment.role == Role::Decode && segment.n_rows > 0;  // the same for the whole cluster
  float m[32], z_of = 0;
  if (runs) {
    float* M = d.state(segment.slot, head);
    if (tid < kColumns) z_of = d.z[segment.row * d.z_stride + int64_t{head} * kHeadDim + column0 + tid];
    Pending<kColumns> pending;
    if (segment.n_pending > 0) pending.load(d, segment.slot, head, column0, 0);
    if (tid < segment.n_rows) {
      gate[tid][0] = d.a[(segment.row + tid) * d.a_stride + head];
      gate[tid][1] = d.b[(segment.row + tid) * d.b_stride + head];
    }
#pragma unroll 1
    for (int r = 0; r < segment.n_rows; ++r) {
      float4 window[kEach];
      const int position = segment.position + r;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {  // without a branch, so that all loads are on their way at once
        const float* const(&from)[4] = input[j];
        window[j] = make_float4(position >= 3 ? *from[0] : 0.0f, position >= 2 ? *from[1] : 0.0f,
                                position >= 1 ? *from[2] : 0.0f, *from[3]);
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
#pragma unroll
        for (int back = 3; back > 0; --back) input[j][3 - back] = input[j][4 - back];
        input[j][3] += d.qkv_stride;
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int at = tid + j * kThreads;
        if (at >= kPerRow) break;
        float* to = at < kHeadDim       ? &q[r][at]
                    : at < 2 * kHeadDim ? &k[r][at - kHeadDim]
                                        : &v[r][at - 2 * kHeadDim];
        *to = d.convolved(window[j], taps[j]);
      }
    }
    load_state<kColumns>(m, M, column0);
    pdl_launch();  // the next kernel fetches weights: they would keep the memory from the state if they were asked for first
    __syncthreads();
    // A warp a row, and another for its gates.
    for (int job = warp; job < 2 * segment.n_rows; job += kThreads / 32) {
      const int r = job / 2;
      if (job % 2 == 1) {
        if (lane == 0) {
          gate[r][0] = expf(d.log_decay(gate[r][0], rate, bias));
          gate[r][1] = scalar::sigmoid(gate[r][1]);
        }
        continue;
      }
      float qq = 0, kk = 0, kq = 0;
      for (int i = lane; i < kHeadDim; i += 32) {
        qq = fmaf(q[r][i], q[r][i], qq);
        kk = fmaf(k[r][i], k[r][i], kk);
        kq = fmaf(q[r][i], k[r][i], kq);
      }
      qq = warp_sum(qq);
      kk = warp_sum(kk);
      kq = warp_sum(kq);
      const float rq = rsqrtf(qq + 1e-6f) / sqrtf(static_cast<float>(kHeadDim)), rk = rsqrtf(kk + 1e-6f);
      for (int i = lane; i < kHeadDim; i += 32) {
        q[r][i] *= rq;
        k[r][i] *= rk;
      }
      if (lane == 0) gate[r][2] = kq * rq * rk;
    }
    replay<kColumns>(m, d, segment.slot, head, column0, segment.n_pending, pending, kv, part);
  } else {
    pdl_launch();
  }
  cluster_arrive_relaxed();  // this block has read what is pending: it has computed with it
  if (runs) {
    if (segment.n_pending > 0) store_state<kColumns>(m, d.state(segment.slot, head), column0);
    __syncthreads();
    for (int r = 0; r < segment.n_rows; ++r) {
      const float out = delta_step<kColumns>(m, k[r], q[r], v[r], gate[r][0], gate[r][1], gate[r][2], part);
      if (tid < kColumns) {
        o[r][tid] = out;
        const float sum = warp_sum(out * out);
        if (lane == 0) {
          float* to = &squares[column_part][r][warp];
          *to = sum;
          if (kParts > 1) {
            cluster_send(to, &all_squares, static_cast<uint32_t>(member * kParts + 1 - column_part), sum);
          }
        }
      }
    }
    __syncthreads();
    if (kParts > 1) barrier_wait_cluster(&all_squares, 0);
    for (int i = tid; i < segment.n_rows * kColumns; i += kThreads) {
      const int r = i / kColumns, at = i % kColumns;
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int w = 0; w < kPartWarps; ++w) sum += squares[p][r][w];
      }
      const float mean = sum / static_cast<float>(kHeadDim);
      const int64_t t = segment.row + r, y = int64_t{head} * kHeadDim + column0 + at;
      d.y[t * d.y_stride + y] = (i < kColumns ? norm_of : d.norm[column0 + at]) *
                                (o[r][at] * rsqrtf(mean + d.eps)) *
                                d.gated(i < kColumns ? z_of : d.z[t * d.z_stride + y]);
    }
  }
  cluster_wait();  // every block has read
  if (runs) {
    for (int r = 0; r < segment.n_rows; ++r) {
      float* row = d.pending_row(segment.slot, r);
      float* ring =
          d.ring + (int64_t{segment.slot} * kConvRing + (segment.position + r) % kConvRing) * d.channels();
      const float* qkv = d.qkv + (segment.row + r) * d.qkv_stride;
      if (member == 0 && column_part == 0) {
        for (int i = tid; i < kHeadDim; i += kThreads) {
          const int q_channel = key_head * kHeadDim + i, k_channel = (d.n_k + key_head) * kHeadDim + i;
          ring[q_channel] = qkv[q_channel];
          ring[k_channel] = qkv[k_channel];
#ifdef QUERN_SM90
          row[key_head * kHeadDim + i] = k[r][i];
#else
          keys[(int64_t{segment.row + r} * d.n_k + key_head) * kHeadDim + i] = k[r][i];
#endif
        }
      }
      for (int i = tid; i < kColumns; i += kThreads) {
        const int channel = (2 * d.n_k + head) * kHeadDim + column0 + i;
        ring[channel] = qkv[channel];
        row[d.pending_v(head) + column0 + i] = v[r][i];
      }
      if (tid == 0 && column_part == 0) {
        row[d.pending_decay(head)] = gate[r][0];
        row[d.pending_decay(head) + d.n_v] = gate[r][1];
      }
    }
  }
}

// Block (key head, segment): keys [T, n_k, 128] of its rows become pending.
__global__ __launch_bounds__(kHeadDim) void delta_keys_kernel(const __grid_constant__ DeltaView d,
                                                              const float* keys) {
  pdl_launch();
  pdl_wait();
  const Segment segment = d.batch.segments[blockIdx.y];
  if (segment.role != Role::Decode) return;
  const int at = static_cast<int>(blockIdx.x) * kHeadDim + static_cast<int>(threadIdx.x);
  for (int r = 0; r < segment.n_rows; ++r)
    d.pending_row(segment.slot, r)[at] = keys[int64_t{segment.row + r} * d.n_k * kHeadDim + at];
}

__global__ __launch_bounds__(kStateThreads) void delta_commit_kernel(const __grid_constant__ DeltaView d,
                                                                     int slot, int n_pending) {
  pdl_launch();
  pdl_wait();
  __shared__ float part[8 * kHeadDim], kv[2 * kHeadDim];
  float m[32];
  const int head = static_cast<int>(blockIdx.x);
  float* M = d.state(slot, head);
  load_state<kHeadDim>(m, M, 0);
  Pending<kHeadDim> pending;
  pending.load(d, slot, head, 0, 0);
  replay<kHeadDim>(m, d, slot, head, 0, n_pending, pending, kv, part);
  store_state<kHeadDim>(m, M, 0);
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
  const bool clusters = is_hopper(s);
  const int per_key = d.n_v / d.n_k, parts = clusters && 2 * per_key <= 8 ? 2 : 1;
  const auto segments = static_cast<unsigned>(d.batch.n_segments);
  const auto max_rows = static_cast<size_t>(std::min<int64_t>(kMaxRows, d.batch.n_decode_rows));
  ScratchScope scope(s);
  float* const keys =
      clusters ? nullptr : s.scratch(DType::F32, {d.batch.n_decode_rows, d.n_k * kHeadDim}).as<float>();
  launch(s, parts == 2 ? delta_decode_kernel<kHeadDim / 2> : delta_decode_kernel<kHeadDim>,
         dim3(static_cast<unsigned>(d.n_v * parts), segments), kStateThreads / parts,
         sizeof(float) * 2 * (kHeadDim + kHeadDim / parts) * max_rows, clusters ? per_key * parts : 1, d,
         per_key, static_cast<int>(max_rows), keys);
  if (!clusters) {
    launch(s, delta_keys_kernel, dim3(static_cast<unsigned>(d.n_k), segments), kHeadDim, 0, 1, d,
           static_cast<const float*>(keys));
  }
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

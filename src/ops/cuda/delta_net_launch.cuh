// What the delta net's kernels share: where the parts of a row and of the state lie, and the step itself.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/delta_net.h"
#include "ops/scalar.h"

namespace quern::cuda {

inline constexpr int kHeadDim = 128;  // d_k and d_v of the kernels

struct DeltaView {
  const float* qkv = nullptr;  // [T, 2·n_k·128 + n_v·128]
  const float* z = nullptr;    // [T, n_v·128]
  const float* a = nullptr;    // [T, n_v]
  const float* b = nullptr;
  float* y = nullptr;
  int64_t qkv_stride = 0, z_stride = 0, a_stride = 0, b_stride = 0, y_stride = 0;
  const float* conv = nullptr;
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  const float* norm = nullptr;
  float* M = nullptr;
  float* ring = nullptr;
  float* pending = nullptr;
  BatchView batch;
  int32_t n_k = 0, n_v = 0;
  bool tiled = false, silu_gate = false;
  float eps = 0;

  __device__ __forceinline__ int64_t channels() const { return int64_t{2 * n_k + n_v} * kHeadDim; }
  __device__ __forceinline__ int key_head(int head) const { return tiled ? head % n_k : head / (n_v / n_k); }
  // Value head i of a key head.
  __device__ __forceinline__ int value_head(int key_head, int i) const {
    return tiled ? i * n_k + key_head : key_head * (n_v / n_k) + i;
  }
  __device__ __forceinline__ float* state(int slot, int head) const {
    return M + (int64_t{slot} * n_v + head) * kHeadDim * kHeadDim;
  }
  // A pending row: k of every key head, v of every value head, decays, betas.
  __device__ __forceinline__ float* pending_row(int slot, int i) const {
    return pending + (int64_t{slot} * (kMaxDrafts + 1) + i) * (int64_t{n_k + n_v} * kHeadDim + 2 * n_v);
  }
  __device__ __forceinline__ int64_t pending_v(int head) const { return int64_t{n_k + head} * kHeadDim; }
  __device__ __forceinline__ int64_t pending_decay(int head) const {
    return int64_t{n_k + n_v} * kHeadDim + head;
  }
  // Four channels of the convolution's input at row t of `segment`, or as many rows before it; zeros before position 0.
  __device__ __forceinline__ float4 input(const Segment& segment, int t, int channel) const {
    if (t >= segment.row) return *reinterpret_cast<const float4*>(qkv + int64_t{t} * qkv_stride + channel);
    const int position = segment.position + (t - segment.row);
    if (position < 0) return make_float4(0, 0, 0, 0);
    return *reinterpret_cast<const float4*>(
        ring + (int64_t{segment.slot} * kConvRing + position % kConvRing) * channels() + channel);
  }
  __device__ __forceinline__ float4 taps(int c) const {
    return *reinterpret_cast<const float4*>(conv + int64_t{c} * 4);
  }
  __device__ __forceinline__ const float* ring_row(const Segment& segment, int position) const {
    return ring + (int64_t{segment.slot} * kConvRing + position % kConvRing) * channels();
  }
  // silu of the convolution.
  __device__ __forceinline__ static float convolved(const float4& window, const float4& taps) {
    float sum = fmaf(taps.x, window.x, 0.0f);
    sum = fmaf(taps.y, window.y, sum);
    sum = fmaf(taps.z, window.z, sum);
    return scalar::silu(fmaf(taps.w, window.w, sum));
  }
  __device__ __forceinline__ float decay_of(int t, int head) const {
    return log_decay(a[t * a_stride + head], decay[head], dt_bias[head]);
  }
  __device__ __forceinline__ static float log_decay(float a, float rate, float bias) {
    return rate * scalar::softplus(a + bias);
  }
  __device__ __forceinline__ float beta_of(int t, int head) const {
    return scalar::sigmoid(b[t * b_stride + head]);
  }
  __device__ __forceinline__ float gated(float z) const {
    return silu_gate ? scalar::silu(z) : scalar::sigmoid(z);
  }
};

// kColumns columns of a head's state, from column0 on, in the registers of 4·kColumns threads: thread (group, column)
// holds M[32·group + i][column0 + column] for i < 32 as m[i]. One step of the delta rule for these columns:
//   M = decay·M;  d = beta·(v - Mᵀk);  M = M + k dᵀ;  o = Mᵀq = (decay·M)ᵀq + (k·q) d
// k, q [128] and v [kColumns] lie in shared memory; `part` is [2][4][kColumns] of it. Every thread of a column returns
// its o. What a column's values are does not depend on kColumns.
template <int kColumns>
__device__ __forceinline__ float delta_step(float (&m)[32], const float* k, const float* q, const float* v,
                                            float decay, float beta, float kq, float* part) {
  const int column = threadIdx.x % kColumns, group = threadIdx.x / kColumns;
  float mk = 0, mq = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    m[i] *= decay;
    mk = fmaf(m[i], k[32 * group + i], mk);
    if (q) mq = fmaf(m[i], q[32 * group + i], mq);
  }
  part[group * kColumns + column] = mk;
  if (q) part[(4 + group) * kColumns + column] = mq;
  __syncthreads();
  mk = ((part[column] + part[kColumns + column]) + part[2 * kColumns + column]) + part[3 * kColumns + column];
  const float d = beta * (v[column] - mk);
#pragma unroll
  for (int i = 0; i < 32; ++i) m[i] = fmaf(k[32 * group + i], d, m[i]);
  float o = 0;
  if (q) {
    const float* p = part + 4 * kColumns;
    mq = ((p[column] + p[kColumns + column]) + p[2 * kColumns + column]) + p[3 * kColumns + column];
    o = fmaf(kq, d, mq);
  }
  __syncthreads();
  return o;
}

inline constexpr int kStateThreads = 4 * kHeadDim;  // of all columns

template <int kColumns>
__device__ __forceinline__ void load_state(float (&m)[32], const float* M, int column0) {
  M += threadIdx.x / kColumns * 32 * kHeadDim + column0 + threadIdx.x % kColumns;
#pragma unroll
  for (int i = 0; i < 32; ++i) m[i] = __ldcs(M + i * kHeadDim);  // once a step
}
template <int kColumns>
__device__ __forceinline__ void store_state(const float (&m)[32], float* M, int column0) {
  M += threadIdx.x / kColumns * 32 * kHeadDim + column0 + threadIdx.x % kColumns;
#pragma unroll
  for (int i = 0; i < 32; ++i) __stcs(M + i * kHeadDim, m[i]);
}

// The accepted pending rows into m, in the arithmetic of their first run. `kv` is [128 + kColumns] of shared memory.
template <int kColumns>
struct Pending {
  static_assert(kHeadDim + kColumns <= 4 * kColumns);
  float kv = 0, decay = 0, beta = 0;  // a thread's value of k and v

  __device__ __forceinline__ void load(const DeltaView& d, int slot, int head, int column0, int i) {
    const float* row = d.pending_row(slot, i);
    const int at = static_cast<int>(threadIdx.x);
    if (at < kHeadDim + kColumns) {
      kv = at < kHeadDim ? row[d.key_head(head) * kHeadDim + at]
                         : row[d.pending_v(head) + column0 + at - kHeadDim];
    }
    decay = row[d.pending_decay(head)];
    beta = row[d.pending_decay(head) + d.n_v];
  }
};
// `next` holds the first.
template <int kColumns>
__device__ __forceinline__ void replay(float (&m)[32], const DeltaView& d, int slot, int head, int column0,
                                       int n_pending, Pending<kColumns> next, float* kv, float* part) {
#pragma unroll 1
  for (int i = 0; i < n_pending; ++i) {
    const Pending<kColumns> row = next;
    if (threadIdx.x < kHeadDim + kColumns) kv[threadIdx.x] = row.kv;
    if (i + 1 < n_pending) next.load(d, slot, head, column0, i + 1);
    __syncthreads();
    delta_step<kColumns>(m, kv, nullptr, kv + kHeadDim, row.decay, row.beta, 0, part);
  }
}

void delta_net_decode(Stream& s, const DeltaView& d);
void delta_net_prefill(Stream& s, const DeltaView& d);

}  // namespace quern::cuda

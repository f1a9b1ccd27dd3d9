// hc_mix on CUDA: which rows take which path, and the plain form for widths neither path takes.
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/reduce.cuh"

namespace quern::cuda {
namespace {

constexpr int kThreads = 256, kMaxRank = 1024;

// W[row] · x(k), by one warp.
template <typename X>
__device__ float warp_dot(const WeightView& w, int row, X&& x) {
  float sum = 0;
  with_format(w.kind, [&](auto format) {
    using F = decltype(format);
    for (int k = 16 * (static_cast<int>(threadIdx.x) % 32); k < w.k; k += 512) {
      typename F::Raw raw;
      uint32_t words[8];
      F::load(raw, w, row, k);
      F::decode_ordered(raw, w, row, k, words);
      for (int i = 0; i < 16 && k + i < w.k; ++i) {
        sum = fmaf(i % 2 ? bf16_high(words[i / 2]) : bf16_low(words[i / 2]), x(k + i), sum);
      }
    }
    sum *= w.row_factor(row) * F::kRest;
  });
  return warp_sum(sum);
}

__global__ __launch_bounds__(kThreads) void hc_plain_kernel(const __grid_constant__ MixerView m) {
  pdl_launch();
  pdl_wait();
  __shared__ float d[kMaxRank], r[kMaxStreams], shared[kThreads / 32];
  const int64_t t = blockIdx.x;
  const float* x = m.x + t * m.x_stride;
  for (int s = 0; s < m.streams; ++s) {
    float q = 0;
    for (int i = threadIdx.x; i < m.width; i += kThreads) q = fmaf(x[s * m.width + i], x[s * m.width + i], q);
    q = block_sum<kThreads>(q, shared);
    if (threadIdx.x == 0) r[s] = rsqrtf(q / static_cast<float>(m.width) + m.eps);
  }
  __syncthreads();
  const auto n = [&](int k) { return x[k] * r[k / m.width] * (1.0f + m.norm[k]); };
  const float inverse = 1.0f / static_cast<float>(m.streams);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i < m.rank + (m.inj ? m.streams : 0); i += kThreads / 32) {
    const bool down = i < m.rank;
    const float v = warp_dot(down ? m.down : m.inject, down ? i : i - m.rank, n) * inverse;
    if (lane != 0) continue;
    if (down) {
      d[i] = scalar::silu(v);
    } else {
      m.inj[t * m.inj_stride + i - m.rank] = 2.0f * scalar::sigmoid(v);
    }
  }
  __syncthreads();
  for (int i = warp; i < m.width; i += kThreads / 32) {
    float h = 0;
    for (int s = 0; s < m.streams; ++s) {
      const float mix = warp_dot(m.up, s * m.width + i, [&](int k) { return d[k]; });
      h = fmaf(scalar::sigmoid(mix), n(s * m.width + i), h);
    }
    if (lane == 0) m.h[t * m.h_stride + i] = h * inverse;
  }
}

}  // namespace

void hc_mix_plain(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.rank <= kMaxRank, "hc_mix on CUDA takes a rank of at most 1024");
  launch(s, hc_plain_kernel, dim3(static_cast<unsigned>(m.n_rows)), kThreads, 0, 1, m);
}

void hc_mix(Stream& s, Tensor h, Tensor inj, Tensor x, const MixerWeights& w, int streams, float eps,
            int64_t n_decode_rows) {
  MixerView m;
  m.x = x.as<float>();
  m.x_stride = x.row_stride;
  m.h = h.as<float>();
  m.h_stride = h.row_stride;
  m.inj = inj ? inj.as<float>() : nullptr;
  m.inj_stride = inj ? inj.row_stride : 0;
  m.norm = w.norm.as<float>();
  m.down = weight_view(w.down);
  m.up = weight_view(w.up);
  if (inj) m.inject = weight_view(w.inject);
  m.streams = streams;
  m.width = static_cast<int32_t>(x.cols() / streams);
  m.rank = static_cast<int32_t>(w.down.n());
  m.eps = eps;
  QUERN_CHECK(streams <= kMaxStreams, "hc_mix on CUDA takes at most 4 streams");
  const int64_t n_rows = x.shape[0];
  if (m.width % kStep != 0 || m.x_stride % 4 != 0 || !m.down.wide || !m.up.wide || (inj && !m.inject.wide)) {
    m.n_rows = static_cast<int32_t>(n_rows);
    return hc_mix_plain(s, m);
  }
  if (n_decode_rows > 0) {
    m.n_rows = static_cast<int32_t>(n_decode_rows);
    m.width % hc_step(m) == 0 ? hc_mix_decode(s, m) : hc_mix_plain(s, m);
  }
  if (n_decode_rows < n_rows) {
    m.n_rows = static_cast<int32_t>(n_rows - n_decode_rows);
    m.x += n_decode_rows * m.x_stride;
    m.h += n_decode_rows * m.h_stride;
    if (m.inj) m.inj += n_decode_rows * m.inj_stride;
    hc_mix_prefill(s, m);
  }
}

}  // namespace quern::cuda

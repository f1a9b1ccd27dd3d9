// hc_mix for prompt rows: normalise to BF16, [down; inject], then up with the mean over streams as epilogue.
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tile_product.cuh"

namespace quern::cuda {
namespace {

constexpr int kRows = 128, kNormThreads = 256;

// One block a row: r[t, s], and n in BF16.
__global__ __launch_bounds__(kNormThreads) void hc_norm_kernel(const __grid_constant__ MixerView m,
                                                               uint16_t* n, float* r_out) {
  pdl_launch();
  pdl_wait();
  __shared__ float shared[kNormThreads / 32];
  const int64_t t = blockIdx.x;
  const int64_t wide = int64_t{m.streams} * m.width;
  for (int s = 0; s < m.streams; ++s) {
    const float4* x = reinterpret_cast<const float4*>(m.x + t * m.x_stride + int64_t{s} * m.width);
    const float4* w = reinterpret_cast<const float4*>(m.norm + int64_t{s} * m.width);
    float q = 0;
    for (int i = threadIdx.x; i < m.width / 4; i += kNormThreads) {
      const float4 v = x[i];
      q = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, q))));
    }
    q = block_sum<kNormThreads>(q, shared);
    const float r = rsqrtf(q / static_cast<float>(m.width) + m.eps);
    if (threadIdx.x == 0) r_out[t * m.streams + s] = r;
    uint2* to = reinterpret_cast<uint2*>(n + t * wide + int64_t{s} * m.width);
    for (int i = threadIdx.x; i < m.width / 4; i += kNormThreads) {
      const float4 v = x[i], f = w[i];
      to[i] = make_uint2(pack_bf16(v.x * r * (1.0f + f.x), v.y * r * (1.0f + f.y)),
                         pack_bf16(v.z * r * (1.0f + f.z), v.w * r * (1.0f + f.w)));
    }
  }
}

// d [T, stride] BF16 = silu(down · n / S), zeros up to the stride; inj from the rows after down's, if `with`.
template <typename F>
__global__ __launch_bounds__(kTileThreads, 2) void hc_down_tile_kernel(const __grid_constant__ MixerView m,
                                                                       const uint16_t* n, uint16_t* d,
                                                                       int stride, bool down, bool inject) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, n0 = static_cast<int>(blockIdx.y) * kTileCols;
  const int64_t wide = int64_t{m.streams} * m.width;
  const int rank = down ? m.rank : 0;
  float acc[kTileN<kRows>][4] = {};
  tile_product<F, kRows>(
      acc, shared, static_cast<int>(wide), static_cast<int>(wide),
      [&](int r) { return m0 + r < m.n_rows ? n + (m0 + r) * wide : nullptr; },
      [&](int r, int& row) {
        const int at = n0 + r;
        if (at < rank) {
          row = at;
          return m.down;
        }
        row = inject ? at - rank : INT32_MAX / 2;
        return inject ? m.inject : m.down;
      });
  const float inverse = 1.0f / static_cast<float>(m.streams);
  for_tile<kRows>(acc, [&](int r, int c, float v0, float v1) {
    const int64_t t = m0 + r;
    if (t >= m.n_rows) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = n0 + c + i;
      const float v = (i ? v1 : v0) * inverse * F::kRest;
      if (at < rank) {
        d[t * stride + at] = scalar::f32_to_bf16(scalar::silu(v * m.down.row_factor(at)));
      } else if (inject && at - rank < m.streams) {
        m.inj[t * m.inj_stride + at - rank] = 2.0f * scalar::sigmoid(v * m.inject.row_factor(at - rank));
      } else if (down && !inject && at < stride) {
        d[t * stride + at] = 0;
      }
    }
  });
}

// Tile column 32·q + 8·s + c is row s·H + i of up, i = i0 + 8·q + c: a lane holds all streams of its i.
template <typename F>
__global__ __launch_bounds__(kTileThreads, 2) void hc_up_tile_kernel(const __grid_constant__ MixerView m,
                                                                     const uint16_t* d, int stride,
                                                                     const float* r) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, i0 = static_cast<int>(blockIdx.y) * (kTileCols / 4);
  float acc[kTileN<kRows>][4] = {};
  tile_product<F, kRows>(
      acc, shared, stride, stride,
      [&](int row) { return m0 + row < m.n_rows ? d + int64_t{m0 + row} * stride : nullptr; },
      [&](int c, int& row) {
        const int s = c % 32 / 8, i = i0 + c / 32 * 8 + c % 8;
        row = s < m.streams && i < m.width ? s * m.width + i : INT32_MAX / 2;
        return m.up;
      });
  const float inverse = 1.0f / static_cast<float>(m.streams);
#pragma unroll
  for (int q = 0; q < kTileN<kRows> / 4; ++q) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t t = m0 + tile_row<kRows>(e / 2);
      const int i = i0 + 8 * q + 2 * (threadIdx.x % 4) + e % 2;
      if (t >= m.n_rows || i >= m.width) continue;
      float h = 0;
#pragma unroll
      for (int s = 0; s < kMaxStreams; ++s) {
        if (s >= m.streams) break;
        const int64_t at = int64_t{s} * m.width + i;
        const float n = m.x[t * m.x_stride + at] * r[t * m.streams + s] * (1.0f + m.norm[at]);
        h = fmaf(scalar::sigmoid(acc[4 * q + s][e] * (m.up.row_factor(static_cast<int>(at)) * F::kRest)), n,
                 h);
      }
      m.h[t * m.h_stride + i] = h * inverse;
    }
  }
}

}  // namespace

void hc_mix_prefill(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.width % kStep == 0 && m.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.x) % 16 == 0,
              "hc_mix on CUDA takes streams of a multiple of 64 values");
  ScratchScope scope(s);
  const int stride = steps_of(m.rank) * kStep;
  const Tensor n = s.scratch(DType::BF16, {m.n_rows, int64_t{m.streams} * m.width});
  const Tensor d = s.scratch(DType::BF16, {m.n_rows, stride}),
               r = s.scratch(DType::F32, {m.n_rows, m.streams});
  const unsigned m_tiles = blocks(m.n_rows, kRows);
  launch(s, hc_norm_kernel, dim3(static_cast<unsigned>(m.n_rows)), kNormThreads, 0, 1, m, n.as<uint16_t>(),
         r.as<float>());
  const bool together = m.inj && m.inject.kind == m.down.kind && stride == m.rank;
  const auto down = [&](const WeightView& w, bool with_down, bool with_inject) {
    const int rows = (with_down ? stride : 0) + (with_inject ? m.streams : 0);
    with_format_host(w.kind, [&](auto format) {
      launch(s, hc_down_tile_kernel<decltype(format)>, dim3(m_tiles, blocks(rows, kTileCols)), kTileThreads,
             kTileShared<kRows>, 1, m, static_cast<const uint16_t*>(n.as<uint16_t>()), d.as<uint16_t>(),
             stride, with_down, with_inject);
    });
  };
  down(m.down, true, together);
  if (m.inj && !together) down(m.inject, false, true);
  with_format_host(m.up.kind, [&](auto format) {
    launch(s, hc_up_tile_kernel<decltype(format)>, dim3(m_tiles, blocks(m.width, kTileCols / 4)),
           kTileThreads, kTileShared<kRows>, 1, m, static_cast<const uint16_t*>(d.as<uint16_t>()), stride,
           static_cast<const float*>(r.as<float>()));
  });
}

}  // namespace quern::cuda

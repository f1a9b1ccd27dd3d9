// hc_mix for prompt rows: normalise to BF16, [down; inject], then up with the mean over streams as epilogue.
#include "ops/cuda/hyper_connection_launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/tile_product.cuh"

namespace quern::cuda {
namespace {

constexpr int kNormThreads = 256;

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
template <typename F, int kRows>
__global__ __launch_bounds__(kTileThreads, 1) void hc_down_tile_kernel(const __grid_constant__ MixerView m,
                                                                       const uint16_t* n, uint16_t* d,
                                                                       int stride, bool down, bool inject) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, n0 = static_cast<int>(blockIdx.y) * kTileCols;
  const int64_t wide = int64_t{m.streams} * m.width;
  const int rank = down ? m.rank : 0;
  tile_product<F, kRows>(
      shared, min(kRows, m.n_rows - m0), static_cast<int>(wide), static_cast<int>(wide),
      [&](int r) { return n + (m0 + r) * wide; },
      [&](int r, int& row) {
        const int at = n0 + r;
        if (at < rank) {
          row = at;
          return m.down;
        }
        row = inject ? at - rank : INT32_MAX / 2;
        return inject ? m.inject : m.down;
      },
      [&](const TileSums<kRows>& acc) {
        const float inverse = 1.0f / static_cast<float>(m.streams);
        for_tile_rows<kRows>([&](int r, int b, int half) {
          const int64_t t = m0 + r;
          if (t >= m.n_rows) return;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            const int at = n0 + tile_column(j);
            uint16_t v[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float sum = acc[b][j][2 * half + i] * inverse;
              v[i] = 0;
              if (at + i < rank) {
                v[i] = scalar::f32_to_bf16(scalar::silu(sum * column_factor<F>(m.down, at + i)));
              } else if (inject && at + i - rank < m.streams) {
                m.inj[t * m.inj_stride + at + i - rank] =
                    2.0f * scalar::sigmoid(sum * column_factor<F>(m.inject, at + i - rank));
              }
            }
            // stride is even, and the zeros between rank and it are d's.
            if (down && at < stride)
              *reinterpret_cast<uint32_t*>(d + t * stride + at) = v[0] | static_cast<uint32_t>(v[1]) << 16;
          }
        });
      });
}

// Tile column 32·q + 8·s + c is row s·H + i of up, i = i0 + 8·q + c: a lane holds all streams of its i.
template <typename F, int kRows>
__global__ __launch_bounds__(kTileThreads, 1) void hc_up_tile_kernel(const __grid_constant__ MixerView m,
                                                                     const uint16_t* d, int stride,
                                                                     const float* r) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, i0 = static_cast<int>(blockIdx.y) * (kTileCols / 4);
  tile_product<F, kRows>(
      shared, min(kRows, m.n_rows - m0), stride, stride,
      [&](int row) { return d + int64_t{m0 + row} * stride; },
      [&](int c, int& row) {
        const int s = c % 32 / 8, i = i0 + c / 32 * 8 + c % 8;
        row = s < m.streams && i < m.width ? s * m.width + i : INT32_MAX / 2;
        return m.up;
      },
      [&](const TileSums<kRows>& acc) {
        const float inverse = 1.0f / static_cast<float>(m.streams);
        for_tile_rows<kRows>([&](int row, int b, int half) {
          const int64_t t = m0 + row;
          if (t >= m.n_rows) return;
          const float* x = m.x + t * m.x_stride;
          float2 n[4][kMaxStreams];  // everything the row's columns read, before anything is stored
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const int i = i0 + 8 * q + 2 * (threadIdx.x % 4);
#pragma unroll
            for (int s = 0; s < kMaxStreams; ++s) {
              n[q][s] = make_float2(0, 0);
              if (s < m.streams && i < m.width)  // width is a multiple of 64
                n[q][s] = __ldg(reinterpret_cast<const float2*>(x + int64_t{s} * m.width + i));
            }
          }
          float scale[kMaxStreams];
#pragma unroll
          for (int s = 0; s < kMaxStreams; ++s)
            scale[s] = s < m.streams ? __ldg(r + t * m.streams + s) : 0.0f;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const int i = i0 + 8 * q + 2 * (threadIdx.x % 4);
            if (i >= m.width) continue;
            float h[2] = {};
#pragma unroll
            for (int s = 0; s < kMaxStreams; ++s) {
              if (s >= m.streams) break;
              const int at = s * m.width + i;
              const float2 w = __ldg(reinterpret_cast<const float2*>(m.norm + at));
              const float n0 = n[q][s].x * scale[s] * (1.0f + w.x), n1 = n[q][s].y * scale[s] * (1.0f + w.y);
              const float* up = &acc[b][4 * q + s][2 * half];
              h[0] = fmaf(fast_sigmoid(up[0] * column_factor<F>(m.up, at)), n0, h[0]);
              h[1] = fmaf(fast_sigmoid(up[1] * column_factor<F>(m.up, at + 1)), n1, h[1]);
            }
            *reinterpret_cast<float2*>(m.h + t * m.h_stride + i) =
                make_float2(h[0] * inverse, h[1] * inverse);
          }
        });
      });
}

}  // namespace

void hc_mix_prefill(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.width % kStep == 0 && m.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.x) % 16 == 0 &&
                  m.h_stride % 2 == 0 && reinterpret_cast<uintptr_t>(m.h) % 8 == 0,
              "hc_mix on CUDA takes streams of a multiple of 64 values");
  ScratchScope scope(s);
  const int stride = steps_of(m.rank) * kStep;
  const Tensor n = s.scratch(DType::BF16, {m.n_rows, int64_t{m.streams} * m.width});
  const Tensor d = s.scratch(DType::BF16, {m.n_rows, stride}),
               r = s.scratch(DType::F32, {m.n_rows, m.streams});
  launch(s, hc_norm_kernel, dim3(static_cast<unsigned>(m.n_rows)), kNormThreads, 0, 1, m, n.as<uint16_t>(),
         r.as<float>());
  const bool together = m.inj && m.inject.kind == m.down.kind && stride == m.rank;
  // Tiles of 256 rows fill the chip with long inputs only.
  const auto sized = [&](int64_t cols, auto&& with) {
    if (takes_large_tiles(s, m.n_rows, cols)) {
      with.template operator()<kHopperTile>();
    } else {
      with.template operator()<kSmallTile>();
    }
  };
  const auto down = [&](const WeightView& w, bool with_down, bool with_inject) {
    const int rows = (with_down ? stride : 0) + (with_inject ? m.streams : 0);
    with_format_host(w.kind, [&](auto format) {
      sized(rows, [&]<int kRows>() {
        launch(s, hc_down_tile_kernel<decltype(format), kRows>,
               dim3(blocks(m.n_rows, kRows), blocks(rows, kTileCols)), kTileThreads, tile_shared(s, kRows), 1,
               m, static_cast<const uint16_t*>(n.as<uint16_t>()), d.as<uint16_t>(), stride, with_down,
               with_inject);
      });
    });
  };
  down(m.down, true, together);
  if (m.inj && !together) down(m.inject, false, true);
  with_format_host(m.up.kind, [&](auto format) {
    sized(int64_t{m.width} * 4, [&]<int kRows>() {
      launch(s, hc_up_tile_kernel<decltype(format), kRows>,
             dim3(blocks(m.n_rows, kRows), blocks(m.width, kTileCols / 4)), kTileThreads,
             tile_shared(s, kRows), 1, m, static_cast<const uint16_t*>(d.as<uint16_t>()), stride,
             static_cast<const float*>(r.as<float>()));
    });
  });
}

}  // namespace quern::cuda

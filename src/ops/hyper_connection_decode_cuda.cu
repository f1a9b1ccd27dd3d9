// hc_mix for decode rows, in two launches that read down, inject and up once.
//
// The first is [down; inject] by the un-normalised x ⊙ (1 + norm): the normalisation is one scalar a stream,
// so a block that holds a piece of K within one stream also sums its squares, and the first block of the
// cluster scales each stream's partial sums as it adds them. The second is up, its sigmoid, and the mean over
// streams: a warp a stream, 16 columns of h a block.
#include "ops/cuda/hyper_connection_launch.cuh"

namespace quern::cuda {
namespace {

constexpr int kDownWarps = 4;

// x ⊙ (1 + norm), with the sum of squares of x on the way.
template <int kTiles>
struct ScaledColumns {
  RowsF32 rows;
  const float* norm;
  int first;
  float squares[kTiles];

  template <bool kSplitPairs>
  __device__ __forceinline__ void words(int j, int k, uint32_t* b) {
    const int r = first + 8 * j + (threadIdx.x % 32) / 4;
    float v[16], w[16];
    if (r < rows.n_rows) {
      load_run(v, rows.row(r), k, rows.k, rows.wide);
      load_run(w, norm, k, rows.k, rows.wide);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        squares[j] = fmaf(v[i], v[i], squares[j]);
        v[i] *= 1.0f + w[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = 0;
    }
    pack_run<kSplitPairs>(v, b);
  }
};

// cluster = streams · per_stream blocks along K; tiles of 16 rows of down, then one of inject.
template <int kTiles>
__global__ __launch_bounds__(kDownWarps * 32) void hc_down_kernel(const __grid_constant__ MixerView m,
                                                                  float* d, float* r_out, int per_stream,
                                                                  int row_groups) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles, kThreads = kDownWarps * 32;
  __shared__ float part[kDownWarps][kColumns * 16];
  __shared__ float part_squares[kDownWarps][kColumns];
  __shared__ float sum[kColumns * 16];
  __shared__ float squares[kColumns];
  __shared__ float r_of[kColumns][kMaxStreams];
  const int cluster = m.streams * per_stream;
  const int rank = static_cast<int>(blockIdx.x) % cluster, at = static_cast<int>(blockIdx.x) / cluster;
  const int tile = at / row_groups, first = at % row_groups * kColumns;
  const int down_tiles = (m.rank + 15) / 16;
  const bool is_inject = tile >= down_tiles;
  const WeightView w = is_inject ? m.inject : m.down;
  const int row = is_inject ? 0 : tile * 16;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int steps = m.width / per_stream / kStep;  // of this block
  const int begin = rank * steps + part_begin(steps, warp, kDownWarps);
  const int end = rank * steps + part_begin(steps, warp + 1, kDownWarps);
  RowsF32 rows{m.x, m.x_stride, m.n_rows, m.streams * m.width, true};
  ScaledColumns<kTiles> columns{rows, m.norm, first, {}};
  float acc[1][kTiles][4] = {};
  product<1, kTiles>(acc, {w}, {row}, begin, end, columns, [] { pdl_wait(); });
  store_tile(part[warp], acc[0]);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    float q = columns.squares[j];
    q += __shfl_xor_sync(0xffffffffu, q, 1);
    q += __shfl_xor_sync(0xffffffffu, q, 2);
    if (lane % 4 == 0) part_squares[warp][8 * j + lane / 4] = q;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns * 16; i += kThreads) {
    float v = part[0][i];
#pragma unroll
    for (int p = 1; p < kDownWarps; ++p) v += part[p][i];
    sum[i] = v;
  }
  for (int i = threadIdx.x; i < kColumns; i += kThreads) {
    float v = part_squares[0][i];
#pragma unroll
    for (int p = 1; p < kDownWarps; ++p) v += part_squares[p][i];
    squares[i] = v;
  }
  cluster_arrive();
  cluster_wait();
  if (rank == 0) {
    for (int i = threadIdx.x; i < kColumns * m.streams; i += kThreads) {
      const int c = i / m.streams, s = i % m.streams;
      float q = 0;
      for (int p = 0; p < per_stream; ++p) q += cluster_load(&squares[c], s * per_stream + p);
      const float r = rsqrtf(q / static_cast<float>(m.width) + m.eps);
      r_of[c][s] = r;
      if (tile == 0 && first + c < m.n_rows) r_out[(first + c) * m.streams + s] = r;
    }
    __syncthreads();
    const float inverse = 1.0f / static_cast<float>(m.streams);
    for (int i = threadIdx.x; i < kColumns * 16; i += kThreads) {
      const int c = i / 16, t = first + c, n = row + i % 16;
      if (t >= m.n_rows || n >= w.n) continue;
      float v = 0;
      for (int s = 0; s < m.streams; ++s) {
        float q = 0;
        for (int p = 0; p < per_stream; ++p) q += cluster_load(&sum[i], s * per_stream + p);
        v = fmaf(r_of[c][s], q, v);
      }
      v *= inverse;
      if (is_inject) {
        m.inj[t * m.inj_stride + n] = 2.0f * scalar::sigmoid(v);
      } else {
        d[int64_t{t} * m.rank + n] = scalar::silu(v);
      }
    }
  }
  cluster_arrive();
  cluster_wait();
}

template <int kTiles>
__global__ __launch_bounds__(kMaxStreams * 32) void hc_up_kernel(const __grid_constant__ MixerView m,
                                                                 const float* d, const float* r,
                                                                 int row_groups) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles;
  __shared__ float mix[kMaxStreams][kColumns * 16];
  const int i0 = static_cast<int>(blockIdx.x) / row_groups * 16;
  const int first = static_cast<int>(blockIdx.x) % row_groups * kColumns;
  const int s = threadIdx.x / 32;
  float acc[1][kTiles][4] = {};
  RowsF32 rows{d, m.rank, m.n_rows, m.rank, m.rank % 16 == 0};
  PlainColumns columns{rows, nullptr, first};
  product<1, kTiles>(acc, {m.up}, {s * m.width + i0}, 0, steps_of(m.rank), columns, [] { pdl_wait(); });
  store_tile(mix[s], acc[0]);
  __syncthreads();
  const float inverse = 1.0f / static_cast<float>(m.streams);
  for (int i = threadIdx.x; i < kColumns * 16; i += blockDim.x) {
    const int t = first + i / 16, c = i0 + i % 16;
    if (t >= m.n_rows || c >= m.width) continue;
    float v = 0;
    for (int q = 0; q < m.streams; ++q) {
      const int64_t at = int64_t{q} * m.width + c;
      const float n = m.x[t * m.x_stride + at] * r[t * m.streams + q] * (1.0f + m.norm[at]);
      v = fmaf(scalar::sigmoid(mix[q][i]), n, v);
    }
    m.h[t * m.h_stride + c] = v * inverse;
  }
}

}  // namespace

void hc_mix_decode(Stream& s, const MixerView& m) {
  QUERN_CHECK(m.width % kStep == 0 && m.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.x) % 16 == 0,
              "hc_mix on CUDA takes streams of a multiple of 64 values");
  ScratchScope scope(s);
  const Tensor d = s.scratch(DType::F32, {m.n_rows, m.rank}),
               r = s.scratch(DType::F32, {m.n_rows, m.streams});
  const int per_stream = m.width % (2 * kStep) == 0 ? 2 : 1, cluster = m.streams * per_stream;
  const int tiles = ceil_div(m.rank, 16) + (m.inj ? 1 : 0);
  const int groups = m.n_rows <= 16 ? 1 : ceil_div(m.n_rows, 32);
  const auto down = m.n_rows <= 8    ? hc_down_kernel<1>
                    : m.n_rows <= 16 ? hc_down_kernel<2>
                                     : hc_down_kernel<4>;
  const auto up = m.n_rows <= 8 ? hc_up_kernel<1> : m.n_rows <= 16 ? hc_up_kernel<2> : hc_up_kernel<4>;
  launch(s, down, dim3(static_cast<unsigned>(tiles * groups * cluster)), kDownWarps * 32, 0, cluster, m,
         d.as<float>(), r.as<float>(), per_stream, groups);
  launch(s, up, dim3(static_cast<unsigned>(ceil_div(m.width, 16) * groups)), m.streams * 32, 0, 1, m,
         static_cast<const float*>(d.as<float>()), static_cast<const float*>(r.as<float>()), groups);
}

}  // namespace quern::cuda

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

// x ⊙ (1 + norm), with the sums of squares of x on the way.
struct ScaledStage {
  RowsF32 rows;
  const float* norm;
  int first;
  StagedX staged;
  float* squares;  // [warps][columns of the block]
  int n_squares;

  template <bool kSplitPairs>
  __device__ __forceinline__ void run() {
    pdl_wait();
    const int chunks = (staged.k1 - staged.k0) / 8, warp = threadIdx.x / 32;
    for (int c = 0; c < staged.n_columns; ++c) {
      const float* row = rows.row(first + c);
      float q = 0;
      for (int i = threadIdx.x; i < chunks; i += kDownWarps * 32) {
        float v[8], w[8];
        load_eight(v, row, staged.k0 + 8 * i, rows.k, rows.wide);
        load_eight(w, norm, staged.k0 + 8 * i, rows.k, rows.wide);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          q = fmaf(v[e], v[e], q);
          v[e] *= 1.0f + w[e];
        }
        *reinterpret_cast<uint4*>(staged.x + c * staged.stride + 16 * i) = pack_eight<kSplitPairs>(v);
      }
      q = warp_sum(q);
      if (threadIdx.x % 32 == 0) squares[warp * n_squares + c] = q;
    }
    __syncthreads();
  }
};

// cluster = streams · per_stream blocks along K; tiles of 16 rows of down, then one of inject.
template <typename F, int kTiles>
__global__ __launch_bounds__(kDownWarps * 32, 4) void hc_down_kernel(const __grid_constant__ MixerView m,
                                                                     float* d, float* r_out, int per_stream,
                                                                     int row_groups) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles, kThreads = kDownWarps * 32;
  extern __shared__ __align__(128) uint8_t staged[];
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

  const int warp = threadIdx.x / 32;
  const int steps = m.width / per_stream / kStep;  // of this block
  const int begin = rank * steps + part_begin(steps, warp, kDownWarps);
  const int end = rank * steps + part_begin(steps, warp + 1, kDownWarps);
  const RowsF32 rows{m.x, m.x_stride, m.n_rows, m.streams * m.width, true};
  const int n_columns = min(kColumns, m.n_rows - first);
  ScaledStage stage{
      rows,
      m.norm,
      first,
      {staged, staged_stride(steps), n_columns, rank * steps * kStep, (rank + 1) * steps * kStep},
      &part_squares[0][0],
      kColumns};
  float acc[kTiles * 4];
  product<F, kTiles>(acc, w, row, begin, end, stage);
  store_tile<kTiles>(part[warp], acc);
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns * 16; i += kThreads) {
    float v = part[0][i];
#pragma unroll
    for (int p = 1; p < kDownWarps; ++p) v += part[p][i];
    sum[i] = v;
  }
  for (int i = threadIdx.x; i < n_columns; i += kThreads) {
    float v = part_squares[0][i];
#pragma unroll
    for (int p = 1; p < kDownWarps; ++p) v += part_squares[p][i];
    squares[i] = v;
  }
  cluster_arrive();
  cluster_wait();
  if (rank == 0) {
    for (int i = threadIdx.x; i < n_columns * m.streams; i += kThreads) {
      const int c = i / m.streams, s = i % m.streams;
      float q = 0;
      for (int p = 0; p < per_stream; ++p) q += cluster_load(&squares[c], s * per_stream + p);
      const float r = rsqrtf(q / static_cast<float>(m.width) + m.eps);
      r_of[c][s] = r;
      if (tile == 0) r_out[(first + c) * m.streams + s] = r;
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

// As many threads as streams have warps.
struct UpStage : PlainStage<32> {
  template <bool kSplitPairs>
  __device__ __forceinline__ void run() {
    pdl_wait();
    const int chunks = staged.k1 / 8;
    for (int i = threadIdx.x; i < chunks * staged.n_columns; i += blockDim.x) {
      const int c = i / chunks, at = i % chunks;
      float v[8];
      load_eight(v, rows.row(first + c), 8 * at, rows.k, rows.wide);
      *reinterpret_cast<uint4*>(staged.x + c * staged.stride + 16 * at) = pack_eight<kSplitPairs>(v);
    }
    __syncthreads();
  }
};

template <typename F, int kTiles>
__global__ __launch_bounds__(kMaxStreams * 32, 4) void hc_up_kernel(const __grid_constant__ MixerView m,
                                                                    const float* d, const float* r,
                                                                    int row_groups) {
  pdl_launch();
  constexpr int kColumns = 8 * kTiles;
  extern __shared__ __align__(128) uint8_t staged[];
  __shared__ float mix[kMaxStreams][kColumns * 16];
  const int i0 = static_cast<int>(blockIdx.x) / row_groups * 16;
  const int first = static_cast<int>(blockIdx.x) % row_groups * kColumns;
  const int s = threadIdx.x / 32;
  const RowsF32 rows{d, m.rank, m.n_rows, m.rank, m.rank % 16 == 0};
  const int steps = steps_of(m.rank), row = s * m.width + i0;
  UpStage stage{{rows,
                 nullptr,
                 first,
                 {staged, staged_stride(steps), min(kColumns, m.n_rows - first), 0, steps * kStep},
                 false}};
  float acc[kTiles * 4];
  product<F, kTiles>(acc, m.up, row, 0, steps, stage);
  store_tile<kTiles>(mix[s], acc);
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
  const int columns = m.n_rows <= 8 ? 8 : 16, groups = ceil_div(m.n_rows, columns),
            used = std::min(columns, m.n_rows);
  with_format_host(m.down.kind, [&](auto format) {
    using F = decltype(format);
    launch(s, columns == 8 ? hc_down_kernel<F, 1> : hc_down_kernel<F, 2>,
           dim3(static_cast<unsigned>(tiles * groups * cluster)), kDownWarps * 32,
           static_cast<size_t>(staged_stride(m.width / per_stream / kStep) * used), cluster, m, d.as<float>(),
           r.as<float>(), per_stream, groups);
  });
  with_format_host(m.up.kind, [&](auto format) {
    using F = decltype(format);
    launch(s, columns == 8 ? hc_up_kernel<F, 1> : hc_up_kernel<F, 2>,
           dim3(static_cast<unsigned>(ceil_div(m.width, 16) * groups)), m.streams * 32,
           static_cast<size_t>(staged_stride(steps_of(m.rank)) * used), 1, m,
           static_cast<const float*>(d.as<float>()), static_cast<const float*>(r.as<float>()), groups);
  });
}

}  // namespace quern::cuda

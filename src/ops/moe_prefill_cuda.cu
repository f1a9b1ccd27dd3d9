// moe for prompt rows: entries sorted by expert, tiles of up to 256 entries (128 but on Hopper), no atomics on floats.
//
// Counting sort: counts by integer atomics, offsets and the tile table by one block, then a warp an expert
// writes its entries in ascending order. gate and up share a tile (of 32 columns 16 are gate's and the same
// 16 up's), so silu ⊙ is their epilogue; each entry's down is stored whole and summed in list order.
#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/tile_product.cuh"

namespace quern::cuda {
namespace {

constexpr int kRows = kLargestTile, kCombineThreads = 256, kScanThreads = 1024;

__global__ void count_kernel(const int32_t* ids, int64_t n, int32_t* counts) {
  pdl_launch();
  pdl_wait();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    atomicAdd(counts + ids[i], 1);
  }
}

// offsets[e] and the tiles {expert, first entry, end} of all experts; unused tiles get expert -1.
__global__ __launch_bounds__(kScanThreads) void plan_kernel(const int32_t* counts, int n_experts,
                                                            int32_t* offsets, int4* tiles, int max_tiles) {
  pdl_launch();
  pdl_wait();
  __shared__ int32_t first[kScanThreads], first_tile[kScanThreads];
  const int e = threadIdx.x;
  const int count = e < n_experts ? counts[e] : 0;
  first[e] = count;
  first_tile[e] = (count + kRows - 1) / kRows;
  __syncthreads();
  for (int d = 1; d < kScanThreads; d *= 2) {
    const int a = e >= d ? first[e - d] : 0, b = e >= d ? first_tile[e - d] : 0;
    __syncthreads();
    first[e] += a;
    first_tile[e] += b;
    __syncthreads();
  }
  const int total = first_tile[kScanThreads - 1];
  const int begin = first[e] - count;
  if (e < n_experts) {
    offsets[e] = begin;
    const int n_tiles = (count + kRows - 1) / kRows;
    for (int i = 0; i < n_tiles; ++i) {
      tiles[first_tile[e] - n_tiles + i] =
          make_int4(e, begin + i * kRows, min(begin + (i + 1) * kRows, begin + count), 0);
    }
  }
  for (int i = total + e; i < max_tiles; i += kScanThreads) tiles[i] = make_int4(-1, 0, 0, 0);
}

// order[offsets[e] …] = the entries of expert e, ascending. A warp an expert.
__global__ void place_kernel(const int32_t* ids, int64_t n, const int32_t* offsets, int n_experts,
                             int32_t* order) {
  pdl_launch();
  pdl_wait();
  const int e = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (e >= n_experts) return;
  int at = offsets[e];
  constexpr int kUnroll = 32;  // loads on their way at once: a warp waits for memory, nothing else
  for (int64_t i0 = 0; i0 < n; i0 += 32 * kUnroll) {
    int id[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = i0 + 32 * u + lane;
      id[u] = i < n ? ids[i] : -1;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned match = __ballot_sync(0xffffffffu, id[u] == e);
      if (match >> lane & 1u)
        order[at + __popc(match & ((1u << lane) - 1u))] = static_cast<int32_t>(i0 + 32 * u + lane);
      at += __popc(match);
    }
  }
}

struct TileArgs {
  const int4* tiles = nullptr;     // null: rows in their own order, all of one weight
  const int32_t* order = nullptr;  // entry of each sorted place
  int32_t n_rows = 0;
};
struct Tile {
  int expert, begin, end;
};
__device__ __forceinline__ Tile tile_of(const TileArgs& a) {
  const int i = static_cast<int>(blockIdx.y);
  if (!a.tiles) return {0, i * kRows, min((i + 1) * kRows, a.n_rows)};
  const int4 t = a.tiles[i];
  return {t.x, t.y, t.z};
}

// act[place, :] in BF16, zeros up to its stride.
template <typename F>
__global__ __launch_bounds__(kTileThreads,
                             1) void moe_gate_up_tile_kernel(const __grid_constant__ WeightView gate_all,
                                                             const __grid_constant__ WeightView up_all,
                                                             PrefillRows h, TileArgs tiles, int top_k,
                                                             uint16_t* act, int stride) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const Tile tile = tile_of(tiles);
  if (tile.expert < 0) return;
  const WeightView gate = tiles.tiles ? gate_all.expert(tile.expert) : gate_all;
  const WeightView up = tiles.tiles ? up_all.expert(tile.expert) : up_all;
  const int n0 = static_cast<int>(blockIdx.x) * (kTileCols / 2);
  tile_product<F, kRows>(
      shared, tile.end - tile.begin, h.k, gate.k,
      [&](int r) {
        const int at = tile.begin + r;
        const int64_t row = tiles.tiles ? tiles.order[at] / top_k : at;
        return h.a + row * h.stride;
      },
      [&](int c, int& row) {
        row = n0 + c / 32 * 16 + c % 16;
        return c % 32 < 16 ? gate : up;
      },
      [&](const TileSums<kRows>& acc) {
        for_tile_rows<kRows>([&](int r, int b, int half) {
          const int at = tile.begin + r;
          const bool inside = at < tile.end;
#pragma unroll
          for (int j = 0; j < 16; j += 4) {  // columns j and j + 1 are gate's, j + 2 and j + 3 up's
            uint32_t pair[2];
#pragma unroll
            for (int q = 0; q < 2; ++q) {
              const int n = n0 + j * 4 + 8 * q + 2 * (threadIdx.x % 4);
              float v[2];
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const float g = acc[b][j + q][2 * half + e] * column_factor<F>(gate, n + e);
                const float u = acc[b][j + q + 2][2 * half + e] * column_factor<F>(up, n + e);
                v[e] = n + e < gate.n ? g * fast_sigmoid(g) * u : 0.0f;
              }
              pair[q] = pack_bf16(v[0], v[1]);
            }
            // Even lanes write four columns of the first eight, odd lanes of the second: four lanes fill 32 bytes.
            const bool odd = threadIdx.x % 2;
            const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? pair[0] : pair[1], 1);
            const uint2 four = odd ? make_uint2(other, pair[1]) : make_uint2(pair[0], other);
            const int n = n0 + j * 4 + (odd ? 8 : 0) + 4 * (threadIdx.x % 4 / 2);
            if (inside && n < stride) *reinterpret_cast<uint2*>(act + int64_t{at} * stride + n) = four;
          }
        });
      });
}

// y_e[entry, :] = down_e · act[place, :]
template <typename F>
__global__ __launch_bounds__(kTileThreads,
                             1) void moe_down_tile_kernel(const __grid_constant__ WeightView down_all,
                                                          TileArgs tiles, const uint16_t* act, int stride,
                                                          float* y) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const Tile tile = tile_of(tiles);
  if (tile.expert < 0) return;
  const WeightView down = down_all.expert(tile.expert);
  const int n0 = static_cast<int>(blockIdx.x) * kTileCols;
  tile_product<F, kRows>(
      shared, tile.end - tile.begin, stride, stride,
      [&](int r) { return act + int64_t{tile.begin + r} * stride; },
      [&](int c, int& row) {
        row = n0 + c;
        return down;
      },
      [&](const TileSums<kRows>& acc) {
        for_tile_rows<kRows>([&](int r, int b, int half) {
          const int at = tile.begin + r;
          if (at >= tile.end) return;
          float* to = y + int64_t{tiles.order[at]} * down.n;
#pragma unroll
          for (int j = 0; j < 16; ++j) {
            const int n = n0 + tile_column(j);
            store_pair(to, n, down.n, down.n % 2 == 0, acc[b][j][2 * half] * column_factor<F>(down, n),
                       acc[b][j][2 * half + 1] * column_factor<F>(down, n + 1));
          }
        });
      });
}

// One block a row.
__global__ __launch_bounds__(kCombineThreads) void combine_kernel(const __grid_constant__ MoeView m,
                                                                  const float* y_e, const float* y_s,
                                                                  const float* shared_weight) {
  pdl_launch();
  pdl_wait();
  __shared__ float reduced[kCombineThreads / 32];
  const int64_t t = blockIdx.x;
  const int h = m.down.n;
  const float weight = shared_weight
                           ? shared_weight[t]
                           : scalar::sigmoid(row_dot<kCombineThreads>(
                                 m.shared_expert_gate, m.h.row(static_cast<int>(t)), m.h.wide, reduced));
  const float* inj = m.injection.inj + t * m.injection.stride;
  constexpr int kStreams = 4;
  const auto aligned = [](const float* p, int64_t stride) {
    return stride % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  if (h % 4 == 0 && m.injection.streams <= kStreams && aligned(m.x, m.x_stride) && aligned(m.y, m.y_stride)) {
    for (int n = 4 * threadIdx.x; n < h; n += 4 * kCombineThreads) {
      float4 x[kStreams];  // read before anything is written
#pragma unroll
      for (int s = 0; s < kStreams; ++s)
        if (s < m.injection.streams)
          x[s] = *reinterpret_cast<const float4*>(m.x + t * m.x_stride + int64_t{s} * h + n);
      const float4 shared_y = __ldg(reinterpret_cast<const float4*>(y_s + t * h + n));
      float v[4];
#pragma unroll 5
      for (int j = 0; j < m.top_k; ++j) {
        const float p = __ldg(m.p + t * m.top_k + j);
        const float4 y = __ldg(reinterpret_cast<const float4*>(y_e + (t * m.top_k + j) * h + n));
        const float part[4] = {p * y.x, p * y.y, p * y.z, p * y.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = j == 0 ? part[i] : v[i] + part[i];
      }
      const float last[4] = {shared_y.x, shared_y.y, shared_y.z, shared_y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] += weight * last[i];
      if (m.y) *reinterpret_cast<float4*>(m.y + t * m.y_stride + n) = make_float4(v[0], v[1], v[2], v[3]);
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        if (s >= m.injection.streams) break;
        *reinterpret_cast<float4*>(m.x + t * m.x_stride + int64_t{s} * h + n) =
            make_float4(fmaf(inj[s], v[0], x[s].x), fmaf(inj[s], v[1], x[s].y), fmaf(inj[s], v[2], x[s].z),
                        fmaf(inj[s], v[3], x[s].w));
      }
    }
    return;
  }
  for (int n = threadIdx.x; n < h; n += kCombineThreads) {
    const float v = combine(m.p + t * m.top_k, m.top_k, weight, y_s[t * h + n],
                            [&](int j) { return y_e[(t * m.top_k + j) * h + n]; });
    if (m.y) m.y[t * m.y_stride + n] = v;
    for (int s = 0; s < m.injection.streams; ++s) {
      float* x = m.x + t * m.x_stride + int64_t{s} * h + n;
      *x = fmaf(inj[s], v, *x);
    }
  }
}

}  // namespace

void moe_combine(Stream& s, const MoeView& m, const float* y_e, const float* y_s,
                 const float* shared_weight) {
  launch(s, combine_kernel, dim3(static_cast<unsigned>(m.h.n_rows)), kCombineThreads, 0, 1, m, y_e, y_s,
         shared_weight);
}

void moe_prefill(Stream& s, const MoeView& m) {
  ScratchScope scope(s);
  const int64_t t = m.h.n_rows, n = t * m.top_k;
  const int h = m.down.n;
  QUERN_CHECK(
      m.gate.kind == m.up.kind && m.shared_gate.kind == m.shared_up.kind && m.n_experts <= kScanThreads,
      "moe on CUDA takes at most 1024 experts with gate and up of one format");
  const int tile = largest_tile(s);
  const int max_tiles = static_cast<int>(std::min<int64_t>(n, n / tile + m.n_experts));
  const int stride = steps_of(m.gate.n) * kStep, shared_stride = steps_of(m.shared_gate.n) * kStep;
  const Tensor counts = s.scratch(DType::I32, {m.n_experts}), offsets = s.scratch(DType::I32, {m.n_experts});
  const Tensor order = s.scratch(DType::I32, {n}), tile_table = s.scratch(DType::I32, {max_tiles, 4});
  const Tensor act = s.scratch(DType::BF16, {n, stride}),
               shared_act = s.scratch(DType::F32, {t, shared_stride / 2});
  const Tensor y_e = s.scratch(DType::F32, {n, h}), y_s = s.scratch(DType::F32, {t, h});
  const PrefillRows rows = prefill_rows(s, m.h);

  s.zero(counts.data, counts.bytes());
  launch(s, count_kernel, dim3(std::min(blocks(n, 256), 132u)), 256, 0, 1, m.ids, n, counts.as<int32_t>());
  launch(s, plan_kernel, dim3(1), kScanThreads, 0, 1, static_cast<const int32_t*>(counts.as<int32_t>()),
         m.n_experts, offsets.as<int32_t>(), tile_table.as<int4>(), max_tiles);
  launch(s, place_kernel, dim3(blocks(m.n_experts, 4)), 128, 0, 1, m.ids, n,
         static_cast<const int32_t*>(offsets.as<int32_t>()), m.n_experts, order.as<int32_t>());
  const int shared = tile_shared(s, tile);
  const TileArgs tiles{tile_table.as<int4>(), order.as<int32_t>(), 0};
  const TileArgs all{nullptr, nullptr, static_cast<int32_t>(t)};
  const auto gate_up = [&](const WeightView& gate, const WeightView& up, const TileArgs& a, int n_tiles,
                           uint16_t* to, int to_stride) {
    with_format_host(gate.kind, [&](auto format) {
      launch(s, moe_gate_up_tile_kernel<decltype(format)>,
             dim3(blocks(to_stride, kTileCols / 2), static_cast<unsigned>(n_tiles)), kTileThreads, shared, 1,
             gate, up, rows, a, m.top_k, to, to_stride);
    });
  };
  gate_up(m.gate, m.up, tiles, max_tiles, act.as<uint16_t>(), stride);
  with_format_host(m.down.kind, [&](auto format) {
    launch(s, moe_down_tile_kernel<decltype(format)>,
           dim3(blocks(h, kTileCols), static_cast<unsigned>(max_tiles)), kTileThreads, shared, 1, m.down,
           tiles, static_cast<const uint16_t*>(act.as<uint16_t>()), stride, y_e.as<float>());
  });
  gate_up(m.shared_gate, m.shared_up, all, ceil_div(t, tile), shared_act.as<uint16_t>(), shared_stride);
  linear_prefill(s, {m.shared_down, y_s.as<float>(), h, 0},
                 {shared_act.as<uint16_t>(), shared_stride, static_cast<int32_t>(t), shared_stride},
                 Epilogue::Store, {});
  moe_combine(s, m, y_e.as<float>(), y_s.as<float>(), nullptr);
}

}  // namespace quern::cuda

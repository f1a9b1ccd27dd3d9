// linear for prompt rows: tiles of 256 or 128 rows by 128 columns, K in ascending order.
#include "ops/cuda/tile_product.cuh"

namespace quern::cuda {
namespace {

struct PrefillArgs {
  ProductView product;
  PrefillRows x;
  Epilogue epilogue = Epilogue::Store;
  Injection injection;
  bool paired = false;  // two neighbouring columns of y lie on 8 bytes
};

template <typename F, int kRows>
__global__ __launch_bounds__(kTileThreads,
                             1) void linear_prefill_kernel(const __grid_constant__ PrefillArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, n0 = static_cast<int>(blockIdx.y) * kTileCols;
  tile_product<F, kRows>(
      shared, min(kRows, a.x.n_rows - m0), a.x.k, a.product.w.k,
      [&](int r) { return a.x.a + (m0 + r) * a.x.stride; },
      [&](int r, int& row) {
        row = n0 + r;
        return a.product.w;
      },
      [&](const TileSums<kRows>& acc) {
        const int n_end = a.product.w.n;
        for_tile_rows<kRows>([&](int r, int b, int half) {
          const int64_t t = m0 + r;
          if (t >= a.x.n_rows) return;
          float* y = a.product.y + t * a.product.y_stride;
          if (a.epilogue == Epilogue::Store) {
#pragma unroll
            for (int j = 0; j < 16; ++j) {
              const int n = n0 + tile_column(j);
              store_pair(y, n, n_end, a.paired, acc[b][j][2 * half] * column_factor<F>(a.product.w, n),
                         acc[b][j][2 * half + 1] * column_factor<F>(a.product.w, n + 1));
            }
            return;
          }
          // x_s += inj_s · v: several columns' x are fetched before any is stored.
          const float* inj = a.injection.inj + t * a.injection.stride;
          for (int s = 0; s < a.injection.streams; ++s) {
            const float share = inj[s];
            float* x = y + int64_t{s} * n_end;
#pragma unroll
            for (int j0 = 0; j0 < 16; j0 += 8) {
              float2 old[8];
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const int n = n0 + tile_column(j0 + j);
                if (a.paired && n + 1 < n_end) {
                  old[j] = *reinterpret_cast<const float2*>(x + n);
                } else {
                  old[j] = make_float2(n < n_end ? x[n] : 0.0f, n + 1 < n_end ? x[n + 1] : 0.0f);
                }
              }
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const int n = n0 + tile_column(j0 + j);
                const float v0 = acc[b][j0 + j][2 * half] * column_factor<F>(a.product.w, n);
                const float v1 = acc[b][j0 + j][2 * half + 1] * column_factor<F>(a.product.w, n + 1);
                store_pair(x, n, n_end, a.paired, fmaf(share, v0, old[j].x), fmaf(share, v1, old[j].y));
              }
            }
          }
        });
      });
}

// One block a row: f32 to BF16, the tail of the last step zeroed.
__global__ void round_rows_kernel(uint16_t* a, int64_t stride, RowsF32 x, int padded, bool split) {
  pdl_launch();
  pdl_wait();
  const float* row = x.row(static_cast<int>(blockIdx.x));
  uint32_t* to = reinterpret_cast<uint32_t*>(a + blockIdx.x * stride);
  for (int i = threadIdx.x; i < padded / 2; i += blockDim.x) {
    const float v0 = 2 * i < x.k ? row[2 * i] : 0.0f, v1 = 2 * i + 1 < x.k ? row[2 * i + 1] : 0.0f;
    const uint32_t w = pack_bf16(v0, v1);
    to[i] = w;
    if (split) to[padded / 2 + i] = pack_bf16(v0 - bf16_low(w), v1 - bf16_high(w));
  }
}

}  // namespace

PrefillRows prefill_rows(Stream& s, const RowsF32& x, bool split) {
  const int padded = steps_of(x.k) * kStep;
  const Tensor t = s.scratch(DType::BF16, {x.n_rows, split ? 2 * padded : padded});
  launch(s, round_rows_kernel, dim3(static_cast<unsigned>(x.n_rows)), 256, 0, 1, t.as<uint16_t>(),
         t.row_stride, x, padded, split);
  return {t.as<uint16_t>(), t.row_stride, x.n_rows, static_cast<int32_t>(t.cols())};
}

void linear_prefill(Stream& s, const ProductView& product, const PrefillRows& x, Epilogue epilogue,
                    const Injection& injection) {
  const bool paired = product.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(product.y) % 8 == 0 &&
                      (epilogue == Epilogue::Store || product.w.n % 2 == 0);
  const PrefillArgs args{product, x, epilogue, injection, paired};
  with_format_host(product.w.kind, [&](auto format) {
    using F = decltype(format);
    const auto tiles = [&]<int kRows>(void (*kernel)(PrefillArgs)) {
      launch(s, kernel, dim3(blocks(x.n_rows, kRows), blocks(product.w.n, kTileCols)), kTileThreads,
             tile_shared(s, kRows), 1, args);
    };
    if (takes_large_tiles(s, x.n_rows, product.w.n)) {
      tiles.template operator()<kHopperTile>(linear_prefill_kernel<F, kHopperTile>);
    } else {
      tiles.template operator()<kSmallTile>(linear_prefill_kernel<F, kSmallTile>);
    }
  });
}

}  // namespace quern::cuda

// linear for prompt rows: 128 × 128 tiles, K in ascending order.
#include "ops/cuda/tile_product.cuh"

namespace quern::cuda {
namespace {

constexpr int kRows = 128;

struct PrefillArgs {
  ProductView product;
  PrefillRows x;
  Epilogue epilogue = Epilogue::Store;
  Injection injection;
};

template <typename F>
__global__ __launch_bounds__(kTileThreads,
                             2) void linear_prefill_kernel(const __grid_constant__ PrefillArgs a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  pdl_launch();
  pdl_wait();
  const int m0 = static_cast<int>(blockIdx.x) * kRows, n0 = static_cast<int>(blockIdx.y) * kTileCols;
  float acc[kTileN<kRows>][4] = {};
  tile_product<F, kRows>(
      acc, shared, a.x.k, a.product.w.k,
      [&](int r) { return m0 + r < a.x.n_rows ? a.x.a + (m0 + r) * a.x.stride : nullptr; },
      [&](int r, int& row) {
        row = n0 + r;
        return a.product.w;
      });
  for_tile<kRows>(acc, [&](int r, int c, float v0, float v1) {
    const int64_t t = m0 + r;
    if (t >= a.x.n_rows) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = n0 + c + i;
      if (n >= a.product.w.n) continue;
      const float v = (i ? v1 : v0) * (a.product.w.row_factor(n) * F::kRest);
      float* y = a.product.y + t * a.product.y_stride + n;
      if (a.epilogue == Epilogue::Store) {
        *y = v;
      } else {
        for (int s = 0; s < a.injection.streams; ++s) {
          float* x = y + int64_t{s} * a.product.w.n;
          *x = fmaf(a.injection.inj[t * a.injection.stride + s], v, *x);
        }
      }
    }
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
  with_format_host(product.w.kind, [&](auto format) {
    launch(s, linear_prefill_kernel<decltype(format)>,
           dim3(blocks(x.n_rows, kRows), blocks(product.w.n, kTileCols)), kTileThreads, kTileShared<kRows>, 1,
           PrefillArgs{product, x, epilogue, injection});
  });
}

}  // namespace quern::cuda

// linear on CUDA: decode rows and prefill rows go to their own kernels.
#include <array>

#include "ops/cuda/linear_launch.cuh"

namespace quern::cuda {
namespace {

bool on_bytes(const void* p, int64_t stride, int64_t unit) {
  return reinterpret_cast<uintptr_t>(p) % unit == 0 && stride % unit == 0;
}

WeightView view_of(const Tensor& data, const Tensor& scale, float global_scale) {
  WeightView v;
  const int64_t n = data.shape[data.rank - 2], k = data.cols();
  v.data = reinterpret_cast<const uint8_t*>(data.data);
  v.row_bytes = row_bytes(data.dtype, data.row_stride);
  v.expert_bytes = n * v.row_bytes;
  v.n = static_cast<int32_t>(n);
  v.k = static_cast<int32_t>(k);
  v.dtype = data.dtype;
  v.global_scale = global_scale;
  v.scale = scale.data;
  v.wide = k % 16 == 0 && on_bytes(v.data, v.row_bytes, data.dtype == DType::F4E2M1 ? 8 : 16);
  switch (data.dtype) {
    case DType::F32:
      v.kind = WeightKind::F32;
      break;
    case DType::F16:
      v.kind = WeightKind::F16;
      break;
    case DType::BF16:
      v.kind = WeightKind::BF16;
      break;
    case DType::F8E4M3: {
      QUERN_CHECK(scale && (scale.dtype == DType::F32 || scale.dtype == DType::BF16),
                  "an FP8 weight has F32 or BF16 scales");
      const int64_t rows = scale.shape[scale.rank - 2];
      v.kind = rows == n && (scale.cols() == 1) && n > 1 ? WeightKind::F8Row : WeightKind::F8Block;
      v.scale_stride = scale.row_stride;
      v.scale_is_bf16 = scale.dtype == DType::BF16;
      v.expert_scales = rows * scale.row_stride;
      break;
    }
    case DType::F4E2M1:
      QUERN_CHECK(scale && scale.dtype == DType::F8E4M3 && k % 16 == 0,
                  "an NVFP4 weight has an E4M3 scale per 16 columns");
      v.kind = WeightKind::F4;
      v.scale_stride = scale.row_stride;
      v.expert_scales = n * scale.row_stride;
      break;
    default:
      QUERN_CHECK(dtype_info(data.dtype).block > 1 && k % 16 == 0,
                  std::string("weights of type ") + std::string(name(data.dtype)) + " on CUDA");
      v.kind = WeightKind::Blocks;
      v.wide = true;
      break;
  }
  return v;
}

}  // namespace

WeightView weight_view(const Weight& w) { return view_of(w.data, w.scale, w.global_scale); }

WeightView weight_view(const ExpertWeights& w) {
  QUERN_CHECK(w.packed && w.packed.data.rank == 3, "experts on CUDA are one packed piece");
  WeightView v = view_of(w.packed.data, w.packed.scale, w.packed.global_scale);
  v.global_scales = w.global_scales.as<float>();
  return v;
}

namespace {

// Block (row): values of a plain type, one by one, to BF16 rows padded with zeros.
__global__ void widen_kernel(const __grid_constant__ WeightView w, uint16_t* to, int stride) {
  pdl_launch();
  pdl_wait();
  const int64_t row = blockIdx.x;
  const uint8_t* from = w.data + row * w.row_bytes;
  for (int k = threadIdx.x; k < stride; k += blockDim.x) {
    float v = 0;
    if (k < w.k) {
      switch (w.kind) {
        case WeightKind::F32:
          v = reinterpret_cast<const float*>(from)[k];
          break;
        case WeightKind::F16:
          v = quant::half_to_float(reinterpret_cast<const uint16_t*>(from)[k]);
          break;
        case WeightKind::BF16:
          v = quant::bf16_to_float(reinterpret_cast<const uint16_t*>(from)[k]);
          break;
        case WeightKind::F8Block:
          v = quant::e4m3_to_float(from[k]) * w.block_scale(static_cast<int>(row), k);
          break;
        case WeightKind::F8Row:
          v = quant::e4m3_to_float(from[k]) * w.row_factor(static_cast<int>(row));
          break;
        default:
          break;
      }
    }
    to[row * stride + k] = scalar::f32_to_bf16(v);
  }
}

}  // namespace

WeightView wide_view(Stream& s, const WeightView& w) {
  if (w.wide) return w;
  QUERN_CHECK(w.kind != WeightKind::F4 && w.kind != WeightKind::Blocks && !w.global_scales,
              "a 4-bit or GGUF weight on CUDA begins on 16 bytes");
  const int stride = steps_of(w.k) * kStep;
  const Tensor t = s.scratch(DType::BF16, {w.n, stride});
  launch(s, widen_kernel, dim3(static_cast<unsigned>(w.n)), 256, 0, 1, w, t.as<uint16_t>(), stride);
  WeightView v;
  v.data = reinterpret_cast<const uint8_t*>(t.data);
  v.row_bytes = int64_t{stride} * 2;
  v.n = w.n;
  v.k = stride;
  v.kind = WeightKind::BF16;
  v.dtype = DType::BF16;
  v.wide = true;
  return v;
}

namespace {

ProductView product_view(Stream& s, const Weight& w, Tensor y) {
  ProductView p;
  p.w = wide_view(s, weight_view(w));
  p.y = y.as<float>();
  p.y_stride = y.row_stride;
  return p;
}
ProductView from_row(ProductView p, int64_t row) {
  p.y += row * p.y_stride;
  return p;
}

}  // namespace

void linear(Stream& s, std::span<const Product> products, Tensor x, int64_t n_decode_rows) {
  const int64_t n_rows = x.shape[0];
  QUERN_CHECK(products.size() <= kMaxProducts, "too many products of one x");
  ScratchScope weight_scope(s);
  std::array<ProductView, kMaxProducts> views;
  for (size_t i = 0; i < products.size(); ++i) views[i] = product_view(s, *products[i].w, products[i].y);
  if (n_decode_rows > 0) {
    linear_decode(s, {views.data(), products.size()}, rows_f32(x.slice_rows(0, n_decode_rows)),
                  Epilogue::Store, {});
  }
  if (n_decode_rows < n_rows) {
    const RowsF32 rows = rows_f32(x.slice_rows(n_decode_rows, n_rows));
    ScratchScope scope(s);
    PrefillRows a[2];  // coarse, fine
    for (size_t i = 0; i < products.size(); ++i) {
      PrefillRows& of = a[products[i].fine ? 1 : 0];
      if (!of.a) of = prefill_rows(s, rows, products[i].fine);
      linear_prefill(s, from_row(views[i], n_decode_rows), of, Epilogue::Store, {});
    }
  }
}

void linear_inject(Stream& s, Tensor x, Tensor inj, Tensor a, const Weight& w, int64_t n_decode_rows) {
  const int64_t n_rows = a.shape[0];
  ScratchScope weight_scope(s);
  const ProductView view = product_view(s, w, x);
  Injection injection{inj.as<float>(), inj.row_stride, static_cast<int32_t>(inj.cols())};
  if (n_decode_rows > 0) {
    linear_decode(s, {&view, 1}, rows_f32(a.slice_rows(0, n_decode_rows)), Epilogue::Inject, injection);
  }
  if (n_decode_rows < n_rows) {
    injection.inj += n_decode_rows * injection.stride;
    ScratchScope scope(s);
    const PrefillRows rows = prefill_rows(s, rows_f32(a.slice_rows(n_decode_rows, n_rows)));
    linear_prefill(s, from_row(view, n_decode_rows), rows, Epilogue::Inject, injection);
  }
}

}  // namespace quern::cuda

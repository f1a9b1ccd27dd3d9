// One row of a weight as floats, for embeddings and the n-gram table. A row is decoded in groups of `kGroup` values,
// one thread a group; the bytes may lie in global or shared memory.
#pragma once

#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/quant_formats.h"
#include "ops/weight.h"

namespace quern::cuda {

// Scales of a Weight, as kernels read them.
struct RowScale {
  const void* data = nullptr;
  int64_t stride = 0;
  float global = 1;
  bool bf16 = false, per_row = false, whole = false, e4m3 = false;

  static RowScale of(const Weight& w) {
    RowScale s;
    s.global = w.global_scale;
    if (!w.scale) return s;
    s.data = w.scale.data;
    s.stride = w.scale.row_stride;
    s.bf16 = w.scale.dtype == DType::BF16;
    s.e4m3 = w.scale.dtype == DType::F8E4M3;
    s.whole = w.scale.elements() == 1;
    s.per_row = w.scale.shape[0] == w.n() && w.scale.cols() == 1;
    return s;
  }
  // Of column i of row r.
  __device__ __forceinline__ float at(int64_t r, int i) const {
    if (!data) return global;
    if (e4m3) return quant::e4m3_to_float(static_cast<const uint8_t*>(data)[r * stride + i / 16]) * global;
    const int64_t index = whole ? 0 : per_row ? r * stride : (r / 128) * stride + i / 128;
    return (bf16 ? quant::bf16_to_float(static_cast<const uint16_t*>(data)[index])
                 : static_cast<const float*>(data)[index]) *
           global;
  }
};

// A row format: `kGroup` values at a time, group g of the row whose bytes begin at `row`.
template <DType kType>
struct PlainRow {
  static constexpr int kGroup = 2;
  static __device__ __forceinline__ void decode(const uint8_t* row, int64_t r, int g, const RowScale& scale,
                                                float* out) {
    if constexpr (kType == DType::F4E2M1) {
      const uint32_t byte = row[g];
      const float f = scale.at(r, 2 * g);
      out[0] = quant::e2m1_to_float(byte & 15u) * f;
      out[1] = quant::e2m1_to_float(byte >> 4) * f;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = 2 * g + i;
        if constexpr (kType == DType::F32) out[i] = reinterpret_cast<const float*>(row)[c];
        if constexpr (kType == DType::F16)
          out[i] = quant::half_to_float(reinterpret_cast<const uint16_t*>(row)[c]);
        if constexpr (kType == DType::BF16)
          out[i] = quant::bf16_to_float(reinterpret_cast<const uint16_t*>(row)[c]);
        if constexpr (kType == DType::F8E4M3) out[i] = quant::e4m3_to_float(row[c]) * scale.at(r, c);
      }
    }
  }
};
template <typename Block>
struct BlockRow {
  static constexpr int kGroup = Block::kGroup;
  static __device__ __forceinline__ void decode(const uint8_t* row, int64_t, int g, const RowScale&,
                                                float* out) {
    constexpr int kGroups = Block::kValues / Block::kGroup;
    quant::decode_group(reinterpret_cast<const Block*>(row)[g / kGroups], g % kGroups, out);
  }
};

// fn.template operator()<Row>() with the row format of `dtype`; any other type is a bug of the caller.
template <typename F>
void with_row_format(DType dtype, F&& fn) {
  switch (dtype) {
    case DType::F32:
      fn.template operator()<PlainRow<DType::F32>>();
      return;
    case DType::F16:
      fn.template operator()<PlainRow<DType::F16>>();
      return;
    case DType::BF16:
      fn.template operator()<PlainRow<DType::BF16>>();
      return;
    case DType::F8E4M3:
      fn.template operator()<PlainRow<DType::F8E4M3>>();
      return;
    case DType::F4E2M1:
      fn.template operator()<PlainRow<DType::F4E2M1>>();
      return;
    default:
      break;
  }
  const bool block =
      quant::with_block_type(dtype, [&]<typename Block>() { fn.template operator()<BlockRow<Block>>(); });
  QUERN_CHECK(block, "no row format for " + std::string(name(dtype)));
}

}  // namespace quern::cuda

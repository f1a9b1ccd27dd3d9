#include <vector>

#include "ops/cpu/matmul.h"
#include "ops/quant_formats.h"

namespace quern::cpu {
namespace {

// The scale of columns [128j, 128j + 128) of row r: of the block, of the row, or of the whole matrix.
float fp8_scale(const Weight& w, int64_t r, int64_t column) {
  if (!w.scale) return w.global_scale;
  const bool per_row = w.scale.shape[0] == w.n() && w.scale.cols() == 1;
  const bool whole = w.scale.elements() == 1;
  const int64_t row = whole ? 0 : per_row ? r : r / 128, col = whole || per_row ? 0 : column / 128;
  const float scale = w.scale.dtype == DType::BF16 ? quant::bf16_to_float(w.scale.row<uint16_t>(row)[col])
                                                   : w.scale.row<float>(row)[col];
  return scale * w.global_scale;
}

}  // namespace

void weight_row(const Weight& w, int64_t r, float* out) {
  const int64_t k = w.k();
  const std::byte* row = w.data.data + r * row_bytes(w.data.dtype, w.data.row_stride);
  switch (w.data.dtype) {
    case DType::F8E4M3:
      for (int64_t begin = 0; begin < k; begin += 128) {
        const float scale = fp8_scale(w, r, begin);
        const int64_t end = begin + 128 < k ? begin + 128 : k;
        for (int64_t i = begin; i < end; ++i)
          out[i] = quant::e4m3_to_float(static_cast<uint8_t>(row[i])) * scale;
      }
      return;
    case DType::F4E2M1:
      for (int64_t i = 0; i < k; ++i) {
        const float scale = quant::e4m3_to_float(w.scale.row<uint8_t>(r)[i / 16]) * w.global_scale;
        const auto byte = static_cast<uint8_t>(row[i / 2]);
        out[i] = quant::e2m1_to_float(i % 2 ? byte >> 4 : byte & 15) * scale;
      }
      return;
    default:
      decode_row(w.data.dtype, row, k, out);
  }
}

float* thread_scratch(int slot, int64_t n) {
  thread_local std::vector<float> buffers[4];
  auto& b = buffers[slot];
  if (static_cast<int64_t>(b.size()) < n) b.resize(static_cast<size_t>(n));
  return b.data();
}

}  // namespace quern::cpu

#include "ops/quant_formats.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "base/check.h"

namespace quern {

void decode_row(DType dtype, const std::byte* row, int64_t k, float* out) {
  const auto each16 = [&](float (*decode)(uint16_t)) {
    for (int64_t i = 0; i < k; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = decode(bits);
    }
  };
  switch (dtype) {
    case DType::F32:
      std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float));
      return;
    case DType::F16:
      each16(quant::half_to_float);
      return;
    case DType::BF16:
      each16(quant::bf16_to_float);
      return;
    case DType::F8E4M3:
      for (int64_t i = 0; i < k; ++i) out[i] = quant::e4m3_to_float(static_cast<uint8_t>(row[i]));
      return;
    default:
      break;
  }
  const bool known = quant::with_block_type(dtype, [&]<typename Block>() {
    QUERN_CHECK(k % Block::kValues == 0, "decode_row: no whole number of blocks");
    for (int64_t i = 0; i < k / Block::kValues; ++i) {
      Block b;
      std::memcpy(&b, row + i * static_cast<int64_t>(sizeof b), sizeof b);
      quant::decode_block(b, out + i * Block::kValues);
    }
  });
  QUERN_CHECK(known, "decode_row: " + std::string(name(dtype)) + " has no rows of numbers");
}

}  // namespace quern

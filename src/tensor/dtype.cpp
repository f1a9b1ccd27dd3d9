#include "tensor/dtype.h"

#include "base/check.h"

namespace quern {

const DTypeInfo& dtype_info(DType dtype) {
  static constexpr DTypeInfo kInfo[] = {
      {"F32", 1, 4},      {"F16", 1, 2},        {"BF16", 1, 2},       {"I64", 1, 8},
      {"I32", 1, 4},      {"U8", 1, 1},         {"F8_E4M3", 1, 1},    {"F4_E2M1", 2, 1},
      {"Q8_0", 32, 34},   {"Q4_0", 32, 18},     {"Q4_1", 32, 20},     {"Q5_0", 32, 22},
      {"Q5_1", 32, 24},   {"Q2_K", 256, 84},    {"Q3_K", 256, 110},   {"Q4_K", 256, 144},
      {"Q5_K", 256, 176}, {"Q6_K", 256, 210},   {"IQ4_NL", 32, 18},   {"IQ4_XS", 256, 136},
      {"MXFP4", 32, 17},  {"NVFP4", 64, 36},    {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74},
      {"IQ2_S", 256, 82}, {"IQ3_XXS", 256, 98}, {"IQ3_S", 256, 110},
  };
  static_assert(sizeof kInfo / sizeof kInfo[0] == static_cast<size_t>(DType::kCount));
  return kInfo[static_cast<int>(dtype)];
}

int64_t row_bytes(DType dtype, int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  QUERN_CHECK(n % info.block == 0, "row of " + std::string(info.name) + " is not a whole number of blocks");
  return n / info.block * info.bytes;
}

}  // namespace quern

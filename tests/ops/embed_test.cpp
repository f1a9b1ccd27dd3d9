#include "ops/embed.h"

#include "ops/device_test.h"

namespace quern::test {
namespace {

class EmbedTest : public OpTest {};
ON_EVERY_DEVICE(EmbedTest);

TEST_P(EmbedTest, copies_a_row_once_for_each_stream) {
  Machine m(GetParam());
  Random random(1);
  for (const DType dtype :
       {DType::F32,   DType::BF16,    DType::F16,    DType::F8E4M3, DType::F4E2M1,  DType::Q8_0,
        DType::Q4_0,  DType::Q4_1,    DType::Q5_0,   DType::Q5_1,   DType::Q2_K,    DType::Q3_K,
        DType::Q4_K,  DType::Q5_K,    DType::Q6_K,   DType::IQ4_NL, DType::IQ4_XS,  DType::MXFP4,
        DType::NVFP4, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S,  DType::IQ3_XXS, DType::IQ3_S}) {
    const TestWeight table = random_weight(m, random, dtype, 19, 256);
    const std::vector<int32_t> ids{0, 18, 7, 7, 3};
    const TestBatch batch(m, {{.n_rows = 5, .position = 0, .ids = ids}});
    const Tensor x = m.zeros(DType::F32, {5, 4 * 256});
    embed(m.s, x, batch.view, table.w, 4);
    const std::vector<float> got = m.read(x);
    for (size_t t = 0; t < 5; ++t)
      for (size_t i = 0; i < 1024; ++i)
        ASSERT_EQ(got[t * 1024 + i],
                  static_cast<float>(table.values[static_cast<size_t>(ids[t]) * 256 + i % 256]))
            << name(dtype) << " row " << t << " column " << i;
  }
}

}  // namespace
}  // namespace quern::test

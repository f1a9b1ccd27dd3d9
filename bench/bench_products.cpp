// The CPU's products (ops/cpu/product.h) at every level of instructions, one thread, [64, 2560] weights that
// stay in the second-level cache: what the instructions can do, memory aside. Each figure is the quickest
// call of a tenth of a second, so other work on the machine disturbs it little.
//
//   bench_products [LEVEL…]

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/peaks.h"
#include "ops/cpu/product.h"
#include "ops/quant_formats.h"
#include "tensor/buffer.h"

namespace quern {
namespace {

constexpr int64_t kOutputs = 64, kColumns = 2560, kRows = 96;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double quickest(const std::function<void()>& fn) {
  double best = 1e9;
  for (const double end = now() + 0.1; now() < end;) {
    const double begin = now();
    fn();
    best = std::min(best, now() - begin);
  }
  return best;
}

// Random codes with scales of a sensible size; plain numbers with exponents near 1.
OwnedTensor random_weight(DType dtype, std::mt19937_64& random) {
  OwnedTensor w(Device{}, dtype, std::initializer_list<int64_t>{kOutputs, kColumns});
  auto* bytes = w.tensor.as<uint8_t>();
  for (int64_t i = 0; i < w.tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random());
  const bool blocks = quant::with_block_type(dtype, [&]<typename Block>() {
    for (int64_t at = 0; at < w.tensor.bytes(); at += static_cast<int64_t>(sizeof(Block))) {
      auto* b = reinterpret_cast<Block*>(bytes + at);
      if constexpr (requires { b->d; }) b->d = 0x2c00;  // 1/16
      if constexpr (requires { b->m; }) b->m = 0x2c00;
      if constexpr (requires { b->e; }) b->e = 120;
      if constexpr (std::is_same_v<Block, quant::BlockNVFP4>) std::fill_n(b->s, 4, uint8_t{0x30});
    }
  });
  const int64_t width = dtype == DType::F32 ? 4 : 2;
  if (!blocks && dtype != DType::F8E4M3)
    for (int64_t i = width - 1; i < w.tensor.bytes(); i += width) bytes[i] = 0x3c;
  if (dtype == DType::F8E4M3)
    for (int64_t i = 0; i < w.tensor.bytes(); ++i)  // zeros and subnormals are few among weights: none
      bytes[i] = static_cast<uint8_t>((bytes[i] & 0x87) | (1 + (bytes[i] >> 3) % 14) << 3);
  return w;
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  using namespace quern;
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  std::mt19937_64 random{1};
  ThreadPool pool(1);
  double peak = 0;
  for (int i = 0; i < 20; ++i) peak = std::max(peak, cpu::measure_fma(pool, 0.002));
  fmt::print("one thread multiplies and adds {:.0f} GFLOP/s in f32\n", peak / 1e9);

  std::vector<float> x(kRows * kColumns), y(kRows * kOutputs);
  for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500;
  std::vector<std::byte> rounded(static_cast<size_t>(kRows * cpu::int8_row_bytes(kColumns)));
  for (int64_t r = 0; r < kRows; ++r)
    cpu::product_levels().back().round_row(&x[static_cast<size_t>(r * kColumns)], kColumns,
                                           &rounded[static_cast<size_t>(r * cpu::int8_row_bytes(kColumns))]);
  for (const DType dtype :
       {DType::BF16, DType::F16, DType::F32, DType::F8E4M3, DType::Q8_0, DType::Q4_0, DType::Q4_1,
        DType::Q5_0, DType::Q5_1, DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K,
        DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4, DType::NVFP4}) {
    const OwnedTensor data = random_weight(dtype, random);
    Weight w;
    w.data = data.tensor;
    for (const cpu::ProductLevel& level : cpu::product_levels()) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), level.name) == wanted.end()) continue;
      const auto product = cpu::takes_int8(w) ? level.int8_product : level.f32_product;
      const auto seconds = [&](int64_t rows) {
        const cpu::ProductJob job{.w = &w,
                                  .x = x.data(),
                                  .x_stride = kColumns,
                                  .rounded = rounded.data(),
                                  .y = y.data(),
                                  .y_stride = kOutputs,
                                  .n_rows = rows};
        return quickest([&] { product(job, 0, kOutputs); });
      };
      const auto bytes = static_cast<double>(w.data.bytes());
      const double many = 2.0 * kOutputs * kColumns * kRows / seconds(kRows);
      fmt::print(
          "{:<8} {:<11} 1 row {:>6.2f} GB/s   8 rows {:>6.2f} GB/s   {} rows {:>6.1f} GFLOP/s = {:.2f} "
          "peaks\n",
          name(dtype), level.name, bytes / seconds(1) / 1e9, bytes / seconds(8) / 1e9, kRows, many / 1e9,
          many / peak);
    }
  }
}

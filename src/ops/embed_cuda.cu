// A group of the table row's values a thread, written to every stream; a row is as many blocks as its groups need.
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/weight_row.cuh"
#include "ops/embed.h"

namespace quern::cuda {
namespace {

constexpr int kThreads = 128;

template <typename Row>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(float* x, const int32_t* ids, const uint8_t* table, int64_t bytes_per_row, RowScale scale,
                 int width, int streams) {
  constexpr int kGroup = Row::kGroup;
  using Vector = std::conditional_t<kGroup % 4 == 0, float4, float2>;
  constexpr int kEach = sizeof(Vector) / sizeof(float);
  static_assert(kGroup % kEach == 0);
  pdl_launch();
  const int g = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const bool runs = g < width / kGroup;
  float v[kGroup];
  if (runs) {  // ids are there before the wait: copies write them, and the end of a step
    const int64_t id = ids[blockIdx.x];
    Row::decode(table + id * bytes_per_row, id, g, scale, v);
  }
  pdl_wait();
  if (!runs) return;
  float* out = x + static_cast<int64_t>(blockIdx.x) * streams * width + g * kGroup;
  for (int s = 0; s < streams; ++s, out += width) {
#pragma unroll
    for (int i = 0; i < kGroup / kEach; ++i) {
      if constexpr (kEach == 4) {
        reinterpret_cast<float4*>(out)[i] = {v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]};
      } else {
        reinterpret_cast<float2*>(out)[i] = {v[2 * i], v[2 * i + 1]};
      }
    }
  }
}

}  // namespace

void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams) {
  const int width = static_cast<int>(table.k());
  with_row_format(table.data.dtype, [&]<typename Row>() {
    QUERN_CHECK(width % Row::kGroup == 0, "embed: a row is a whole number of groups");
    launch(s, embed_kernel<Row>,
           dim3(static_cast<unsigned>(batch.n_rows), blocks(width / Row::kGroup, kThreads)), kThreads, 0, 1,
           x.as<float>(), batch.ids, reinterpret_cast<const uint8_t*>(table.data.data),
           row_bytes(table.data.dtype, table.data.row_stride), RowScale::of(table), width, streams);
  });
}

}  // namespace quern::cuda

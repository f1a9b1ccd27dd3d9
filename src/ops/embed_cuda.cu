// One block a row: each thread decodes groups of the table row and writes them to every stream.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/weight_row.cuh"
#include "ops/embed.h"

namespace quern::cuda {
namespace {

template <typename Row>
__global__ void embed_kernel(float* x, const int32_t* ids, const uint8_t* table, int64_t bytes_per_row,
                             RowScale scale, int width, int streams) {
  pdl_launch();
  pdl_wait();
  const int64_t id = ids[blockIdx.x];
  const uint8_t* row = table + id * bytes_per_row;
  float* out = x + static_cast<int64_t>(blockIdx.x) * streams * width;
  for (int g = threadIdx.x; g < width / Row::kGroup; g += blockDim.x) {
    float v[Row::kGroup];
    Row::decode(row, id, g, scale, v);
    for (int s = 0; s < streams; ++s)
      for (int i = 0; i < Row::kGroup; ++i) out[s * width + g * Row::kGroup + i] = v[i];
  }
}

}  // namespace

void embed(Stream& s, Tensor x, const BatchView& batch, const Weight& table, int streams) {
  const int width = static_cast<int>(table.k());
  with_row_format(table.data.dtype, [&]<typename Row>() {
    launch(s, embed_kernel<Row>, dim3(static_cast<unsigned>(batch.n_rows)), 256, 0, 1, x.as<float>(),
           batch.ids, reinterpret_cast<const uint8_t*>(table.data.data),
           row_bytes(table.data.dtype, table.data.row_stride), RowScale::of(table), width, streams);
  });
}

}  // namespace quern::cuda

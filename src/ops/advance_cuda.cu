#include "ops/advance.h"
#include "ops/advance_row.h"
#include "ops/cuda/launch.cuh"

namespace quern::cuda {
namespace {

__global__ void advance_kernel(const __grid_constant__ BatchView batch, SamplingRow* rows,
                               const int32_t* chosen) {
  pdl_launch();
  pdl_wait();
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < batch.n_segments) advance_row(batch, rows, chosen, i);
}

}  // namespace

void advance(Stream& s, const BatchView& batch, SamplingRow* rows, Tensor chosen) {
  launch(s, advance_kernel, dim3(blocks(batch.n_segments, 64)), 64, 0, 1, batch, rows,
         static_cast<const int32_t*>(chosen.as<int32_t>()));
}

}  // namespace quern::cuda

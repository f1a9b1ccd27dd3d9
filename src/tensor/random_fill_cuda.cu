#include "tensor/cuda_check.cuh"
#include "tensor/random_fill.h"
#include "tensor/random_value.h"

namespace quern::cuda {
namespace {

__global__ void random_fill_kernel(std::byte* data, int64_t n, Fill fill, float amplitude, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    put_random(data, i, fill, amplitude, seed);
  }
}

}  // namespace

void random_fill(Stream& s, Tensor t, Fill fill, float amplitude, uint64_t seed) {
  const int64_t n = fill == Fill::F32 ? t.bytes() / 4 : fill == Fill::BF16 ? t.bytes() / 2 : t.bytes();
  random_fill_kernel<<<2048, 256, 0, static_cast<cudaStream_t>(s.handle())>>>(t.data, n, fill, amplitude,
                                                                              seed);
  QUERN_CUDA_CHECK(cudaGetLastError());
}

DeviceMemory device_memory(Device device) {
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
  size_t free = 0, total = 0;
  QUERN_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

}  // namespace quern::cuda

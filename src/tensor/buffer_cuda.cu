#include "tensor/buffer.h"
#include "tensor/cuda_check.cuh"

namespace quern::cuda {

std::byte* allocate(Device device, int64_t bytes, BufferKind kind) {
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
  void* p = nullptr;
  const cudaError_t status =
      kind == BufferKind::Pinned ? cudaHostAlloc(&p, bytes, cudaHostAllocMapped) : cudaMalloc(&p, bytes);
  if (status != cudaSuccess) {
    cudaGetLastError();
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    throw Error("memory: cannot allocate " + std::to_string(bytes) +
                " bytes on cuda:" + std::to_string(device.index) + ", " + std::to_string(free_bytes) +
                " of " + std::to_string(total) + " are free");
  }
  // Streams do not wait for the default one, so the zeros must be there before anything else is written.
  QUERN_CUDA_CHECK(cudaMemset(p, 0, bytes));
  QUERN_CUDA_CHECK(cudaDeviceSynchronize());
  return static_cast<std::byte*>(p);
}

void release(Device device, std::byte* data, BufferKind kind) {
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
  QUERN_CUDA_CHECK(kind == BufferKind::Pinned ? cudaFreeHost(data) : cudaFree(data));
}

}  // namespace quern::cuda

#include "tensor/cuda_check.cuh"
#include "tensor/stream.h"

namespace quern::cuda {

void* create_stream(Device device) {
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
  cudaStream_t s = nullptr;
  QUERN_CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}
void destroy_stream(Device device, void* handle) {
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
  QUERN_CUDA_CHECK(cudaStreamDestroy(static_cast<cudaStream_t>(handle)));
}
void copy(void* handle, void* to, const void* from, int64_t bytes) {
  QUERN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(handle)));
}
void zero(void* handle, void* on_device, int64_t bytes) {
  QUERN_CUDA_CHECK(cudaMemsetAsync(on_device, 0, bytes, static_cast<cudaStream_t>(handle)));
}
void synchronize(void* handle) { QUERN_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(handle))); }

}  // namespace quern::cuda

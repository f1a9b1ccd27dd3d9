#include <string>

#include "tensor/cuda_check.cuh"
#include "tensor/stream.h"
#include "tensor/target_cuda.cuh"

namespace quern::cuda {
namespace {

// Kernels use BF16 products and cp.async, which begin with compute capability 8.0.
constexpr int kLeastMajor = 8;

void check_device(Device device) {
  const std::string where = "cuda:" + std::to_string(device.index);
  int n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  if (status != cudaSuccess) throw Error(where + ": no CUDA device: " + cudaGetErrorString(status));
  if (device.index >= n)
    throw Error(where + ": there is no such device, this machine has " + std::to_string(n));
  cudaDeviceProp properties{};
  QUERN_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  const std::string found = where + " (" + properties.name + ", compute capability " +
                            std::to_string(properties.major) + "." + std::to_string(properties.minor) + ")";
  if (properties.major < kLeastMajor)
    throw Error(found + ": expected compute capability " + std::to_string(kLeastMajor) + ".0 or later");
  if (compiled_for(device) == 0)
    throw Error(found + ": this build has kernels for " QUERN_CUDA_ARCHITECTURES " only");
  QUERN_CUDA_CHECK(cudaSetDevice(device.index));
}

}  // namespace

void* create_stream(Device device) {
  check_device(device);
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

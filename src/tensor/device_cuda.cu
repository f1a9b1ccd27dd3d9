#include <atomic>

#include "tensor/cuda_check.cuh"
#include "tensor/target_cuda.cuh"

namespace quern::cuda {
namespace {

__global__ void probe_kernel() {}

constexpr int kMaxDevices = 64;

}  // namespace

int compiled_for(Device device) {
  static std::atomic<int> versions[kMaxDevices];
  QUERN_CHECK(device.index < kMaxDevices, "a device beyond the 64th");
  std::atomic<int>& version = versions[device.index];
  if (version == 0) {
    QUERN_CUDA_CHECK(cudaSetDevice(device.index));
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    version = attributes.ptxVersion;
  }
  return version;
}

std::string device_name(Device device) {
  cudaDeviceProp p;
  QUERN_CUDA_CHECK(cudaGetDeviceProperties(&p, device.index));
  const int kernels = compiled_for(device), own = 10 * p.major + p.minor;
  return "cuda sm_" + std::to_string(own) + " " + p.name +
         (kernels == own ? "" : ", kernels for sm_" + std::to_string(kernels)) + ", toolkit " +
         std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace quern::cuda

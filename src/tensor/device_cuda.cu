#include "tensor/cuda_check.cuh"
#include "tensor/device.h"

namespace quern::cuda {

std::string device_name(Device device) {
  cudaDeviceProp p;
  QUERN_CUDA_CHECK(cudaGetDeviceProperties(&p, device.index));
  return "cuda sm_" + std::to_string(p.major) + std::to_string(p.minor) + " " + p.name + ", toolkit " +
         std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace quern::cuda

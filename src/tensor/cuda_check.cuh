// Every CUDA call goes through cuda_check: a device fault ends the program with the call's text.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/check.h"

namespace quern::cuda {

inline void cuda_check(cudaError_t status, const char* file, int line, const char* call) {
  if (status != cudaSuccess) check_failed(file, line, call, cudaGetErrorString(status));
}

}  // namespace quern::cuda

#define QUERN_CUDA_CHECK(call) ::quern::cuda::cuda_check((call), __FILE__, __LINE__, #call)

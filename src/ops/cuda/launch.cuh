// Launching kernels on a Stream: every kernel is a programmatic dependent of the one before it.
//
// The rule that makes that safe: a kernel calls pdl_wait() on every path before it reads or writes anything an
// earlier kernel may write or read (weights excepted) and before it ends. Since each kernel ends only after
// the one before it has ended, the wait orders it after everything enqueued earlier. pdl_launch() at the start
// lets the next kernel's blocks take their places and fetch weights while this one drains.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "tensor/cuda_check.cuh"
#include "tensor/stream.h"
#include "tensor/target_cuda.cuh"

namespace quern::cuda {

// Kernels exist in two forms. Hopper's (compiled for 90a) use clusters, dependent launches, bulk copies, wgmma and most of its
// shared memory. Those for every other architecture are the same code without these, in the shared memory that the least of
// them has for a block: what runs on one of them runs on all.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define QUERN_SM90 1
#endif
inline constexpr int kHopperShared = 227 * 1024, kLeastShared = 99 * 1024;

__device__ __forceinline__ void pdl_wait() {
#ifdef QUERN_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_launch() {
#ifdef QUERN_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Keeps the making of a value on this side of the wait: the compiler moves it to its first use.
template <typename T>
__device__ __forceinline__ void made_here(T& v) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(v));
  } else if constexpr (std::is_same_v<T, float>) {
    asm volatile("" : "+f"(v));
  } else {
    asm volatile("" : "+r"(v));
  }
}

inline cudaStream_t handle(Stream& s) { return static_cast<cudaStream_t>(s.handle()); }

// Whether the stream runs Hopper's form.
inline bool is_hopper(Stream& s) { return compiled_for(s.device()) == 90; }
// Bytes of shared memory of a block, a kernel's own arrays included.
inline int shared_limit(Stream& s) { return is_hopper(s) ? kHopperShared : kLeastShared; }

// cluster: blocks of one cluster along x, 1 for none. An empty grid launches nothing.
template <typename... P, typename... A>
void launch(Stream& s, void (*kernel)(P...), dim3 grid, int threads, size_t shared, int cluster,
            A&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // A multiprocessor divides its memory between L1 and shared anew only when it is empty: of the kernels of a graph, which shall
  // start beside each other, none may ask for a division of its own. Prompt kernels run alone and keep theirs.
  cudaStreamCaptureStatus capture{};
  QUERN_CUDA_CHECK(cudaStreamIsCapturing(handle(s), &capture));
  if (capture == cudaStreamCaptureStatusActive) {
    QUERN_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared));
  }
  if (shared > 16 * 1024) {  // with the kernel's own arrays it may pass the default limit
    QUERN_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
  }
  if (!is_hopper(s)) {
    cudaFuncAttributes own{};
    QUERN_CUDA_CHECK(cudaFuncGetAttributes(&own, reinterpret_cast<const void*>(kernel)));
    QUERN_CHECK(own.sharedSizeBytes + shared <= kLeastShared && cluster == 1,
                "a kernel's block takes more than every device has");
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = handle(s);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  config.numAttrs = is_hopper(s) ? 1 : 0;
  if (cluster > 1) {
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.numAttrs = 2;
  }
  config.attrs = attributes;
  QUERN_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, P(args)...));
}

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }
inline unsigned blocks(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace quern::cuda

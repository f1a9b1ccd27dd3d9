// Barriers in shared memory between warps that fill stages and warps that use them (Hopper and later).
#pragma once

#include "ops/cuda/async.cuh"

namespace quern::cuda {

// `count` arrivals complete a phase; phases alternate in parity, beginning with 0. One thread initialises, then the block
// synchronises.
__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// One arrival for the whole warp, behind what all its lanes did.
__device__ __forceinline__ void barrier_arrive_warp(uint64_t* b) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(b);
}
// Until the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(uint64_t* b, int parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
  }
}

}  // namespace quern::cuda

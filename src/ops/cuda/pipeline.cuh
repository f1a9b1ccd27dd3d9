// Barriers in shared memory between warps, or the bulk copy engine, that fill stages and warps that use them (Hopper and
// later).
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

// One arrival, and so many bytes that copies will add to the phase.
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
// By the bulk engine: addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, int bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
}
// Barriers of one arrival each; the whole block calls it.
__device__ __forceinline__ void barriers_for_copies(uint64_t* barriers, int n) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; ++i) barrier_init(barriers + i, 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
}

}  // namespace quern::cuda

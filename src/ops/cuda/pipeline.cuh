// Barriers in shared memory between warps, or the bulk copy engine, that fill stages and warps that use them.
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
// Whether the phase of that parity is complete; it may wait for that for a while.
__device__ __forceinline__ bool barrier_done(uint32_t b, uint32_t parity) {
  uint32_t done;
#ifdef QUERN_SM90
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, "
      "p;\n\t}"
      : "=r"(done)
      : "r"(b), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(b), "r"(parity)
      : "memory");
#endif
  return done != 0;
}
// Until the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(uint64_t* b, int parity) {
  while (!barrier_done(shared_address(b), parity)) {
  }
}

// Barriers that this thread has made are there for the cluster's other blocks, behind its next cluster_arrive.
__device__ __forceinline__ void fence_barrier_init() {
#ifdef QUERN_SM90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// barrier_wait where other blocks of the cluster bring the phase about.
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, int parity) {
#ifdef QUERN_SM90
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], "
        "%2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
  }
#endif
}

// Ordinary writes to shared memory become visible to the bulk engine and to wgmma.
__device__ __forceinline__ void fence_async_proxy() {
#ifdef QUERN_SM90
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A copy into a stage: by the first kCopyLanes lanes of a warp, which together are its barrier's arrivals. They call
// barrier_expect, then bulk_copy for each piece, then barrier_copied. One lane starts the bulk engine; without one, every
// lane copies its share.
#ifdef QUERN_SM90
inline constexpr int kCopyLanes = 1;
#else
inline constexpr int kCopyLanes = 32;
#endif
// `bytes`: those of all pieces.
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
#ifdef QUERN_SM90
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
#endif
}
// Addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, int bytes, uint64_t* b) {
#ifdef QUERN_SM90
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
#else
  for (int at = static_cast<int>(threadIdx.x) % 32 * 16; at < bytes; at += 32 * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at),
                 "l"(static_cast<const uint8_t*>(from) + at)
                 : "memory");
  }
#endif
}
__device__ __forceinline__ void barrier_copied(uint64_t* b) {
#ifndef QUERN_SM90
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}
// Barriers of stages; the whole block calls it.
__device__ __forceinline__ void barriers_for_copies(uint64_t* barriers, int n) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; ++i) barrier_init(barriers + i, kCopyLanes);
    fence_async_proxy();
  }
  __syncthreads();
}

}  // namespace quern::cuda

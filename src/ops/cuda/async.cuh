// Copies that run beside the program: cp.async into shared memory, and shared memory of a cluster's other
// blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace quern::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// 16 bytes; zeros where `valid` is false (then `from` is not read).
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// How what is read once a step leaves the L2: first, so that code and small weights stay there from layer to layer.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy = 0;
#ifdef QUERN_SM90
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// What this thread has seen or done is seen by who reads what it writes from here on, on the whole device.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- clusters (Hopper; elsewhere a cluster is one block) ----

__device__ __forceinline__ void cluster_arrive() {
#ifdef QUERN_SM90
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same where nothing that was written is to be seen behind it: does not wait until it has been.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#ifdef QUERN_SM90
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#ifdef QUERN_SM90
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ int cluster_rank() {
#ifdef QUERN_SM90
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return static_cast<int>(r);
#else
  return 0;
#endif
}
// The float at `p` (an address in this block's shared memory) as the block of that rank holds it.
__device__ __forceinline__ float cluster_load(const float* p, uint32_t rank) {
#ifdef QUERN_SM90
  uint32_t address;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
#else
  return *p;
#endif
}
// The same place in the block of that rank becomes v, and four bytes more have come to its `barrier`: also behind this
// block's end, but not before the other has made the barrier.
__device__ __forceinline__ void cluster_send(float* p, uint64_t* barrier, uint32_t rank, float v) {
#ifdef QUERN_SM90
  uint32_t to, at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(barrier)), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
               "f"(v), "r"(at)
               : "memory");
#endif
}

}  // namespace quern::cuda

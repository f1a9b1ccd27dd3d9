// Where ops enqueue work. On the CPU work runs at once on the pool; on CUDA it is queued on a cudaStream_t.
//
// The stream also owns the scratch memory of ops: a bump arena that `scratch` takes from and every op empties
// on return (ScratchScope). It is reserved once, before the first step, so ops allocate nothing in the token
// loop and a step can be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace quern {

class Stream {
 public:
  // A CPU stream on `pool`, which must outlive it.
  explicit Stream(ThreadPool& pool);
  // A stream on `device`; for Cuda, `pool` serves host-side helpers.
  Stream(Device device, ThreadPool& pool);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  ThreadPool& pool() const { return pool_; }
  void* handle() const { return handle_; }  // cudaStream_t, null on the CPU

  void reserve_scratch(int64_t bytes);  // before the first step; grows only
  // A packed scratch tensor, valid until the innermost ScratchScope ends. Running out is a failed CHECK on
  // CUDA; on the CPU the arena grows.
  Tensor scratch(DType dtype, std::initializer_list<int64_t> shape);

  // Enqueued on this stream, in order with the ops around them. `bytes` may be 0.
  void copy(void* to, const void* from, int64_t bytes);                // within the device
  void upload(void* to_device, const void* from_host, int64_t bytes);  // host memory may be reused on return
  void download(void* to_host, const void* from_device, int64_t bytes);  // complete after synchronize()
  void zero(void* on_device, int64_t bytes);
  void synchronize();

 private:
  friend class ScratchScope;
  struct Arena;
  Device device_;
  ThreadPool& pool_;
  void* handle_ = nullptr;
  std::unique_ptr<Arena> arena_;
};

// Gives back on destruction what was taken from the stream's scratch since construction.
class ScratchScope {
 public:
  explicit ScratchScope(Stream& s);
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  Stream& stream_;
  size_t block_;
  int64_t used_;
};

namespace cuda {
void* create_stream(Device device);
void destroy_stream(Device device, void* handle);
void copy(void* handle, void* to, const void* from, int64_t bytes);
void zero(void* handle, void* on_device, int64_t bytes);
void synchronize(void* handle);
}  // namespace cuda

}  // namespace quern

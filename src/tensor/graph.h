// A step recorded once and replayed: a CUDA graph. What varies between replays lies in device memory.
//
//   Graph g = Graph::capture(s, [&] { ...ops on s... });
//   g.launch(s);
//
// Ops are capture-safe by contract (no allocation, synchronisation or read-back); work that is not fails a CHECK.
#pragma once

#include <cstdint>
#include <functional>

#include "tensor/stream.h"

namespace quern {

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  // `s` is a CUDA stream; `enqueue` runs once, now, and its work is recorded instead of run.
  static Graph capture(Stream& s, const std::function<void()>& enqueue);
  void launch(Stream& s) const;

  explicit operator bool() const { return executable_ != nullptr; }
  int64_t n_kernels() const { return n_kernels_; }

 private:
  void* executable_ = nullptr;  // cudaGraphExec_t
  int64_t n_kernels_ = 0;
};

namespace cuda {
void begin_capture(void* stream);
void* end_capture(void* stream, int64_t& n_kernels);
void launch_graph(void* executable, void* stream);
void destroy_graph(void* executable);
}  // namespace cuda

}  // namespace quern

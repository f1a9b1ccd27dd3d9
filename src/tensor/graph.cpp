#include "tensor/graph.h"

#include <utility>

#include "base/check.h"

namespace quern {

Graph::~Graph() {
  if constexpr (kHasCuda) {
    if (executable_) cuda::destroy_graph(executable_);
  }
}
Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)), n_kernels_(other.n_kernels_) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(n_kernels_, other.n_kernels_);
  return *this;
}

Graph Graph::capture([[maybe_unused]] Stream& s, [[maybe_unused]] const std::function<void()>& enqueue) {
  QUERN_CHECK(s.handle() != nullptr, "only a CUDA stream can be captured");
  Graph g;
  if constexpr (kHasCuda) {
    cuda::begin_capture(s.handle());
    enqueue();
    g.executable_ = cuda::end_capture(s.handle(), g.n_kernels_);
  }
  return g;
}

void Graph::launch([[maybe_unused]] Stream& s) const {
  QUERN_CHECK(executable_ != nullptr, "launch of an empty graph");
  if constexpr (kHasCuda) cuda::launch_graph(executable_, s.handle());
}

}  // namespace quern

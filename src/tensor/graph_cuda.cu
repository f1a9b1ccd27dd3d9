#include <vector>

#include "tensor/cuda_check.cuh"
#include "tensor/graph.h"

namespace quern::cuda {

void begin_capture(void* stream) {
  QUERN_CUDA_CHECK(
      cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal));
}

void* end_capture(void* stream, int64_t& n_kernels) {
  cudaGraph_t graph = nullptr;
  QUERN_CUDA_CHECK(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph));
  size_t n = 0;
  QUERN_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &n));
  std::vector<cudaGraphNode_t> nodes(n);
  QUERN_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &n));
  n_kernels = 0;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    QUERN_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    n_kernels += type == cudaGraphNodeTypeKernel;
  }
  cudaGraphExec_t executable = nullptr;
  QUERN_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  QUERN_CUDA_CHECK(cudaGraphDestroy(graph));
  return executable;
}

void launch_graph(void* executable, void* stream) {
  QUERN_CUDA_CHECK(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), static_cast<cudaStream_t>(stream)));
}

void destroy_graph(void* executable) {
  QUERN_CUDA_CHECK(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable)));
}

}  // namespace quern::cuda

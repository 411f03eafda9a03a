#include "engine/backend/cuda/step_graphs.h"

#include "engine/backend/cuda/runtime.h"

namespace servelab::cuda {
namespace {

constexpr std::size_t kMostGraphs = 512;  // each takes some megabytes of a large model's device

}  // namespace

bool StepGraphs::seen(const Key& key) {
  if (graphs_.size() >= kMostGraphs && graphs_.count(key) == 0) clear();
  return !graphs_.emplace(key, nullptr).second;
}

bool StepGraphs::has(const Key& key) const {
  const auto found = graphs_.find(key);
  return found != graphs_.end() && found->second != nullptr;
}

void StepGraphs::record(const Key& key, cudaStream_t stream, const std::function<void()>& enqueue) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "making a graph of a step");
  graphs_[key] = executable;
}

void StepGraphs::launch(const Key& key, cudaStream_t stream) const {
  check(cudaGraphLaunch(graphs_.at(key), stream), "launching a step's graph");
}

void StepGraphs::clear() {
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

}  // namespace servelab::cuda

// Steps recorded as CUDA graphs, by everything that a launch depends on.
#ifndef SERVELAB_BACKEND_CUDA_STEP_GRAPHS_H_
#define SERVELAB_BACKEND_CUDA_STEP_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>

namespace servelab::cuda {

class StepGraphs {
 public:
  using Key = std::array<std::uint64_t, 12>;

  StepGraphs() = default;
  ~StepGraphs() { clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Whether this step has run before, so that it is worth recording: the first run also lets
  // libraries choose their algorithms, which they may not while a stream is recorded.
  bool seen(const Key& key);
  bool has(const Key& key) const;
  // Records what `enqueue` puts on `stream`, without running it.
  void record(const Key& key, cudaStream_t stream, const std::function<void()>& enqueue);
  void launch(const Key& key, cudaStream_t stream) const;
  void clear();

 private:
  std::map<Key, cudaGraphExec_t> graphs_;  // null: seen once
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_STEP_GRAPHS_H_

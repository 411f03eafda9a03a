// The CPU engine as a backend: RealBackend over CpuExecutors.
#ifndef SERVELAB_BACKEND_CPU_CPU_BACKEND_H_
#define SERVELAB_BACKEND_CPU_CPU_BACKEND_H_

#include <memory>
#include <vector>

#include "engine/backend/cpu/executor.h"
#include "engine/backend/device/real_backend.h"

namespace servelab {

struct CpuBackendOptions : RealBackendOptions {
  int threads = 1;         // of each replica
  std::vector<int> cores;  // replica r takes `threads` of them from r * threads on; empty: no pins
  kernels::Isa isa = kernels::Isa::kReference;
  kernels::GemmLibrary gemm = kernels::GemmLibrary::kNative;
  kernels::DType type = kernels::DType::kBf16;
};

// As make_real_backend().
std::unique_ptr<RealBackend> make_cpu_backend(RealTimeline* timeline, const CostModel* cost,
                                              const ModelConfig& model, const ModelWeights& weights,
                                              const Workload& workload, AdapterSource* adapters,
                                              PromptSource prompts,
                                              const CpuBackendOptions& options);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_CPU_CPU_BACKEND_H_

#include "engine/backend/cpu/cpu_backend.h"

#include <utility>

namespace servelab {
namespace {

CpuExecutorOptions executor_options(const CpuBackendOptions& options, ReplicaId replica,
                                    const ReplicaLayout& layout) {
  CpuExecutorOptions executor;
  executor.threads = options.threads;
  for (int i = 0; i < options.threads && !options.cores.empty(); ++i) {
    const std::size_t core =
        index(replica) * static_cast<std::size_t>(options.threads) + static_cast<std::size_t>(i);
    executor.cores.push_back(options.cores[core % options.cores.size()]);
  }
  executor.isa = options.isa;
  executor.gemm = options.gemm;
  executor.type = options.type;
  executor.kv_blocks = layout.kv_blocks;
  executor.block_tokens = layout.block_tokens;
  executor.max_batch = layout.max_batch;
  executor.max_batch_tokens = layout.max_batch_tokens;
  return executor;
}

}  // namespace

std::unique_ptr<RealBackend> make_cpu_backend(RealTimeline* timeline, const CostModel* cost,
                                              const ModelConfig& model, const ModelWeights& weights,
                                              const Workload& workload, AdapterSource* adapters,
                                              PromptSource prompts,
                                              const CpuBackendOptions& options) {
  const auto make = [&model, &weights, options](ReplicaId replica, const ReplicaLayout& layout) {
    return std::make_unique<CpuExecutor>(model, weights,
                                         executor_options(options, replica, layout));
  };
  return make_real_backend(timeline, cost, workload, adapters, std::move(prompts), make, options);
}

}  // namespace servelab

#include "engine/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <utility>

#include "kernels/panels.h"

namespace servelab {
namespace {

// What adapters take on the device once all that fit are there, and one more that still leaves.
std::size_t adapter_bytes(const CpuBackendOptions& options, const Workload& workload,
                          const ReplicaLayout& layout) {
  if (layout.model_slots > 0) return 0;  // they are models, with matrices of their own
  Bytes largest = 0;
  Bytes all = 0;
  for (const Adapter& adapter : workload.adapters) {
    const int width = layout.padded_adapters ? options.widest_rank : adapter.rank;
    const int packed = kernels::panels_of(width) * kernels::kPanelColumns;
    const Bytes bytes = adapter.bytes * packed / std::max(1, adapter.rank);
    largest = std::max(largest, bytes);
    all += bytes;
  }
  return static_cast<std::size_t>(layout.padded_adapters ? (layout.adapters + 1) * largest
                                                         : std::min(all, layout.pool_bytes));
}

CpuExecutorOptions executor_options(const CpuBackendOptions& options, ReplicaId replica,
                                    const Workload& workload, const ReplicaLayout& layout) {
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
  executor.adapter_bytes = adapter_bytes(options, workload, layout);
  return executor;
}

}  // namespace

std::unique_ptr<RealBackend> make_cpu_backend(RealTimeline* timeline, const CostModel* cost,
                                              const ModelConfig& model, const ModelWeights& weights,
                                              const Workload& workload, AdapterSource* adapters,
                                              PromptSource prompts,
                                              const CpuBackendOptions& options) {
  const auto make = [&model, &weights, &workload, options](ReplicaId replica,
                                                           const ReplicaLayout& layout) {
    return std::make_unique<CpuExecutor>(model, weights,
                                         executor_options(options, replica, workload, layout));
  };
  return make_real_backend(timeline, cost, workload, adapters, std::move(prompts), make, options);
}

}  // namespace servelab

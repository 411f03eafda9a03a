// Runs a point on the CPU engine: weights, adapters and threads as the point's settings ask.
#ifndef SERVELAB_RUN_CPU_RUN_H_
#define SERVELAB_RUN_CPU_RUN_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/run/point.h"

namespace servelab {

// The element type that the engine computes in: what `dtype` asks for or, with auto, bf16 for bf16
// and random weights and f32 for all others, which bf16 could not hold exactly.
kernels::DType element_type(const RuntimeSection& runtime, const ModelConfig& model);

// The model's weights: random, or those of its folder.
std::unique_ptr<ModelWeights> open_weights(const ModelConfig& model);

// Adapters of a workload, as the settings say: random ones or those of a registry; waiting in host
// memory or on disk.
std::unique_ptr<AdapterSource> make_adapter_source(const PointSettings& settings,
                                                   const Workload& workload);

// Layers named as in LoraSection::targets.
std::vector<LinearLayer> linear_layers(const std::vector<std::string>& targets);

// Everything that a real run consists of, besides the cluster.
struct CpuRun {
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<AdapterSource> adapters;
  std::unique_ptr<RealTimeline> timeline;
  std::unique_ptr<CpuBackend> backend;
};
CpuRun open_cpu_run(const PointSettings& settings, const Workload& workload, const CostModel* cost);

// Threads of one replica when `runtime.threads` is 0: the usable processors, shared out.
int threads_per_replica(const RuntimeSection& runtime, int replicas);

}  // namespace servelab

#endif  // SERVELAB_RUN_CPU_RUN_H_

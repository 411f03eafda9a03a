// Runs a point on a real engine: weights, adapters and threads as the point's settings ask.
#ifndef SERVELAB_RUN_REAL_RUN_H_
#define SERVELAB_RUN_REAL_RUN_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/real_backend.h"
#include "engine/run/point.h"

namespace servelab {

// The element type that the backend computes in: what `dtype` asks for or, with auto, bf16 for
// random weights, and else the type that they are stored in where it computes in that. SpecError
// for a type that the engine lacks.
kernels::DType element_type(const std::string& backend, const RuntimeSection& runtime,
                            const ModelConfig& model);

// The model's weights: random, or those of its folder.
std::unique_ptr<ModelWeights> open_weights(const ModelConfig& model);

// Adapters of a workload, as the settings say: random ones or those of a registry; waiting in host
// memory or on disk.
std::unique_ptr<AdapterSource> make_adapter_source(const PointSettings& settings,
                                                   const Workload& workload);

// Layers named as in LoraSection::targets.
std::vector<LinearLayer> linear_layers(const std::vector<std::string>& targets);

// Everything that a real run consists of, besides the cluster.
struct RealRun {
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<AdapterSource> adapters;
  std::unique_ptr<RealTimeline> timeline;
  std::unique_ptr<RealBackend> backend;
};
// Devices are this process's own or, with `group`, one of each of its processes.
RealRun open_real_run(const PointSettings& settings, const Workload& workload,
                      const CostModel* cost, ranks::RankGroup* group);

// What the device behind a point's backend is called, with the processes that it ran on where there
// were several; empty where the machine's context says it all.
std::string device_name(const PointSettings& settings, const ranks::RankGroup* group);

// What computes a point's linear layers; empty where its backend has but one way.
std::string kernels_name(const PointSettings& settings);

// Throws SpecError when a position's backend was not built in, or its device is not there.
void require_backends(const Spec& spec);

}  // namespace servelab

#endif  // SERVELAB_RUN_REAL_RUN_H_

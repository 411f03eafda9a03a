#include "engine/run/cpu_run.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/backend/cpu/buffer.h"
#include "engine/backend/cpu/thread_team.h"
#include "engine/core/check.h"
#include "engine/model/adapter_registry.h"
#include "engine/run/adapter_folder.h"

namespace servelab {
namespace {

// Random adapters, made before the run starts and kept in host memory.
class HostAdapters final : public AdapterSource {
 public:
  HostAdapters(const PointSettings& settings, const Workload& workload) {
    Bytes total = 0;
    for (const Adapter& adapter : workload.adapters) total += adapter.bytes;
    const auto available = static_cast<Bytes>(available_memory());
    if (total > available / 2) {
      throw SpecError("out of memory: the adapters take " + std::to_string(total / kMiB) +
                      " MiB of host memory, and " + std::to_string(available / kMiB) +
                      " MiB are available; use fewer, or runtime.adapter_store: disk");
    }
    for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
      const Adapter& adapter = workload.adapters[i];
      adapters_.push_back(
          random_adapter(settings.model, adapter.name, adapter.rank, settings.lora.targets, i));
    }
  }
  std::shared_ptr<const LoraWeights> load(AdapterId id) override { return adapters_[index(id)]; }

 private:
  std::vector<std::shared_ptr<const LoraWeights>> adapters_;
};

// Registered adapters. Every load from disk checks the digest.
class RegisteredAdapters final : public AdapterSource {
 public:
  RegisteredAdapters(const PointSettings& settings, const Workload& workload)
      : registry_(settings.runtime.registry), model_(settings.model) {
    for (const Adapter& adapter : workload.adapters) names_.push_back(adapter.name);
    if (settings.runtime.adapter_store != "host") return;
    for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
      host_.push_back(registry_.load(names_[i], model_));
    }
  }
  std::shared_ptr<const LoraWeights> load(AdapterId id) override {
    if (!host_.empty()) return host_[index(id)];
    const std::lock_guard lock(mutex_);
    return registry_.load(names_[index(id)], model_);
  }

 private:
  std::mutex mutex_;
  AdapterRegistry registry_;
  ModelConfig model_;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const LoraWeights>> host_;
};

}  // namespace

kernels::DType element_type(const RuntimeSection& runtime, const ModelConfig& model) {
  if (runtime.dtype == "f32") return kernels::DType::kF32;
  if (runtime.dtype == "bf16" || model.weights == "random") return kernels::DType::kBf16;
  const auto type = load_hf_weights(model.weights, model)->type();
  return type == kernels::DType::kBf16 ? kernels::DType::kBf16 : kernels::DType::kF32;
}

std::unique_ptr<ModelWeights> open_weights(const ModelConfig& model) {
  if (model.weights != "random") return load_hf_weights(model.weights, model);
  return random_weights(model, static_cast<std::uint64_t>(model.weights_seed));
}

std::vector<LinearLayer> linear_layers(const std::vector<std::string>& targets) {
  std::vector<LinearLayer> layers;
  for (int i = 0; i < kLinearLayers; ++i) {
    if (std::find(targets.begin(), targets.end(), kLinearLayerNames[static_cast<std::size_t>(i)]) !=
        targets.end()) {
      layers.push_back(static_cast<LinearLayer>(i));
    }
  }
  return layers;
}

std::unique_ptr<AdapterSource> make_adapter_source(const PointSettings& settings,
                                                   const Workload& workload) {
  if (!settings.runtime.registry.empty()) {
    return std::make_unique<RegisteredAdapters>(settings, workload);
  }
  if (settings.runtime.adapter_store == "disk") {
    return make_adapter_folder(settings.model, settings.lora.targets, workload);
  }
  return std::make_unique<HostAdapters>(settings, workload);
}

int threads_per_replica(const RuntimeSection& runtime, int replicas) {
  if (runtime.threads > 0) return runtime.threads;
  return std::max(1, static_cast<int>(usable_cores().size()) / replicas);
}

CpuRun open_cpu_run(const PointSettings& settings, const Workload& workload,
                    const CostModel* cost) {
  if (settings.cluster.tensor_parallel > 1) {
    throw SpecError("cluster.tensor_parallel: the CPU engine runs a replica on one device; use 1");
  }
  CpuRun run;
  run.weights = open_weights(settings.model);
  run.adapters = make_adapter_source(settings, workload);
  run.timeline = std::make_unique<RealTimeline>();
  CpuBackendOptions options;
  options.threads = threads_per_replica(settings.runtime, settings.cluster.replicas);
  const std::vector<int> cores = usable_cores();
  const auto wanted = static_cast<std::size_t>(options.threads * settings.cluster.replicas);
  if (settings.runtime.pin && wanted <= cores.size()) options.cores = cores;
  options.isa = kernels::best_isa();
  for (const auto library : {kernels::GemmLibrary::kNative, kernels::GemmLibrary::kEigen,
                             kernels::GemmLibrary::kOneDnn}) {
    if (settings.runtime.gemm == kernels::name(library)) options.gemm = library;
  }
  options.type = element_type(settings.runtime, settings.model);
  options.sampling.temperature = settings.runtime.temperature;
  options.sampling.top_p = settings.runtime.top_p;
  options.sampling.seed = static_cast<std::uint64_t>(settings.seed);
  if (settings.technique->capabilities().merges) {
    options.merge_targets = linear_layers(settings.lora.targets);
  }
  for (const Adapter& adapter : workload.adapters) {
    options.widest_rank = std::max(options.widest_rank, adapter.rank);
  }
  run.backend = make_cpu_backend(
      run.timeline.get(), cost, settings.model, *run.weights, workload, run.adapters.get(),
      random_prompts(static_cast<std::uint64_t>(settings.seed), settings.model.vocab), options);
  return run;
}

}  // namespace servelab

#include "engine/run/real_run.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/device/buffer.h"
#include "engine/backend/device/thread_team.h"
#include "engine/backend/ranks/rank_replica.h"
#include "engine/core/check.h"
#include "engine/model/adapter_registry.h"
#include "engine/model/model_digest.h"
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
  std::span<const std::shared_ptr<const LoraWeights>> kept() const override { return adapters_; }

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
  std::span<const std::shared_ptr<const LoraWeights>> kept() const override { return host_; }

 private:
  std::mutex mutex_;
  AdapterRegistry registry_;
  ModelConfig model_;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const LoraWeights>> host_;
};

}  // namespace

kernels::DType element_type(const std::string& backend, const RuntimeSection& runtime,
                            const ModelConfig& model) {
  using kernels::DType;
  const bool cuda = backend == "cuda";
  if (cuda && runtime.dtype == "f32") {
    throw SpecError("runtime.dtype: the CUDA engine computes in bf16 or f16, not in f32");
  }
  if (backend == "cpu" && runtime.dtype == "f16") {
    throw SpecError("runtime.dtype: the CPU engine computes in bf16 or f32, not in f16");
  }
  if (runtime.dtype == "f32") return DType::kF32;
  if (runtime.dtype == "f16") return DType::kF16;
  if (runtime.dtype == "bf16" || model.weights == "random") return DType::kBf16;
  const DType stored = load_hf_weights(model.weights, model)->type();
  if (cuda) return stored == DType::kF16 ? DType::kF16 : DType::kBf16;
  return stored == DType::kBf16 ? DType::kBf16 : DType::kF32;
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

namespace {

int devices_of(const PointSettings& settings) {
  return settings.cluster.replicas * settings.cluster.tensor_parallel;
}

}  // namespace

std::string device_name(const PointSettings& settings, const ranks::RankGroup* group) {
  const std::string& backend = settings.backend;
  if (!is_real(backend) || backend == "cpu") return "";
  const std::string name = find_accelerator(backend)->facts(0).name;
  if (group == nullptr || devices_of(settings) == 1) return name;
  return name + "; " + group->description();
}

void require_backends(const Spec& spec) {
  for (const SweepPosition& position : spec.positions) {
    const ConfigNode* const node = position.settings.find("backend");
    if (node == nullptr || !is_real(node->scalar) || node->scalar == "cpu") continue;
    find_accelerator(node->scalar)->devices();
    return;
  }
}

std::string backend_names() {
  std::string text = "twin, null, cpu";
  for (const std::string& name : Registry<Accelerator>::instance().names()) text += ", " + name;
  return text;
}

int threads_per_replica(const RuntimeSection& runtime, int replicas) {
  if (runtime.threads > 0) return runtime.threads;
  return std::max(1, static_cast<int>(usable_cores().size()) / replicas);
}

namespace {

kernels::GemmLibrary gemm_library(const RuntimeSection& runtime) {
  for (const auto library : {kernels::GemmLibrary::kNative, kernels::GemmLibrary::kEigen,
                             kernels::GemmLibrary::kOneDnn}) {
    if (runtime.gemm == kernels::name(library)) return library;
  }
  return kernels::GemmLibrary::kNative;
}

// What every real engine is asked alike.
RealBackendOptions common_options(const PointSettings& settings, const Workload& workload) {
  RealBackendOptions options;
  options.measure_parts = settings.runtime.measure_parts;
  options.sampling.temperature = settings.runtime.temperature;
  options.sampling.top_p = settings.runtime.top_p;
  options.sampling.seed = static_cast<std::uint64_t>(settings.seed);
  if (settings.technique->capabilities().merges) {
    options.merge_targets = linear_layers(settings.lora.targets);
  }
  for (const Adapter& adapter : workload.adapters) {
    options.widest_rank = std::max(options.widest_rank, adapter.rank);
  }
  return options;
}

std::unique_ptr<RealBackend> open_cpu(const PointSettings& settings, const Workload& workload,
                                      const CostModel* cost, const RealRun& run,
                                      PromptSource prompts) {
  CpuBackendOptions options;
  static_cast<RealBackendOptions&>(options) = common_options(settings, workload);
  options.threads = threads_per_replica(settings.runtime, settings.cluster.replicas);
  const std::vector<int> cores = usable_cores();
  const auto wanted = static_cast<std::size_t>(options.threads * settings.cluster.replicas);
  if (settings.runtime.pin && wanted <= cores.size()) options.cores = cores;
  options.isa = kernels::best_isa();
  options.gemm = gemm_library(settings.runtime);
  options.type = element_type(settings.backend, settings.runtime, settings.model);
  return make_cpu_backend(run.timeline.get(), cost, settings.model, *run.weights, workload,
                          run.adapters.get(), std::move(prompts), options);
}

// Threads of each device for LoRA on the host, and their cores where each has one of its own:
// replica after replica, device after device. A core of each share stays with the thread that
// launches the device's work.
void plan_host_lora(const PointSettings& settings, ReplicaId replica, DevicePlan* plan) {
  const int devices = settings.cluster.replicas * plan->ranks;
  const std::vector<int> cores = usable_cores();
  plan->host_lora_threads = settings.runtime.host_lora_threads;
  if (plan->host_lora_threads == 0) {
    plan->host_lora_threads = std::max(1, static_cast<int>(cores.size()) / devices - 1);
  }
  const auto per_replica = static_cast<std::size_t>(plan->host_lora_threads * plan->ranks);
  const auto wanted = per_replica * static_cast<std::size_t>(settings.cluster.replicas);
  if (!settings.runtime.pin || wanted > cores.size()) return;
  const auto first = cores.begin() + static_cast<std::ptrdiff_t>(per_replica * index(replica));
  plan->host_lora_cores.assign(first, first + static_cast<std::ptrdiff_t>(per_replica));
}

// Of the adapters that can be there at once, at most: all of them, or what the pool holds.
Bytes held_adapter_bytes(const Workload& workload, const ReplicaLayout& layout) {
  Bytes total = 0;
  for (const Adapter& adapter : workload.adapters) total += adapter.bytes;
  return std::min(total, layout.pool_bytes);
}

std::unique_ptr<RealBackend> open_accelerator(const PointSettings& settings,
                                              const Workload& workload, const CostModel* cost,
                                              const RealRun& run, PromptSource prompts,
                                              ranks::RankGroup* group) {
  const std::shared_ptr<const Accelerator> accelerator = find_accelerator(settings.backend);
  const RealBackendOptions options = common_options(settings, workload);
  DevicePlan base;
  base.type = element_type(settings.backend, settings.runtime, settings.model);
  base.targets = linear_layers(settings.lora.targets);
  base.widest_rank = options.widest_rank;
  base.merges = !options.merge_targets.empty();
  base.host_lora = settings.technique->capabilities().host_lora;
  const int own = group == nullptr ? 0 : ranks::rank_device(*accelerator, 0, group->local_rank());
  if (devices_of(settings) == 1) group = nullptr;
  const auto make = [&settings, &workload, &weights = *run.weights, accelerator, base, group, own](
                        ReplicaId replica,
                        const ReplicaLayout& layout) -> std::unique_ptr<Executor> {
    DevicePlan plan = base;
    plan.ranks = settings.cluster.tensor_parallel;
    const int first = layout.devices.front();
    plan.device = own + (group == nullptr ? first : 0);
    plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                   layout.max_batch_tokens};
    plan.whole_models = layout.model_slots > 0;
    plan.adapters = plan.whole_models ? layout.model_slots : static_cast<int>(layout.adapters);
    plan.padded = layout.padded_adapters;
    plan.adapter_bytes = held_adapter_bytes(workload, layout);
    plan_host_lora(settings, replica, &plan);
    const bool shares = settings.engine.device_share != 1;
    const int devices_here = group == nullptr ? plan.ranks : 1;
    for (int rank = 0; shares && rank < devices_here; ++rank) {
      plan.partitions.push_back(accelerator->partition(plan.device + rank));
    }
    if (group == nullptr) return accelerator->make(settings.model, weights, plan);
    plan.host_lora_cores.clear();  // whose cores are whose is the launcher's affair
    return ranks::make_rank_replica(*accelerator, group, first, settings.model,
                                    model_digest(settings.model), weights, plan);
  };
  return make_real_backend(run.timeline.get(), cost, workload, run.adapters.get(),
                           std::move(prompts), make, options);
}

}  // namespace

RealRun open_real_run(const PointSettings& settings, const Workload& workload,
                      const CostModel* cost, ranks::RankGroup* group) {
  const int devices = devices_of(settings);
  if (settings.backend == "cpu") {
    if (settings.cluster.tensor_parallel > 1) {
      throw SpecError(
          "cluster.tensor_parallel: the CPU engine runs a replica on one device; use 1");
    }
  } else if (group != nullptr && devices > 1) {
    if (devices != group->ranks()) {
      throw SpecError("cluster: replicas and tensor_parallel ask for " + std::to_string(devices) +
                      " ranks, and " + std::to_string(group->ranks()) +
                      " processes were started; start as many, or run with --ranks threads");
    }
  } else if (const int there = find_accelerator(settings.backend)->devices(); there < devices) {
    throw SpecError("cluster: replicas and tensor_parallel ask for " + std::to_string(devices) +
                    " devices, one for each, and this machine has " + std::to_string(there));
  }
  RealRun run;
  run.weights = open_weights(settings.model);
  run.adapters = make_adapter_source(settings, workload);
  run.timeline = std::make_unique<RealTimeline>();
  PromptSource prompts =
      random_prompts(static_cast<std::uint64_t>(settings.seed), settings.model.vocab);
  run.backend = settings.backend == "cpu"
                    ? open_cpu(settings, workload, cost, run, std::move(prompts))
                    : open_accelerator(settings, workload, cost, run, std::move(prompts), group);
  return run;
}

std::unique_ptr<Executor> make_executor(const std::string& backend, const ModelConfig& model,
                                        const ModelWeights& weights, const DevicePlan& plan,
                                        int threads, bool pin) {
  if (backend != "cpu") return find_accelerator(backend)->make(model, weights, plan);
  CpuExecutorOptions options;
  static_cast<ExecutorLimits&>(options) = plan.limits;
  options.threads = threads;
  const std::vector<int> cores = usable_cores();
  if (pin && static_cast<std::size_t>(threads) <= cores.size()) options.cores = cores;
  options.isa = kernels::best_isa();
  options.type = plan.type;
  return std::make_unique<CpuExecutor>(model, weights, options);
}

}  // namespace servelab

#include "engine/run/real_run.h"

#include <algorithm>
#include <mutex>
#include <utility>

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
  ElementTypes types{{DType::kBf16, DType::kF16, DType::kF32}, DType::kF32};
  if (is_real(backend)) types = find_accelerator(backend)->element_types();
  const auto known = [&types](DType type) {
    return std::find(types.known.begin(), types.known.end(), type) != types.known.end();
  };
  for (const DType type : {DType::kBf16, DType::kF16, DType::kF32}) {
    if (runtime.dtype != kernels::name(type)) continue;
    if (known(type)) return type;
    std::string names;
    for (const DType other : types.known) {
      names += (names.empty() ? "" : " or ") + std::string(kernels::name(other));
    }
    throw SpecError("runtime.dtype: backend '" + backend + "' computes in " + names + ", not in " +
                    runtime.dtype);
  }
  if (model.weights == "random") return DType::kBf16;
  const DType stored = load_hf_weights(model.weights, model)->type();
  if (is_real(backend)) return known(stored) ? stored : types.otherwise;
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

// With the settings of the point.
std::shared_ptr<const Accelerator> engine_of(const PointSettings& settings) {
  return std::static_pointer_cast<const Accelerator>(
      settings.runtime.backends.at(settings.backend));
}

}  // namespace

std::string device_name(const PointSettings& settings, const ranks::RankGroup* group) {
  if (!is_real(settings.backend)) return "";
  const std::string name = find_accelerator(settings.backend)->device_name();
  if (name.empty() || group == nullptr || devices_of(settings) == 1) return name;
  return name + "; " + group->description();
}

std::string kernels_name(const PointSettings& settings) {
  if (!is_real(settings.backend)) return "";
  return engine_of(settings)->kernels_name(
      element_type(settings.backend, settings.runtime, settings.model));
}

void require_backends(const Spec& spec) {
  for (const SweepPosition& position : spec.positions) {
    const ConfigNode* const node = position.settings.find("backend");
    if (node != nullptr && is_real(node->scalar)) find_accelerator(node->scalar)->devices();
  }
}

namespace {

RealBackendOptions backend_options(const PointSettings& settings) {
  RealBackendOptions options;
  options.measure_parts = settings.runtime.measure_parts;
  options.sampling.temperature = settings.runtime.temperature;
  options.sampling.top_p = settings.runtime.top_p;
  options.sampling.seed = static_cast<std::uint64_t>(settings.seed);
  return options;
}

// Of the adapters that can be there at once, at most: all of them, or what the pool holds.
Bytes held_adapter_bytes(const Workload& workload, const ReplicaLayout& layout) {
  Bytes total = 0;
  for (const Adapter& adapter : workload.adapters) total += adapter.bytes;
  return std::min(total, layout.pool_bytes);
}

HostShares host_shares(const PointSettings& settings) {
  const HostLoraSection& asked = settings.runtime.host_lora;
  HostShares shares;
  shares.replicas = settings.cluster.replicas;
  shares.pin = settings.runtime.pin;
  shares.host_lora = settings.technique->capabilities().host_lora;
  shares.lora_by_engine = asked.by == "auto";
  if (!shares.lora_by_engine) shares.lora.by = named<HostLoraBy>(kHostLoraBy, asked.by);
  shares.lora.transport = named<HostLoraTransport>(kHostLoraTransports, asked.transport);
  shares.lora.workers = asked.workers;
  const int rows = asked.rows > 0 ? asked.rows : settings.hardware.host_lora.chunk_rows;
  if (rows > 0) shares.lora.rows_per_worker = rows;
  shares.lora.shares_cores = asked.shares_cores;
  return shares;
}

std::unique_ptr<RealBackend> open_engine(const PointSettings& settings, const Workload& workload,
                                         const CostModel* cost, const RealRun& run,
                                         PromptSource prompts, ranks::RankGroup* group) {
  const auto engine = engine_of(settings);
  const RealBackendOptions options = backend_options(settings);
  DevicePlan base;
  base.type = element_type(settings.backend, settings.runtime, settings.model);
  base.targets = linear_layers(settings.lora.targets);
  base.merges = settings.technique->capabilities().merges;
  base.host_lora = settings.technique->capabilities().host_lora;
  const int own = group == nullptr ? 0 : ranks::rank_device(*engine, 0, group->local_rank());
  if (devices_of(settings) == 1) group = nullptr;
  DevicePlan shared = base;  // what is refused there is a mistake of the spec, no misfit of a point
  shared.ranks = settings.cluster.tensor_parallel;
  engine->share_host(0, host_shares(settings), &shared);
  const auto make = [&settings, &workload, &weights = *run.weights, engine, base, group, own](
                        ReplicaId replica, const ReplicaLayout& layout) -> std::unique_ptr<Device> {
    DevicePlan plan = base;
    plan.ranks = static_cast<int>(layout.devices.size());
    const int first = layout.devices.front();
    plan.device = own + (group == nullptr ? first : 0);
    plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                   layout.max_batch_tokens};
    plan.folded = layout.model_slots > 0;
    plan.adapters = plan.folded ? layout.model_slots : static_cast<int>(layout.adapters);
    plan.padded = layout.padded_adapters;
    plan.widest_rank = layout.widest_rank;
    plan.adapter_bytes = held_adapter_bytes(workload, layout);
    engine->share_host(static_cast<int>(replica), host_shares(settings), &plan);
    const bool shares = settings.engine.device_share != 1;
    const int devices_here = group == nullptr ? plan.ranks : 1;
    for (int rank = 0; shares && rank < devices_here; ++rank) {
      plan.partitions.push_back(engine->partition(plan.device + rank));
    }
    if (group == nullptr) return engine->make(settings.model, weights, plan);
    plan.host_cores.clear();  // whose cores are whose is the launcher's affair
    plan.lora.cores.clear();
    return ranks::make_rank_replica(*engine, group, first, settings.model,
                                    model_digest(settings.model), weights, plan);
  };
  return make_real_backend(run.timeline.get(), cost, workload, run.adapters.get(),
                           std::move(prompts), make, options);
}

}  // namespace

RealRun open_real_run(const PointSettings& settings, const Workload& workload,
                      const CostModel* cost, ranks::RankGroup* group) {
  const int devices = devices_of(settings);
  if (group != nullptr && devices > 1) {
    if (devices != group->ranks()) {
      throw SpecError("cluster: replicas and tensor_parallel ask for " + std::to_string(devices) +
                      " ranks, and " + std::to_string(group->ranks()) +
                      " processes were started; start as many, or run with --ranks threads");
    }
  } else {
    find_accelerator(settings.backend)
        ->check_devices(settings.cluster.replicas, settings.cluster.tensor_parallel);
  }
  RealRun run;
  run.weights = open_weights(settings.model);
  run.adapters = make_adapter_source(settings, workload);
  run.timeline = std::make_unique<RealTimeline>();
  PromptSource prompts =
      random_prompts(static_cast<std::uint64_t>(settings.seed), settings.model.vocab);
  run.backend = open_engine(settings, workload, cost, run, std::move(prompts), group);
  return run;
}

}  // namespace servelab

// Running a resolved point: on the twin, the null backend or a real one, or as a replay.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "engine/backend/cost/caching_allocator.h"
#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/fitted_cost.h"
#include "engine/run/point.h"
#include "engine/run/real_run.h"
#include "engine/serve/backend.h"
#include "engine/workload/adapters_as_models.h"

namespace servelab {
namespace {

// A real engine merges into a copy of the matrices that hold the targets: q, k and v lie in one,
// gate and up in another.
Bytes merge_copy_bytes(const ModelConfig& model, const std::vector<std::string>& targets) {
  std::set<std::string> matrices;
  for (const std::string& target : targets) {
    if (target == "q" || target == "k" || target == "v") {
      matrices.insert({"q", "k", "v"});
    } else if (target == "gate" || target == "up") {
      matrices.insert({"gate", "up"});
    } else {
      matrices.insert(target);
    }
  }
  Bytes bytes = 0;
  for (const std::string& matrix : matrices) {
    const LinearShape shape = linear_shape(model, matrix);
    bytes += Bytes{shape.out} * shape.in * model.bytes_per_weight * model.layers;
  }
  return bytes;
}

// What the allocator reserves for weights and slots beyond their bytes, and what the engine's
// profiling run finds taken by so many slots.
Bytes bytes_beside_slots(const PointSettings& settings, const ModelMemory& memory, int devices,
                         const std::vector<std::string>& targets, int slots, int rank) {
  const EngineSettings& engine = settings.engine;
  Bytes bytes = 0;
  if (engine.allocator != kAllocators.front()) {
    const int reserved = memory.slot ? slots : 0;
    bytes = reserved_in_segments(device_tensors(settings.model, devices, reserved, rank, targets,
                                                engine.slot_vocabulary)) -
            memory.weights - (reserved > 0 ? reserved * memory.slot(rank) : 0);
  }
  if (!engine.profiled_slots.empty()) {
    bytes += static_cast<Bytes>(interpolate(engine.profiled_slots, engine.profiled_bytes, slots));
  }
  return bytes;
}

// Its memory on as many devices as the spec says, and on the others that a deployment may choose.
ServedModel served_model(const PointSettings& settings) {
  ServedModel served;
  served.name = settings.model.name;
  served.max_context_tokens = settings.max_model_len();
  served.min_kv_tokens = settings.engine.max_model_len;
  const int all = settings.cluster.replicas * settings.cluster.tensor_parallel;
  std::set<int> counts = {settings.cluster.tensor_parallel};
  for (int devices = 1; devices <= all; devices *= 2) {
    if (settings.model.heads % devices == 0) counts.insert(devices);
  }
  for (const int devices : counts) {
    const MemoryNeeds needs =
        memory_needs(settings.model, devices, settings.engine.limits.max_batch_tokens,
                     settings.engine.limits.max_batch);
    ModelMemory& memory = served.memory[devices];
    memory = {needs.weights, needs.activations, needs.kv_per_token};
    memory.activations +=
        static_cast<Bytes>(settings.engine.bytes_per_logit * static_cast<double>(needs.logits) +
                           settings.engine.other_memory_bytes);
    const EngineSettings& engine = settings.engine;
    const std::vector<std::string>& targets =
        engine.slot_targets.empty() ? settings.lora.targets : engine.slot_targets;
    if (engine.slot_rank > 0) {
      memory.slot = [&settings, devices, targets](int rank) {
        return reserved_slot_bytes(settings.model, devices, rank, targets,
                                   settings.engine.slot_vocabulary);
      };
    }
    if (engine.allocator != kAllocators.front() || !engine.profiled_slots.empty()) {
      memory.beside_slots = [&settings, memory, devices, targets](int slots, int rank) {
        return bytes_beside_slots(settings, memory, devices, targets, slots, rank);
      };
    }
    if (is_real(settings.backend) && settings.technique->capabilities().merges) {
      memory.activations += merge_copy_bytes(settings.model, settings.lora.targets);
    }
  }
  return served;
}

}  // namespace

ClusterSettings point_cluster(const PointSettings& settings, const Workload& workload) {
  ClusterSettings cluster;
  cluster.replicas = settings.cluster.replicas;
  cluster.tensor_parallel = settings.cluster.tensor_parallel;
  cluster.engine = settings.engine;
  cluster.device_memory = static_cast<Bytes>(static_cast<double>(settings.hardware.memory_bytes) *
                                             settings.engine.memory_fraction);
  cluster.models = {served_model(settings)};
  if (settings.cluster.repository_copies > 0) {
    cluster.repositories =
        draw_repositories(workload.adapters.size(), settings.cluster.repository_copies,
                          settings.cluster.replicas, static_cast<std::uint64_t>(settings.seed));
  }
  cluster.reveal_output_length = settings.technique->capabilities().knows_output_length;
  if (settings.cluster.stop_at_s > 0) cluster.stop_at = from_seconds(settings.cluster.stop_at_s);
  cluster.max_unfinished = settings.cluster.max_unfinished;
  cluster.migration_delay = from_seconds(settings.cluster.migration_delay_s);
  cluster.step_by_step = settings.step_by_step;
  cluster.max_waiting = settings.cluster.max_waiting;
  cluster.when_full = named<WhenFull>(kWhenFull, settings.cluster.when_full);
  cluster.max_arrival_lag = from_seconds(settings.runtime.max_arrival_lag_s);
  return cluster;
}

namespace {

RecorderOptions recorder_options(const PointSettings& settings) {
  const RecordSection& record = settings.record;
  RecorderOptions options;
  options.bin = std::max<TimeNs>(1, from_seconds(record.series_bin_s));
  options.requests = record.requests;
  options.series = record.series;
  options.decision_text = record.decisions;
  options.token_times = record.token_times;
  options.steps = record.steps;
  options.measure_scheduling = options.keep_delivered = is_real(settings.backend);
  return options;
}

void run_cluster(const PointSettings& settings, const Workload& workload, const CostModels& costs,
                 Backend* backend, Timeline* timeline, RunRecord* record) {
  ClusterSettings cluster_as = point_cluster(settings, workload);
  cluster_as.costs = costs;
  WorkloadOfModels models;
  if (settings.engine.adapters_as_models) {
    models = adapters_as_models(workload);
    const ServedModel base = cluster_as.models.front();
    cluster_as.models.assign(models.names.size(), base);
    for (std::size_t i = 0; i < models.names.size(); ++i) {
      cluster_as.models[i].name = models.names[i];
    }
  }
  std::unique_ptr<Cluster> cluster;
  try {
    cluster = std::make_unique<Cluster>(
        cluster_as, settings.engine.adapters_as_models ? models.workload : workload,
        [&settings] { return settings.technique->replica_policy(); },
        point_cluster_policy(settings), backend, timeline, record);
  } catch (const MachineError&) {
    throw;
  } catch (const SpecError& error) {
    record->invalid_reasons.push_back(std::string("does not fit: ") + error.what());
    record->requests.assign(workload.requests.size(), RequestRecord{});
    return;
  }
  cluster->run();
}

// Cost models of the spec's model, which all models of a run are so far, by devices that share it.
// `settings` outlives them; copies share what was made.
CostModels cost_models(const PointSettings& settings) {
  auto made = std::make_shared<std::map<int, std::unique_ptr<CostModel>>>();
  return [&settings, made](ModelId, int devices) -> const CostModel& {
    std::unique_ptr<CostModel>& cost = (*made)[devices];
    if (cost == nullptr) cost = point_cost_model(settings, devices);
    return *cost;
  };
}

}  // namespace

bool is_of_machine(const std::string& reasons) {
  return reasons.find("the load generator lagged: ") != std::string::npos ||
         reasons.find("out of memory: ") != std::string::npos ||
         reasons.find(kDisturbance) != std::string::npos;
}

bool is_real(const std::string& backend) {
  const auto& kinds = Registry<BackendKind>::instance();
  return kinds.has(backend) && kinds.make(backend)->is_real();
}

PointResult run_point(const PointSettings& settings, const Workload& workload,
                      ranks::RankGroup* group, const ProcessorReader& processor) {
  const auto started = std::chrono::steady_clock::now();
  PointResult result;
  result.record.options = recorder_options(settings);
  if (workload.requests.empty()) {
    result.record.invalid_reasons.push_back("the workload has no requests");
  }
  const CostModels costs = cost_models(settings);
  if (is_real(settings.backend)) {
    const RealRun run =
        open_real_run(settings, workload, &costs({}, settings.cluster.tensor_parallel), group);
    const std::optional<ProcessorTimes> began = processor();
    run_cluster(settings, workload, costs, run.backend.get(), run.timeline.get(), &result.record);
    const std::optional<ProcessorTimes> ended = processor();
    if (began && ended) result.processor = processor_share(*began, *ended);
    if (result.processor && group != nullptr) {
      result.processor->waited_s = 0;  // the group's own processes may be what was waited for
    }
    if (result.processor) {
      const std::string why = disturbance(*result.processor, settings.runtime.max_processor_loss);
      if (!why.empty()) result.record.invalid_reasons.push_back(why);
    }
  } else {
    VirtualTimeline timeline;
    const BackendKind& kind = *settings.runtime.backends.at(settings.backend);
    const auto backend = static_cast<const VirtualBackend&>(kind).make(&timeline, costs);
    run_cluster(settings, workload, costs, backend.get(), &timeline, &result.record);
  }
  result.summary = summarize(workload, result.record);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started;
  result.wall_s = wall.count();
  return result;
}

RunRecord replay_point(const PointSettings& settings, const Workload& workload,
                       const RunRecord& original) {
  RunRecord record;
  record.options = recorder_options(settings);
  record.options.measure_scheduling = record.options.keep_delivered = false;
  ReplayTimeline timeline(original.delivered);
  const CostModels costs = cost_models(settings);
  const auto backend = make_replay_backend(&timeline, costs, original.step_timings);
  run_cluster(settings, workload, costs, backend.get(), &timeline, &record);
  return record;
}

}  // namespace servelab

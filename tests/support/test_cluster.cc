#include "tests/support/test_cluster.h"

#include <algorithm>

#include "engine/core/rng.h"
#include "engine/workload/adapters_as_models.h"

namespace servelab::test {
namespace {

constexpr Bytes kKvBytesPerToken = 1024;
constexpr Bytes kAdapterBytesPerRank = 4096;
constexpr int kBlockTokens = 16;
constexpr std::uint64_t kRepositorySeed = 1;

}  // namespace

StepCost LinearCost::step(const BatchShape& batch, Exec exec, LoraKernel kernel) const {
  StepCost cost;
  cost.dense = 1'000'000 + 10'000 * batch.tokens + 1'000 * batch.sampled;
  cost.attention = key_ns_ * (batch.decode_context + batch.prefill_pairs);
  if (exec == Exec::kUnmerged) {
    cost.lora = kernel == LoraKernel::kBgmv ? 100 * batch.lora_tokens * batch.lora_max_rank
                                            : 100 * batch.lora_rank_tokens;
    if (batch.lora_adapters > 0) cost.lora += 200'000 + 10'000 * batch.lora_adapters;
  }
  return cost;
}

HostLoraCost LinearCost::host_lora(const BatchShape& batch, HostCopy copy) const {
  const TimeNs results = 100 * batch.host_tokens;
  return {1'000 * batch.host_rank_tokens + results + (copy == HostCopy::kFused ? 0 : 50'000),
          results};
}

EngineSettings small_engine() {
  EngineSettings engine;
  engine.limits.max_batch = 16;
  engine.limits.max_batch_tokens = 512;
  return engine;
}

Workload make_workload(const WorkloadShape& shape, std::uint64_t seed) {
  Workload workload;
  for (int i = 0; i < shape.adapters; ++i) {
    workload.adapters.push_back(Adapter{"adapter-" + std::to_string(i), ModelId{}, shape.ranks,
                                        shape.ranks * kAdapterBytesPerRank});
  }
  RngStream arrivals(seed, "arrivals"), adapters(seed, "adapters"), lengths(seed, "lengths");
  double at = 0;
  for (int i = 0; i < shape.requests; ++i) {
    if (!shape.burst) at += arrivals.exponential() / shape.rate_per_s;
    Request r;
    r.arrival = from_seconds(at);
    if (shape.adapters > 0 && adapters.uniform() >= shape.base_share) {
      // Squared: adapter 0 is the most popular.
      const double u = adapters.uniform();
      r.adapter = static_cast<AdapterId>(static_cast<std::uint32_t>(u * u * shape.adapters));
    }
    r.prompt_tokens = 1 + static_cast<int>(lengths.uniform() * shape.max_prompt);
    r.output_tokens = 1 + static_cast<int>(lengths.uniform() * shape.max_output);
    r.output_limit_tokens = std::max(r.output_tokens, shape.max_output);
    workload.requests.push_back(r);
  }
  return workload;
}

namespace {

std::unique_ptr<ClusterPolicy> make_cluster_policy(const RunOptions& options,
                                                   const Technique& technique) {
  if (options.cluster_policy) return options.cluster_policy();
  auto policy = Registry<ClusterPolicy>::instance().make(
      options.route.empty() ? technique.default_cluster_policy() : options.route);
  ParamFields fields;
  policy->fields(fields);
  fields.bind(
      options.route_params.empty() ? ConfigNode{} : parse_yaml(options.route_params, "test"),
      "test");
  return policy;
}

}  // namespace

RunRecord run(const Workload& workload, const RunOptions& options) {
  VirtualTimeline timeline;
  const LinearCost cost(options.key_ns);
  const auto backend = make_twin_backend(&timeline, &cost);
  return run_on(workload, options, &timeline, backend.get());
}

RunRecord run_on(const Workload& workload, const RunOptions& options, Timeline* timeline,
                 Backend* backend) {
  const auto technique = Registry<Technique>::instance().make(options.technique);
  ParamFields fields;
  technique->fields(fields);
  fields.bind(options.params.empty() ? ConfigNode{} : parse_yaml(options.params, "test"), "test");

  ClusterSettings settings;
  settings.replicas = options.replicas;
  settings.engine = options.engine;
  technique->configure(&settings.engine);
  if (options.repository_copies > 0 && !settings.engine.adapters_as_models) {
    settings.repositories = draw_repositories(workload.adapters.size(), options.repository_copies,
                                              options.replicas, kRepositorySeed);
  }
  settings.reveal_output_length = technique->capabilities().knows_output_length;
  settings.max_arrival_lag = options.max_arrival_lag;
  settings.migration_delay = options.migration_delay;
  settings.stop_at = options.stop_at;
  settings.step_by_step = options.step_by_step;
  settings.max_waiting = options.max_waiting;
  settings.when_full = options.when_full;
  ModelMemory& memory = settings.models[0].memory[1];
  memory.kv_per_token = kKvBytesPerToken;
  memory.weights = 16 * kMiB;
  settings.models[0].max_context_tokens = options.max_context_tokens;
  WorkloadOfModels models;
  if (settings.engine.adapters_as_models) {
    models = adapters_as_models(workload);
    settings.models.resize(models.names.size(), ServedModel(settings.models[0]));
  }
  const auto adapters = static_cast<Bytes>(workload.adapters.size());
  const auto at_once = [](int slots, Bytes all) {
    return slots > 0 ? std::min<Bytes>(slots, all) : all;
  };
  const Bytes slot_bytes = workload.adapters.empty() ? 0 : workload.adapters.front().bytes;
  settings.device_memory = options.kv_blocks * kBlockTokens * kKvBytesPerToken +
                           memory.weights * at_once(settings.engine.model_slots,
                                                    static_cast<Bytes>(settings.models.size()));
  if (!settings.engine.adapters_as_models) {
    settings.device_memory += at_once(settings.engine.adapter_slots, adapters) * slot_bytes;
  }

  RunRecord record;
  record.options = options.record;
  Cluster cluster(
      settings, settings.engine.adapters_as_models ? models.workload : workload,
      [&] {
        return options.replica_policy ? options.replica_policy() : technique->replica_policy();
      },
      make_cluster_policy(options, *technique), backend, timeline, &record);
  cluster.run();
  return record;
}

void attach_replicas(Backend* backend, int replicas) {
  const UnitModel model;
  for (int i = 0; i < replicas; ++i) {
    ReplicaLayout layout;
    layout.devices = {&i, 1};
    layout.models = {&model, 1};
    backend->attach(static_cast<ReplicaId>(i), layout);
  }
}

std::string violation(const Workload& workload, const RunRecord& record) {
  if (!record.invalid_reasons.empty()) return record.invalid_reasons.front();
  if (record.requests.size() != workload.requests.size()) return "requests were lost";
  std::vector<const Unit*> units;  // by replica
  for (const Unit& unit : record.deployment.units) {
    if (!unit.off) units.push_back(&unit);
  }
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& asked = workload.requests[i];
    const RequestRecord& r = record.requests[i];
    const std::string who = "request " + std::to_string(i);
    if (r.replica != kNoReplica && !units.at(index(r.replica))->stores(asked.adapter)) {
      return who + " ended where its adapter is not";
    }
    if (r.status == RequestStatus::kUnfinished) return who + " never ended";
    if (r.status == RequestStatus::kRejected) {
      if (r.reject_reason == RejectReason::kNone) return who + " was rejected without a reason";
      continue;
    }
    if (r.generated != asked.output_tokens) return who + " has the wrong output length";
    if (!(asked.arrival <= r.admitted && r.admitted <= r.prefill_start &&
          r.prefill_start < r.first_token && r.first_token <= r.last_token)) {
      return who + " has stamps out of order";
    }
    if ((asked.output_tokens == 1) != (r.first_token == r.last_token)) {
      return who + " has tokens at the same instant";
    }
  }
  return "";
}

std::string difference(const RunRecord& a, const RunRecord& b) {
  if (a.decisions != b.decisions) return "decisions";
  if (a.decision_hash.value() != b.decision_hash.value()) return "decision hash";
  if (a.requests != b.requests) return "requests";
  if (a.events != b.events) return "events";
  if (a.series != b.series) return "series";
  if (a.gauges != b.gauges) return "gauges";
  if (a.replicas != b.replicas) return "replicas' totals";
  if (a.itl.counts() != b.itl.counts() || a.itl.sum() != b.itl.sum()) return "inter-token gaps";
  if (a.cluster.held_back != b.cluster.held_back ||
      a.cluster.turned_away != b.cluster.turned_away ||
      a.cluster.rebalances != b.cluster.rebalances || a.cluster.failures != b.cluster.failures ||
      a.cluster.migrations != b.cluster.migrations) {
    return "cluster's totals";
  }
  if (a.steps != b.steps || a.end != b.end) return "steps, or the end";
  if (a.invalid_reasons != b.invalid_reasons) return "validity";
  return "";
}

}  // namespace servelab::test

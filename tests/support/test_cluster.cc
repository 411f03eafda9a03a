#include "tests/support/test_cluster.h"

#include <algorithm>

#include "engine/core/rng.h"

namespace servelab::test {
namespace {

constexpr Bytes kKvBytesPerToken = 1024;
constexpr Bytes kAdapterBytesPerRank = 4096;
constexpr int kBlockTokens = 16;

}  // namespace

StepCost LinearCost::step(const BatchShape& batch, Exec exec, LoraKernel kernel) const {
  StepCost cost;
  cost.dense = 1'000'000 + 10'000 * batch.tokens + 1'000 * batch.sampled;
  cost.attention = 10 * (batch.decode_context + batch.prefill_pairs);
  if (exec == Exec::kUnmerged) {
    cost.lora = kernel == LoraKernel::kBgmv ? 100 * batch.lora_tokens * batch.lora_max_rank
                                            : 100 * batch.lora_rank_tokens;
    if (batch.lora_adapters > 0) cost.lora += 200'000 + 10'000 * batch.lora_adapters;
  }
  return cost;
}

TimeNs LinearCost::host_lora(const BatchShape& batch, HostCopy copy) const {
  return 1'000 * batch.host_rank_tokens + (copy == HostCopy::kFused ? 0 : 50'000);
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
  const LinearCost cost;
  const auto backend =
      make_twin_backend(&timeline, &cost, static_cast<std::size_t>(options.replicas));
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
  settings.reveal_output_length = technique->capabilities().knows_output_length;
  settings.max_arrival_lag = options.max_arrival_lag;
  settings.migration_delay = options.migration_delay;
  settings.memory.kv_per_token = kKvBytesPerToken;
  settings.memory.weights = 16 * kMiB;
  settings.memory.max_context_tokens = options.max_context_tokens;
  Bytes slots = settings.engine.adapter_slots > 0
                    ? std::min<Bytes>(settings.engine.adapter_slots,
                                      static_cast<Bytes>(workload.adapters.size()))
                    : static_cast<Bytes>(workload.adapters.size());
  Bytes slot_bytes = workload.adapters.empty() ? 0 : workload.adapters.front().bytes;
  const bool whole = settings.engine.adapter_form == AdapterForm::kWholeModel;
  if (whole) slot_bytes = settings.memory.weights;
  const bool base = !whole || std::any_of(workload.requests.begin(), workload.requests.end(),
                                          [](const Request& r) { return r.adapter == kBaseModel; });
  settings.memory.device = (base ? settings.memory.weights : 0) + slots * slot_bytes +
                           options.kv_blocks * kBlockTokens * kKvBytesPerToken;

  RunRecord record;
  record.options = options.record;
  std::vector<std::unique_ptr<ReplicaPolicy>> policies;
  for (int i = 0; i < options.replicas; ++i) {
    policies.push_back(options.replica_policy ? options.replica_policy()
                                              : technique->replica_policy());
  }
  Cluster cluster(settings, workload, std::move(policies), make_cluster_policy(options, *technique),
                  backend, timeline, &record);
  cluster.run();
  return record;
}

std::string violation(const Workload& workload, const RunRecord& record) {
  if (!record.invalid_reasons.empty()) return record.invalid_reasons.front();
  if (record.requests.size() != workload.requests.size()) return "requests were lost";
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& asked = workload.requests[i];
    const RequestRecord& r = record.requests[i];
    const std::string who = "request " + std::to_string(i);
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

}  // namespace servelab::test

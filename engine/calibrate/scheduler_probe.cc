#include "engine/calibrate/scheduler_probe.h"

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/fitted_cost.h"
#include "engine/core/check.h"
#include "engine/run/real_run.h"
#include "engine/serve/cluster.h"

namespace servelab {
namespace {

constexpr int kPromptTokens = 1;
constexpr int kRank = 1;
const std::vector<std::string> kTargets = {"q"};

ModelConfig smallest_model() {
  ModelConfig model;
  model.name = "scheduler probe";
  model.layers = 1;
  model.hidden = 64;
  model.heads = model.kv_heads = 1;
  model.head_dim = 64;
  model.ffn = 64;
  model.vocab = 64;
  model.max_context_tokens = 4096;
  return model;
}

class RandomAdapters final : public AdapterSource {
 public:
  RandomAdapters(const ModelConfig& model, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      adapters_.push_back(random_adapter(model, "probe", kRank, kTargets, i));
    }
  }
  std::shared_ptr<const LoraWeights> load(AdapterId id) override { return adapters_[index(id)]; }

 private:
  std::vector<std::shared_ptr<const LoraWeights>> adapters_;
};

// Adds up the features of Lat_sched over the steps that pass through it.
class Observer final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void submit(const StepWork& work) override {
    const BatchShape& s = work.shape;
    const auto pending = static_cast<double>(s.waiting);
    requests += static_cast<double>(s.prefill_requests + s.decode_requests);
    waiting += pending;
    waiting_by_share += pending * static_cast<double>(s.lora_adapters) /
                        static_cast<double>(std::max<std::int64_t>(1, s.served_adapters));
    ForwardingBackend::submit(work);
  }

  double requests = 0, waiting = 0, waiting_by_share = 0;
};

Workload workload_of(const PlannedSchedule& schedule, const ModelConfig& model) {
  Workload workload;
  for (int i = 0; i < schedule.adapters; ++i) {
    Adapter adapter;
    adapter.name = "probe" + std::to_string(i);
    adapter.rank = kRank;
    adapter.bytes = adapter_bytes_per_device(model, 1, kRank, kTargets);
    workload.adapters.push_back(std::move(adapter));
  }
  for (int i = 0; i < schedule.requests; ++i) {
    Request request;
    request.adapter = static_cast<AdapterId>(i % schedule.adapters);
    request.prompt_tokens = kPromptTokens;
    request.output_tokens = request.output_limit_tokens = schedule.output_tokens;
    workload.requests.push_back(request);
  }
  return workload;
}

ClusterSettings settings_of(const PlannedSchedule& schedule, const ModelConfig& model) {
  ClusterSettings settings;
  settings.engine.limits.max_batch = schedule.max_batch;
  settings.engine.adapter_slots = schedule.slots;
  settings.models.front().memory[1].kv_per_token = model.kv_bytes_per_token();
  settings.device_memory = 64 * kMiB;
  settings.max_arrival_lag = kNever;  // everyone comes at once
  return settings;
}

}  // namespace

SchedulerSample probe_scheduler(const std::string& backend, const PlannedSchedule& schedule,
                                int threads) {
  const ModelConfig model = smallest_model();
  const auto weights = random_weights(model, 0);
  const Workload workload = workload_of(schedule, model);
  RandomAdapters adapters(model, workload.adapters.size());
  FittedConstants nothing;
  nothing.token_knots = nothing.dense_us = nothing.sample_knots = nothing.logits_us = {1};
  const FittedCostModel cost(nothing);
  RealTimeline timeline;
  const auto make = [&](ReplicaId, const ReplicaLayout& layout) {
    DevicePlan plan;
    plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                   layout.max_batch_tokens};
    plan.targets = linear_layers(kTargets);
    plan.adapters = static_cast<int>(layout.adapters);
    plan.widest_rank = kRank;
    const auto made_by = find_accelerator(backend);
    made_by->share_host(0, {.threads = threads}, &plan);
    return made_by->make(model, *weights, plan);
  };
  const auto engine = make_real_backend(&timeline, &cost, workload, &adapters,
                                        random_prompts(0, model.vocab), make, {});
  Observer observer(engine.get());
  RunRecord record;
  record.options.measure_scheduling = true;
  const auto technique = Registry<Technique>::instance().make("vllm-lora");
  Cluster cluster(
      settings_of(schedule, model), workload, [&] { return technique->replica_policy(); },
      Registry<ClusterPolicy>::instance().make("round-robin"), &observer, &timeline, &record);
  cluster.run();
  const ReplicaTotals& totals = record.replicas.at(0);
  if (totals.steps == 0) throw SpecError("calibration: the scheduler's run made no step");
  const auto steps = static_cast<double>(totals.steps);
  const auto per_step_us = [steps](TimeNs total) {
    return static_cast<double>(total) / 1e3 / steps;
  };
  SchedulerSample sample;
  sample.requests = observer.requests / steps;
  sample.pending = observer.waiting / steps;
  sample.pending_by_share = observer.waiting_by_share / steps;
  sample.us = per_step_us(totals.scheduling);
  sample.host_us =
      per_step_us(record.end - totals.load_wait - totals.dense - totals.attention - totals.lora);
  return sample;
}

}  // namespace servelab

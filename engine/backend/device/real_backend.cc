#include "engine/backend/device/real_backend.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/backend/device/device_replica.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "engine/serve/view.h"

namespace servelab {
namespace {

bool wants_host(const StepPlan& plan) {
  return std::any_of(plan.slices.begin(), plan.slices.end(),
                     [](const Slice& slice) { return slice.lora == LoraSite::kHost; });
}

class Engine final : public RealBackend {
 public:
  Engine(RealTimeline* timeline, const CostModel* cost, const Workload& workload,
         AdapterSource* adapters, PromptSource prompts, DeviceFactory devices,
         const RealBackendOptions& options)
      : timeline_(timeline),
        cost_(cost),
        workload_(workload),
        adapters_(adapters),
        prompts_(std::move(prompts)),
        devices_(std::move(devices)),
        options_(options) {}

  const char* unsupported(ReplicaId replica, const StepPlan& plan) const override {
    const kernels::LoraTraits& kernel = kernels::traits(plan.kernel);
    if (kernel.by_row && kernel.padded && !padded_ && plan.exec == Exec::kUnmerged) {
      return "BGMV reads every adapter at one width: it needs adapter slots, not unified paging";
    }
    if (adapters_->kept().empty() && wants_host(plan)) return kHostLoraFromDisk;
    return device(replica).device().unsupported(plan);
  }

  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost(ReplicaId /*replica*/, ModelId /*model*/) const override { return *cost_; }

  void attach(ReplicaId replica, const ReplicaLayout& layout) override {
    SL_CHECK(index(replica) == replicas_.size(), "replicas attach in order");
    adapters_as_models_ = layout.model_slots > 0;
    if (layout.models.size() > 1 && !adapters_as_models_) {
      throw SpecError("the engines run one model per replica, and this one is to serve " +
                      std::to_string(layout.models.size()));
    }
    std::unique_ptr<Device> device = devices_(replica, layout);
    padded_ = layout.padded_adapters;
    Replica& added = replicas_.emplace_back();
    added.device = std::make_unique<DeviceReplica>(
        replica, timeline_, adapters_, workload_.adapters.size(), std::move(device),
        DeviceReplica::Settings{adapters_as_models_, padded_ ? layout.widest_rank : 0,
                                layout.load_path == LoadPath::kLayers});
  }

  void preload(ReplicaId replica, AdapterId adapter) override { device(replica).load_now(adapter); }
  void load(ReplicaId replica, AdapterId adapter, Bytes /*bytes*/) override {
    device(replica).begin_load(adapter);
  }
  void evict(ReplicaId replica, AdapterId adapter) override { device(replica).evict(adapter); }

  void load(ReplicaId replica, ModelId model, Bytes /*bytes*/) override {
    const AdapterId adapter = folded_in(model);
    if (adapter != kBaseModel) return device(replica).begin_load(adapter);
    timeline_->expect_external(1);
    timeline_->post_now(EventKind::kLoadDone, pack_subject(replica, load_subject(model)));
  }
  void evict(ReplicaId replica, ModelId model) override {
    const AdapterId adapter = folded_in(model);
    if (adapter != kBaseModel) device(replica).evict(adapter);
  }

  // Only noted here: a step in flight may be reading.
  void drop_swapped(ReplicaId replica, RequestId request) override {
    replicas_[index(replica)].dropped.push_back(request);
  }
  void forget(RequestId request) override {
    if (!keep_outputs_) histories_.erase(request);
  }

  void submit(const StepWork& work) override {
    Replica& replica = replicas_[index(work.replica)];
    const AdapterId folded = folded_in(work.model);
    DeviceJob job;
    job.dropped.swap(replica.dropped);
    job.moves.assign(work.moves.begin(), work.moves.end());
    job.unmerge = work.unmerge != kBaseModel;
    job.merge = work.merge;
    job.folded = folded;
    job.mode = work.mode;
    job.sampling = options_.sampling;
    job.measure_parts = options_.measure_parts;
    replica.sampling.clear();
    for (const Slice& slice : work.slices) {
      const RequestView& r = work.view->request(slice.request);
      Sequence& sequence = job.sequences.emplace_back();
      sequence.context = r.context();
      const auto from = history_of(slice.request).begin() + sequence.context;
      sequence.tokens.assign(from, from + slice.tokens);
      const std::span<const BlockIndex> blocks = r.block_table();
      sequence.blocks.assign(blocks.begin(), blocks.end());
      if (folded == kBaseModel) sequence.adapter = r.adapter();
      sequence.lora = slice.lora;
      sequence.samples = slice.tokens == r.pending();
      sequence.draw = static_cast<std::uint64_t>(index(slice.request)) << 32 |
                      static_cast<std::uint64_t>(sequence.context + slice.tokens);
      if (sequence.samples) replica.sampling.push_back(slice.request);
    }
    replica.device->submit(work.slot, std::move(job));
  }

  StepTiming collect(ReplicaId id, std::uint32_t /*slot*/) override {
    const Replica& replica = replicas_[index(id)];
    for (std::size_t i = 0; i < replica.sampling.size(); ++i) {
      const auto found = histories_.find(replica.sampling[i]);  // none: forgotten in the meantime
      if (found != histories_.end()) {
        found->second.push_back(replica.device->result().sampled[i]);
      }
    }
    return replica.device->timing();
  }

  std::vector<std::int32_t> output(RequestId id) const override {
    const auto found = histories_.find(id);
    if (found == histories_.end()) return {};
    const auto prompt = static_cast<std::ptrdiff_t>(workload_.requests[index(id)].prompt_tokens);
    return {found->second.begin() + prompt, found->second.end()};
  }
  void keep_outputs() override { keep_outputs_ = true; }

 private:
  // The adapter whose fold a model is; kBaseModel: it is the base model.
  AdapterId folded_in(ModelId model) const {
    if (!adapters_as_models_ || index(model) >= workload_.adapters.size()) return kBaseModel;
    return static_cast<AdapterId>(static_cast<std::uint32_t>(model));
  }

  DeviceReplica& device(ReplicaId replica) const { return *replicas_[index(replica)].device; }

  // A request's prompt and what it got so far.
  std::vector<std::int32_t>& history_of(RequestId id) {
    const auto [entry, is_new] = histories_.try_emplace(id);
    if (is_new) entry->second = prompts_(id, workload_.requests[index(id)].prompt_tokens);
    return entry->second;
  }

  RealTimeline* timeline_;
  const CostModel* cost_;
  const Workload& workload_;
  AdapterSource* adapters_;
  PromptSource prompts_;
  DeviceFactory devices_;
  RealBackendOptions options_;
  bool padded_ = true;
  // The models that take turns are copies of the one model, each with an adapter folded in: adapter
  // i of the workload is the run's model i, and the plain one comes after the last.
  bool adapters_as_models_ = false;
  bool keep_outputs_ = false;
  std::unordered_map<RequestId, std::vector<std::int32_t>> histories_;
  struct Replica {
    std::vector<RequestId> dropped;   // since its latest step
    std::vector<RequestId> sampling;  // of that step, in order
    std::unique_ptr<DeviceReplica> device;
  };
  std::vector<Replica> replicas_;  // last: their threads use what is above
};

}  // namespace

PromptSource random_prompts(std::uint64_t seed, int vocab) {
  return [seed, vocab](RequestId id, int tokens) {
    RngStream stream(seed, "prompt", index(id));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t& token : ids) {
      token = static_cast<std::int32_t>(stream.below(static_cast<std::uint64_t>(vocab)));
    }
    return ids;
  };
}

std::unique_ptr<RealBackend> make_real_backend(RealTimeline* timeline, const CostModel* cost,
                                               const Workload& workload, AdapterSource* adapters,
                                               PromptSource prompts, DeviceFactory devices,
                                               const RealBackendOptions& options) {
  return std::make_unique<Engine>(timeline, cost, workload, adapters, std::move(prompts),
                                  std::move(devices), options);
}

}  // namespace servelab

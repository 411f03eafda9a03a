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
         AdapterSource* adapters, PromptSource prompts, ExecutorFactory executors,
         const RealBackendOptions& options)
      : timeline_(timeline),
        cost_(cost),
        workload_(workload),
        adapters_(adapters),
        prompts_(std::move(prompts)),
        executors_(std::move(executors)),
        options_(options) {}

  const char* unsupported(ReplicaId replica, const StepPlan& plan) const override {
    const kernels::LoraTraits& kernel = kernels::traits(plan.kernel);
    if (kernel.by_row && kernel.padded && !padded_ && plan.exec == Exec::kUnmerged) {
      return "BGMV reads every adapter at one width: it needs adapter slots, not unified paging";
    }
    if (adapters_->kept().empty() && wants_host(plan)) return kHostLoraFromDisk;
    return replicas_[index(replica)]->executor().unsupported(plan);
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
    std::unique_ptr<Executor> device = executors_(replica, layout);
    padded_ = layout.padded_adapters;
    replicas_.push_back(std::make_unique<DeviceReplica>(
        replica, timeline_, adapters_, workload_.adapters.size(), std::move(device),
        DeviceReplica::Settings{adapters_as_models_, padded_ ? layout.widest_rank : 0,
                                options_.measure_parts, options_.sampling}));
    dropped_.emplace_back();
  }

  void preload(ReplicaId replica, AdapterId adapter) override {
    replicas_[index(replica)]->load_now(adapter);
  }
  void load(ReplicaId replica, AdapterId adapter, Bytes /*bytes*/) override {
    replicas_[index(replica)]->begin_load(adapter);
  }
  void evict(ReplicaId replica, AdapterId adapter) override {
    replicas_[index(replica)]->evict(adapter);
  }

  void load(ReplicaId replica, ModelId model, Bytes /*bytes*/) override {
    const AdapterId adapter = folded_in(model);
    if (adapter != kBaseModel) return replicas_[index(replica)]->begin_load(adapter);
    timeline_->expect_external(1);
    timeline_->post_now(EventKind::kLoadDone, pack_subject(replica, load_subject(model)));
  }
  void evict(ReplicaId replica, ModelId model) override {
    const AdapterId adapter = folded_in(model);
    if (adapter != kBaseModel) replicas_[index(replica)]->evict(adapter);
  }

  // Both only noted here: a step in flight may be reading.
  void drop_swapped(ReplicaId replica, RequestId request) override {
    dropped_[index(replica)].push_back(request);
  }
  void forget(RequestId request) override { forgotten_.push_back(request); }

  void submit(const StepWork& work) override {
    DeviceJob job;
    job.slot = work.slot;
    const AdapterId folded = folded_in(work.model);
    job.mode = work.mode;
    if (folded != kBaseModel) job.mode.exec = Exec::kMerged;
    job.unmerge = work.unmerge;
    job.merge = work.merge;
    job.adapters.assign(work.adapters.begin(), work.adapters.end());
    if (folded != kBaseModel) job.adapters.push_back(folded);
    job.host_adapters.assign(work.host_adapters.begin(), work.host_adapters.end());
    job.moves.assign(work.moves.begin(), work.moves.end());
    job.dropped.swap(dropped_[index(work.replica)]);
    if (replicas_.size() == 1) clear_forgotten();
    for (const Slice& slice : work.slices) {
      const RequestView& r = work.view->request(slice.request);
      DeviceJob::Sequence& sequence = job.sequences.emplace_back();
      sequence.request = slice.request;
      sequence.history = history_of(slice.request);
      sequence.context = r.context();
      sequence.tokens = slice.tokens;
      sequence.first_block = job.blocks.size();
      const std::span<const BlockIndex> blocks = r.block_table();
      job.blocks.insert(job.blocks.end(), blocks.begin(), blocks.end());
      sequence.block_count = blocks.size();
      sequence.adapter = folded != kBaseModel ? folded : r.adapter();
      sequence.on_host = slice.lora == LoraSite::kHost;
      sequence.samples = slice.tokens == r.pending();
    }
    replicas_[index(work.replica)]->submit(std::move(job));
  }

  StepTiming collect(ReplicaId replica, std::uint32_t /*slot*/) override {
    return replicas_[index(replica)]->timing();
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

  std::vector<std::int32_t>* history_of(RequestId id) {
    const auto [entry, is_new] = histories_.try_emplace(id);
    if (is_new) entry->second = prompts_(id, workload_.requests[index(id)].prompt_tokens);
    return &entry->second;
  }

  // With one replica its device is idle when a step is submitted. With several, another may be
  // running, so requests are kept until the end.
  void clear_forgotten() {
    if (!keep_outputs_) {
      for (const RequestId id : forgotten_) histories_.erase(id);
    }
    forgotten_.clear();
  }

  RealTimeline* timeline_;
  const CostModel* cost_;
  const Workload& workload_;
  AdapterSource* adapters_;
  PromptSource prompts_;
  ExecutorFactory executors_;
  RealBackendOptions options_;
  bool padded_ = true;
  // The models that take turns are copies of the one model, each with an adapter folded in: adapter
  // i of the workload is the run's model i, and the plain one comes after the last.
  bool adapters_as_models_ = false;
  bool keep_outputs_ = false;
  std::unordered_map<RequestId, std::vector<std::int32_t>> histories_;
  std::vector<RequestId> forgotten_;
  std::vector<std::vector<RequestId>> dropped_;           // by replica, since its latest step
  std::vector<std::unique_ptr<DeviceReplica>> replicas_;  // last: their threads use what is above
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
                                               PromptSource prompts, ExecutorFactory executors,
                                               const RealBackendOptions& options) {
  return std::make_unique<Engine>(timeline, cost, workload, adapters, std::move(prompts),
                                  std::move(executors), options);
}

}  // namespace servelab

#include "engine/backend/cpu/cpu_backend.h"

#include <unordered_map>
#include <utility>

#include "engine/backend/cpu/cpu_replica.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "engine/serve/view.h"

namespace servelab {
namespace {

class Engine final : public CpuBackend {
 public:
  Engine(RealTimeline* timeline, const CostModel* cost, const ModelConfig& model,
         const ModelWeights& weights, const Workload& workload, AdapterSource* adapters,
         PromptSource prompts, const CpuBackendOptions& options)
      : timeline_(timeline),
        cost_(cost),
        model_(model),
        weights_(weights),
        workload_(workload),
        adapters_(adapters),
        prompts_(std::move(prompts)),
        options_(options) {}

  const char* unsupported(const StepPlan& plan) const override {
    if (plan.device_share != 1.0) return "the CPU engine gives a step the whole device";
    if (plan.model != ModelId{}) return "the CPU engine runs one model per replica";
    if (plan.kernel == LoraKernel::kBgmv && !padded_ && plan.exec == Exec::kUnmerged) {
      return "BGMV reads every adapter at one width: it needs adapter slots, not unified paging";
    }
    for (const Slice& slice : plan.slices) {
      if (slice.lora != LoraSite::kDevice) return "the CPU engine has one place for LoRA";
    }
    return nullptr;
  }

  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost() const override { return *cost_; }

  void attach(ReplicaId replica, const ReplicaLayout& layout) override {
    SL_CHECK(index(replica) == replicas_.size(), "replicas attach in order");
    CpuExecutorOptions executor;
    executor.threads = options_.threads;
    for (int i = 0; i < options_.threads && !options_.cores.empty(); ++i) {
      const std::size_t core =
          index(replica) * static_cast<std::size_t>(options_.threads) + static_cast<std::size_t>(i);
      executor.cores.push_back(options_.cores[core % options_.cores.size()]);
    }
    executor.isa = options_.isa;
    executor.gemm = options_.gemm;
    executor.type = options_.type;
    executor.kv_blocks = layout.kv_blocks;
    executor.block_tokens = layout.block_tokens;
    executor.max_batch = layout.max_batch;
    executor.max_batch_tokens = layout.max_batch_tokens;
    auto device = std::make_unique<CpuExecutor>(model_, weights_, executor);
    device->reserve_merge(options_.merge_targets);
    padded_ = layout.padded_adapters;
    replicas_.push_back(std::make_unique<CpuReplica>(
        replica, timeline_, adapters_, workload_.adapters.size(), std::move(device),
        CpuReplica::Settings{layout.whole_models, padded_ ? options_.widest_rank : 0,
                             options_.sampling}));
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

  // Only noted here: a step in flight may be reading.
  void forget(RequestId request) override { forgotten_.push_back(request); }

  void submit(const StepWork& work) override {
    DeviceJob job;
    job.slot = work.slot;
    job.exec = work.exec;
    job.kernel = work.kernel;
    job.unmerge = work.unmerge;
    job.merge = work.merge;
    job.adapters.assign(work.adapters.begin(), work.adapters.end());
    job.moves.assign(work.moves.begin(), work.moves.end());
    if (replicas_.size() == 1) clear_forgotten(&job);
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
      sequence.adapter = r.adapter();
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
  std::vector<std::int32_t>* history_of(RequestId id) {
    const auto [entry, is_new] = histories_.try_emplace(id);
    if (is_new) entry->second = prompts_(id, workload_.requests[index(id)].prompt_tokens);
    return &entry->second;
  }

  // With one replica its device is idle when a step is submitted. With several, another may be
  // running, so requests are kept until the end.
  void clear_forgotten(DeviceJob* job) {
    if (!keep_outputs_) {
      for (const RequestId id : forgotten_) histories_.erase(id);
    }
    job->forgotten.swap(forgotten_);
    forgotten_.clear();
  }

  RealTimeline* timeline_;
  const CostModel* cost_;
  const ModelConfig& model_;
  const ModelWeights& weights_;
  const Workload& workload_;
  AdapterSource* adapters_;
  PromptSource prompts_;
  CpuBackendOptions options_;
  bool padded_ = true;
  bool keep_outputs_ = false;
  std::unordered_map<RequestId, std::vector<std::int32_t>> histories_;
  std::vector<RequestId> forgotten_;
  std::vector<std::unique_ptr<CpuReplica>> replicas_;  // last: their threads use what is above
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

std::unique_ptr<CpuBackend> make_cpu_backend(RealTimeline* timeline, const CostModel* cost,
                                             const ModelConfig& model, const ModelWeights& weights,
                                             const Workload& workload, AdapterSource* adapters,
                                             PromptSource prompts,
                                             const CpuBackendOptions& options) {
  return std::make_unique<Engine>(timeline, cost, model, weights, workload, adapters,
                                  std::move(prompts), options);
}

}  // namespace servelab

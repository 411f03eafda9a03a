#include "engine/calibrate/engine_calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "engine/backend/cost/cost_model.h"
#include "engine/calibrate/core_time.h"
#include "engine/calibrate/scheduler_probe.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "engine/run/adapter_folder.h"
#include "engine/run/real_run.h"

namespace servelab {
namespace {

constexpr int kBlockTokens = 16;
constexpr double kNsPerUs = 1e3;

TimeNs clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
double us(TimeNs ns) { return static_cast<double>(ns) / kNsPerUs; }

double timed_us(const std::function<void()>& action) {
  const TimeNs begin = clock_ns();
  action();
  return us(clock_ns() - begin);
}

class EngineCalibration final : public CalibrationTarget {
 public:
  EngineCalibration(const std::string& backend, const ModelConfig& model,
                    const std::vector<std::string>& targets, int threads, bool quick)
      : backend_(backend),
        model_(model),
        targets_(targets),
        threads_(threads),
        device_(open(quick)) {
    fill_cache();
    for (const int rank : calibrated_ranks()) {
      Adapter adapter;
      adapter.name = "rank" + std::to_string(rank);
      adapter.rank = rank;
      adapter.bytes = adapter_bytes_per_device(model, 1, rank, targets);
      disk_.adapters.push_back(std::move(adapter));
    }
    folder_ = make_adapter_folder(model, targets, disk_);
  }

  StepSample step(const PlannedStep& step) override {
    DeviceJob job;
    job.mode = {Exec::kUnmerged, step.kernel};
    job.measure_parts = true;
    std::size_t at = 0;
    const int width = step.shape().lora_max_rank;  // of the engine's slots
    for (const PlannedSlice& planned : step.slices) {
      Sequence& sequence = job.sequences.emplace_back();
      const auto total = static_cast<std::size_t>(planned.context + planned.tokens);
      const std::size_t blocks = (total + kBlockTokens - 1) / kBlockTokens;
      SL_CHECK(at + blocks <= blocks_.size(), "the plan keeps within the cache");
      sequence.context = planned.context;
      sequence.tokens.assign(tokens_.begin(), tokens_.begin() + planned.tokens);
      const auto first = blocks_.begin() + static_cast<std::ptrdiff_t>(at);
      sequence.blocks.assign(first, first + static_cast<std::ptrdiff_t>(blocks));
      sequence.samples = planned.samples;
      if (planned.rank > 0) sequence.adapter = adapter(planned.rank, planned.adapter, width);
      at += blocks;
    }
    const StepParts parts = run(job).parts;
    StepSample sample;
    sample.shape = step.shape();
    sample.kernel = step.kernel;
    sample.attention_us = us(parts.attention);
    sample.lora_us = us(parts.lora);
    sample.dense_us = us(parts.total - parts.attention - parts.lora);
    return sample;
  }

  CopySample load(CopyKind kind, int rank) override {
    CopySample sample;
    sample.kind = kind;
    sample.rank = rank;
    sample.bytes = adapter_bytes_per_device(model_, 1, rank, targets_);
    constexpr AdapterId kLoaded{UINT32_MAX - 1};  // none of those that steps use
    const auto bring = [this](std::shared_ptr<const LoraWeights> weights) {
      device_->load({kLoaded}, std::move(weights));
      device_->wait(kLoaded);
    };
    if (kind == CopyKind::kDiskLoad) {
      const auto& ranks = calibrated_ranks();
      const auto at = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
      sample.us = timed_us([&] { bring(folder_->load(static_cast<AdapterId>(at))); });
    } else {
      const auto weights = random_adapter(model_, "load", rank, targets_, 1);
      sample.us = timed_us([&] { bring(weights); });
    }
    device_->evict(kLoaded);
    return sample;
  }

  CopySample swap(CopyKind kind, int tokens) override {
    CopySample sample;
    sample.kind = kind;
    sample.bytes = tokens * kv_bytes_per_token_;
    DeviceJob job;
    job.moves.push_back({RequestId{0}, true, tokens, blocks_});
    DeviceJob back = job;
    back.moves.front().to_host = false;
    run(job);  // memory of the host that was there before, and a cache's values
    if (kind == CopyKind::kSwapOut) {
      sample.us = timed_us([&] { run(job); });
      run(back);
    } else {
      sample.us = timed_us([&] { run(back); });
    }
    return sample;
  }

  std::vector<MergeSample> merge(int rank) override {
    DeviceJob merge;
    merge.merge = adapter(rank, 0, rank);
    DeviceJob unmerge;
    unmerge.unmerge = true;
    const double merging = timed_us([&] { run(merge); });
    const double unmerging = timed_us([&] { run(unmerge); });
    return {{rank, merging}, {0, unmerging}};
  }

  CoreSample core(int rows) override {
    if (core_ == nullptr) {
      core_ = std::make_unique<CoreTime>(model_, targets_, calibrated_ranks().back(),
                                         element_type(backend_, RuntimeSection{}, model_));
    }
    return core_->measure(rows);
  }

  SchedulerSample schedule(const PlannedSchedule& schedule) override {
    return probe_scheduler(backend_, schedule, threads_);
  }

 private:
  const DeviceResult& run(const DeviceJob& job) {
    device_->run(job, &result_);
    return result_;
  }

  std::unique_ptr<Device> open(bool quick) {
    DevicePlan plan;
    plan.type = element_type(backend_, RuntimeSection{}, model_);
    kv_bytes_per_token_ = 2LL * model_.layers * model_.kv_heads * model_.head_dim *
                          static_cast<Bytes>(kernels::bytes_of(plan.type));
    plan.limits.block_tokens = kBlockTokens;
    plan.limits.kv_blocks =
        (16 * (kMostContext + kBlockTokens) + kMostSequences * 32 * kBlockTokens) / kBlockTokens;
    plan.limits.max_batch = kMostSequences;
    plan.limits.max_batch_tokens = kMostPrefill;
    plan.targets = linear_layers(targets_);
    plan.merges = true;
    plan.padded = false;
    plan.graphs = true;
    plan_adapters(quick, &plan);
    weights_ = open_weights(model_);
    blocks_.resize(static_cast<std::size_t>(plan.limits.kv_blocks));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    RngStream rng(1, "calibration");
    for (int i = 0; i < kMostPrefill; ++i) {
      tokens_.push_back(
          static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model_.vocab))));
    }
    const auto engine = find_accelerator(backend_);
    engine->share_host(0, {.threads = threads_}, &plan);
    return engine->make(model_, *weights_, plan);
  }

  // All adapters that the steps use stay on the device, besides one that is loaded.
  void plan_adapters(bool quick, DevicePlan* plan) const {
    std::set<std::array<int, 3>> kept;  // rank, number, width
    for (const PlannedStep& step : planned_steps(quick)) {
      const int width = step.shape().lora_max_rank;
      for (const PlannedSlice& slice : step.slices) {
        if (slice.rank > 0) kept.insert({slice.rank, slice.adapter, width});
      }
    }
    for (const int rank : calibrated_ranks()) {
      kept.insert({rank, 0, rank});   // merged
      kept.insert({rank, -1, rank});  // loaded
      plan->widest_rank = std::max(plan->widest_rank, rank);
    }
    plan->adapters = static_cast<int>(kept.size());
    for (const auto& each : kept) {
      plan->adapter_bytes += adapter_bytes_per_device(model_, 1, each[2], targets_);
    }
  }

  // Pages of the cache that nobody wrote are all the same zero page, which no real cache is: a
  // block is computed and its copies are brought to all of them.
  void fill_cache() {
    DeviceJob job;
    Sequence& sequence = job.sequences.emplace_back();
    sequence.tokens.assign(tokens_.begin(), tokens_.begin() + kBlockTokens);
    sequence.blocks = {blocks_.front()};
    run(job);
    job.sequences.clear();
    for (const BlockIndex block : blocks_) {
      const RequestId id{static_cast<std::uint32_t>(block)};
      job.moves = {{id, true, kBlockTokens, {blocks_.front()}}, {id, false, kBlockTokens, {block}}};
      run(job);
    }
  }

  AdapterId adapter(int rank, int number, int width) {
    const auto next = static_cast<AdapterId>(static_cast<std::uint32_t>(adapters_.size()));
    const auto [entry, is_new] = adapters_.try_emplace({rank, number, width}, next);
    if (is_new) {
      device_->load({next, width}, random_adapter(model_, "calibration", rank, targets_,
                                                  static_cast<std::uint64_t>(number)));
      device_->wait(next);
    }
    return entry->second;
  }

  std::string backend_;
  ModelConfig model_;
  std::vector<std::string> targets_;
  int threads_;
  Bytes kv_bytes_per_token_ = 0;
  std::vector<BlockIndex> blocks_;
  std::vector<std::int32_t> tokens_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Device> device_;
  DeviceResult result_;
  std::map<std::array<int, 3>, AdapterId> adapters_;  // rank, number, width
  std::unique_ptr<CoreTime> core_;
  Workload disk_;
  std::unique_ptr<AdapterSource> folder_;
};

}  // namespace

std::unique_ptr<CalibrationTarget> make_calibration(const std::string& backend,
                                                    const ModelConfig& model,
                                                    const std::vector<std::string>& targets,
                                                    int threads, bool quick) {
  return std::make_unique<EngineCalibration>(backend, model, targets, threads, quick);
}

}  // namespace servelab

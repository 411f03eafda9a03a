// The digital twin's backend. Each replica has one host link, on which loads and swaps queue, and
// one compute stream.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/serve/backend.h"

namespace servelab {
namespace {

class TwinBackend final : public Backend {
 public:
  TwinBackend(Timeline* timeline, const CostModel* cost, std::size_t replicas)
      : timeline_(timeline), cost_(cost), replicas_(replicas) {}

  const char* unsupported(const StepPlan& plan) const override {
    if (plan.device_share != 1.0) return "the twin does not model SM shares yet";
    if (plan.model != ModelId{}) return "the twin runs one model per replica so far";
    for (const Slice& slice : plan.slices) {
      if (slice.lora == LoraSite::kDevice) continue;
      if (slice.lora == LoraSite::kRemote) return "the twin knows no LoRA server yet";
      if (const char* why = cost_->no_host_lora()) return why;
    }
    return nullptr;
  }

  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost() const override { return *cost_; }

  void load(ReplicaId replica, AdapterId adapter, Bytes bytes) override {
    ReplicaState& state = replicas_[index(replica)];
    const TimeNs start = std::max(timeline_->now(), state.link_free);
    state.link_free = start + std::max<TimeNs>(1, cost_->host_to_device(bytes));
    state.loading.emplace_back(adapter, state.link_free);
    timeline_->post(state.link_free, EventKind::kLoadDone,
                    pack_subject(replica, static_cast<std::uint32_t>(adapter)));
  }

  void submit(const StepWork& work) override {
    ReplicaState& state = replicas_[index(work.replica)];
    const TimeNs now = timeline_->now();
    TimeNs start = now;
    if (!state.loading.empty()) start = ready_time(&state, work, now);
    StepTiming& timing = state.timing;
    timing.load_wait = start - now;
    timing.switching = 0;
    if (work.unmerge != kBaseModel) timing.switching += cost_->unmerge(work.unmerge_rank);
    if (work.merge != kBaseModel) timing.switching += cost_->merge(work.merge_rank);
    timing.cost = cost_->step(work.shape, work.exec, work.kernel);
    if (work.shape.host_tokens > 0) {
      timing.cost.lora += cost_->host_lora(work.shape, work.host_copy);
    }
    timing.swap = 0;
    if (work.swap_in + work.swap_out > 0) {
      const TimeNs link_start = std::max(start, state.link_free);
      const TimeNs copy = swap_time(work);
      state.link_free = link_start + copy;
      timing.swap = link_start - start + not_hidden(copy, timing.cost.total());
    }
    SL_CHECK(timing.busy() > 0, "a step takes time");
    timeline_->post(start + timing.busy(), EventKind::kStepDone,
                    pack_subject(work.replica, work.slot));
  }

  StepTiming collect(ReplicaId replica, std::uint32_t /*slot*/) override {
    return replicas_[index(replica)].timing;
  }

 private:
  struct ReplicaState {
    TimeNs link_free = 0;
    std::vector<std::pair<AdapterId, TimeNs>> loading;  // with the time each is ready
    StepTiming timing;
  };

  TimeNs swap_time(const StepWork& work) const {
    TimeNs time = 0;
    if (work.swap_out > 0) time += cost_->device_to_host(work.swap_out);
    if (work.swap_in > 0) time += cost_->host_to_device(work.swap_in);
    return time;
  }

  // What copying adds to a step when its layers follow the layers' copies: two stages in a pipeline
  // of equal pieces take copy + (pieces - 1) * the longer of both + compute, each of one piece.
  TimeNs not_hidden(TimeNs copy, TimeNs compute) const {
    const int pieces = cost_->swap_pieces();
    if (pieces <= 1) return copy;
    const TimeNs longer = std::max(copy, compute) / pieces;
    const TimeNs whole = copy / pieces + (pieces - 1) * longer + compute / pieces;
    return std::max<TimeNs>(0, whole - compute);
  }

  // When every adapter of the step, and one to be merged, is on the device.
  static TimeNs ready_time(ReplicaState* state, const StepWork& work, TimeNs now) {
    std::erase_if(state->loading, [now](const auto& load) { return load.second <= now; });
    TimeNs ready = now;
    for (const auto& [adapter, at] : state->loading) {
      if (adapter == work.merge ||
          std::find(work.adapters.begin(), work.adapters.end(), adapter) != work.adapters.end()) {
        ready = std::max(ready, at);
      }
    }
    return ready;
  }

  Timeline* timeline_;
  const CostModel* cost_;
  std::vector<ReplicaState> replicas_;
};

}  // namespace

std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, const CostModel* cost,
                                           std::size_t replicas) {
  return std::make_unique<TwinBackend>(timeline, cost, replicas);
}

}  // namespace servelab

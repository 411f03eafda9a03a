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
  TwinBackend(Timeline* timeline, CostModels costs)
      : timeline_(timeline), make_cost_(std::move(costs)) {}

  void attach(ReplicaId replica, const ReplicaLayout& layout) override {
    SL_CHECK(index(replica) == replicas_.size(), "replicas attach in order");
    ReplicaState& state = replicas_.emplace_back();
    for (const UnitModel& entry : layout.models) {
      if (index(entry.model) >= state.costs.size()) state.costs.resize(index(entry.model) + 1);
      state.costs[index(entry.model)] =
          &make_cost_(entry.model, static_cast<int>(layout.devices.size()));
    }
    state.link = &cost(replica, layout.models.front().model);
  }

  const char* unsupported(ReplicaId replica, const StepPlan& plan) const override {
    if (plan.device_share != 1.0) return "the twin does not model SM shares yet";
    for (const Slice& slice : plan.slices) {
      if (slice.lora == LoraSite::kDevice) continue;
      if (slice.lora == LoraSite::kRemote) return "the twin knows no LoRA server yet";
      if (const char* why = cost(replica, plan.model).no_host_lora()) return why;
    }
    return nullptr;
  }

  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost(ReplicaId replica, ModelId model) const override {
    return *replicas_[index(replica)].costs[index(model)];
  }

  void load(ReplicaId replica, AdapterId adapter, Bytes bytes) override {
    begin_load(replica, load_subject(adapter), bytes);
  }
  void load(ReplicaId replica, ModelId model, Bytes bytes) override {
    begin_load(replica, load_subject(model), bytes);
  }

  void submit(const StepWork& work) override {
    ReplicaState& state = replicas_[index(work.replica)];
    const CostModel& cost = *state.costs[index(work.model)];
    const TimeNs now = timeline_->now();
    TimeNs start = now;
    if (!state.loading.empty()) start = ready_time(&state, work, now);
    StepTiming& timing = state.timing;
    timing.load_wait = start - now;
    timing.switching = 0;
    if (work.unmerge != kBaseModel) timing.switching += cost.unmerge(work.unmerge_rank);
    if (work.merge != kBaseModel) timing.switching += cost.merge(work.merge_rank);
    timing.cost = cost.step(work.shape, work.mode.exec, work.mode.kernel);
    if (work.shape.host_tokens > 0) {
      timing.cost.lora += cost.host_lora(work.shape, work.mode.host_copy);
    }
    timing.swap = 0;
    if (work.swap_in + work.swap_out > 0) {
      const TimeNs link_start = std::max(start, state.link_free);
      const TimeNs copy = swap_time(cost, work);
      state.link_free = link_start + copy;
      timing.swap = link_start - start + not_hidden(cost, copy, timing.cost.total());
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
    std::vector<const CostModel*> costs;  // by model; null: not served here
    const CostModel* link = nullptr;      // any of them knows it
    TimeNs link_free = 0;
    std::vector<std::pair<std::uint32_t, TimeNs>> loading;  // what, and when it is ready
    StepTiming timing;
  };

  void begin_load(ReplicaId replica, std::uint32_t what, Bytes bytes) {
    ReplicaState& state = replicas_[index(replica)];
    const TimeNs start = std::max(timeline_->now(), state.link_free);
    state.link_free = start + std::max<TimeNs>(1, state.link->host_to_device(bytes));
    state.loading.emplace_back(what, state.link_free);
    timeline_->post(state.link_free, EventKind::kLoadDone, pack_subject(replica, what));
  }

  static TimeNs swap_time(const CostModel& cost, const StepWork& work) {
    TimeNs time = 0;
    if (work.swap_out > 0) time += cost.device_to_host(work.swap_out);
    if (work.swap_in > 0) time += cost.host_to_device(work.swap_in);
    return time;
  }

  // What copying adds to a step when its layers follow the layers' copies: two stages in a pipeline
  // of equal pieces take copy + (pieces - 1) * the longer of both + compute, each of one piece.
  static TimeNs not_hidden(const CostModel& cost, TimeNs copy, TimeNs compute) {
    const int pieces = cost.swap_pieces();
    if (pieces <= 1) return copy;
    const TimeNs longer = std::max(copy, compute) / pieces;
    const TimeNs whole = copy / pieces + (pieces - 1) * longer + compute / pieces;
    return std::max<TimeNs>(0, whole - compute);
  }

  // When the step's model, its adapters, and one to be merged, are on the device.
  static TimeNs ready_time(ReplicaState* state, const StepWork& work, TimeNs now) {
    std::erase_if(state->loading, [now](const auto& load) { return load.second <= now; });
    TimeNs ready = now;
    for (const auto& [what, at] : state->loading) {
      const auto adapter = static_cast<AdapterId>(what);
      const bool needed = is_model(what) ? loaded_model(what) == work.model
                                         : adapter == work.merge ||
                                               std::find(work.adapters.begin(), work.adapters.end(),
                                                         adapter) != work.adapters.end();
      if (needed) ready = std::max(ready, at);
    }
    return ready;
  }

  Timeline* timeline_;
  CostModels make_cost_;
  std::vector<ReplicaState> replicas_;
};

}  // namespace

std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, CostModels costs) {
  return std::make_unique<TwinBackend>(timeline, std::move(costs));
}

std::unique_ptr<Backend> make_twin_backend(Timeline* timeline, const CostModel* cost) {
  return make_twin_backend(timeline, [cost](ModelId, int) -> const CostModel& { return *cost; });
}

class Twin final : public VirtualBackend {
 public:
  std::string summary() const override { return "virtual time, from a cost model"; }
  std::unique_ptr<Backend> make(Timeline* timeline, CostModels costs) const override {
    return make_twin_backend(timeline, std::move(costs));
  }
};

}  // namespace servelab

SERVELAB_BACKEND("twin", Twin)

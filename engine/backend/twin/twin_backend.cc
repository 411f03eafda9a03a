// The digital twin's backend. Each replica has one host link, on which loads and swaps queue, and
// one compute stream.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/backend/twin/layered_step.h"
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
    state.load_path = layout.load_path;
    state.model_load_path = layout.model_load_path;
    for (const LoadPath path : {state.load_path, state.model_load_path}) {
      if (const char* why = state.link->no_load_path(path)) throw SpecError(why);
    }
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
  bool reads_requests() const override { return false; }
  const CostModel& cost(ReplicaId replica, ModelId model) const override {
    return *replicas_[index(replica)].costs[index(model)];
  }

  void load(ReplicaId replica, AdapterId adapter, Bytes bytes) override {
    ReplicaState& state = replicas_[index(replica)];
    begin_load(replica, load_subject(adapter), state.link->load(state.load_path, bytes));
  }
  void load(ReplicaId replica, ModelId model, Bytes bytes) override {
    ReplicaState& state = replicas_[index(replica)];
    begin_load(replica, load_subject(model), state.link->load_model(state.model_load_path, bytes));
  }

  bool load_is_done(ReplicaId replica, std::uint32_t what) override {
    for (const LinkLoad& load : replicas_[index(replica)].loading) {
      if (load.what != what || load.ready <= timeline_->now()) continue;
      timeline_->post(load.ready, EventKind::kLoadDone, pack_subject(replica, what));
      return false;
    }
    return true;
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
    if (!std::exchange(state.has_begun, true)) timing.cost.host += cost.first_step();
    timing.host_layers = 0;
    timing.swap = 0;
    if (work.swap_in + work.swap_out > 0) {
      const TimeNs link_start = std::max(start, state.link_free);
      const TimeNs copy = swap_time(cost, work);
      state.link_free = link_start + copy;
      timing.swap = link_start - start + not_hidden(cost, copy, timing.cost.total());
    }
    if (work.shape.host_tokens > 0 ||
        (!state.loading.empty() && state.load_path == LoadPath::kLayers)) {
      state.layered.run(work, cost, state.load_path, start, &state.loading, &timing);
      if (!state.loading.empty()) {
        state.link_free = std::max(state.link_free, state.loading.back().ready);
      }
    }
    SL_CHECK(timing.busy() > 0, "a step takes time");
    timeline_->post(now + timing.load_wait + timing.busy(), EventKind::kStepDone,
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
    bool has_begun = false;  // its first step
    LoadPath load_path = LoadPath::kPinned;
    LoadPath model_load_path = LoadPath::kPinned;
    std::vector<LinkLoad> loading;  // in the order in which they take the link
    LayeredStep layered;
    StepTiming timing;
  };

  void begin_load(ReplicaId replica, std::uint32_t what, TimeNs duration) {
    ReplicaState& state = replicas_[index(replica)];
    const TimeNs start = std::max(timeline_->now(), state.link_free);
    state.link_free = start + std::max<TimeNs>(1, duration);
    state.loading.push_back({what, start, state.link_free});
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
    const int pieces = cost.copy_pieces();
    if (pieces <= 1) return copy;
    const TimeNs longer = std::max(copy, compute) / pieces;
    const TimeNs whole = copy / pieces + (pieces - 1) * longer + compute / pieces;
    return std::max<TimeNs>(0, whole - compute);
  }

  // When the step may begin: its model and one to be merged are on the device, and its adapters,
  // unless its layers wait for theirs; or all loads are done that make the serving loop stand
  // still.
  static TimeNs ready_time(ReplicaState* state, const StepWork& work, TimeNs now) {
    std::erase_if(state->loading, [now](const LinkLoad& load) { return load.ready <= now; });
    TimeNs ready = now;
    for (const LinkLoad& load : state->loading) {
      const auto adapter = static_cast<AdapterId>(load.what);
      const bool waits_whole = state->load_path != LoadPath::kLayers;
      const bool needed =
          is_model(load.what)
              ? loaded_model(load.what) == work.model
              : state->load_path == LoadPath::kRebuild || adapter == work.merge ||
                    (waits_whole && std::find(work.adapters.begin(), work.adapters.end(),
                                              adapter) != work.adapters.end());
      if (needed) ready = std::max(ready, load.ready);
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

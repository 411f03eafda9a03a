// The backend that computes nothing, not even a cost: what a run on it takes is the harness itself.
#include <algorithm>
#include <vector>

#include "engine/core/check.h"
#include "engine/serve/backend.h"

namespace servelab {
namespace {

// What policies that ask for costs are told: everything takes the same time.
class FlatCost final : public CostModel {
 public:
  explicit FlatCost(TimeNs each) : each_(each) {}
  StepCost step(const BatchShape& /*batch*/, Exec /*exec*/, LoraKernel /*kernel*/) const override {
    return StepCost{.dense = each_};
  }
  TimeNs merge(int /*rank*/) const override { return each_; }
  TimeNs unmerge(int /*rank*/) const override { return each_; }
  TimeNs host_to_device(Bytes /*bytes*/) const override { return each_; }
  TimeNs device_to_host(Bytes /*bytes*/) const override { return each_; }

 private:
  TimeNs each_;
};

class NullBackend final : public Backend {
 public:
  NullBackend(Timeline* timeline, TimeNs each) : timeline_(timeline), each_(each), cost_(each) {
    SL_CHECK(each > 0, "a step takes time");
  }

  void attach(ReplicaId replica, const ReplicaLayout& /*layout*/) override {
    SL_CHECK(index(replica) == replicas_.size(), "replicas attach in order");
    replicas_.emplace_back();
  }
  const char* unsupported(ReplicaId /*replica*/, const StepPlan& /*plan*/) const override {
    return nullptr;
  }
  int max_steps_in_flight() const override { return 1; }
  bool reads_requests() const override { return false; }
  const CostModel& cost(ReplicaId /*replica*/, ModelId /*model*/) const override { return cost_; }

  void load(ReplicaId replica, AdapterId adapter, Bytes /*bytes*/) override {
    begin_load(replica, load_subject(adapter));
  }
  void load(ReplicaId replica, ModelId model, Bytes /*bytes*/) override {
    begin_load(replica, load_subject(model));
  }

  // A step waits for every load under way at its replica, without asking which it needs.
  void submit(const StepWork& work) override {
    ReplicaState& state = replicas_[index(work.replica)];
    const TimeNs now = timeline_->now();
    const TimeNs start = std::max(now, state.loads_end);
    const int switches = (work.merge != kBaseModel ? 1 : 0) + (work.unmerge != kBaseModel ? 1 : 0);
    state.timing.load_wait = start - now;
    state.timing.switching = switches * each_;
    state.timing.swap = work.swap_in + work.swap_out > 0 ? each_ : 0;
    state.timing.cost.dense = each_;
    timeline_->post(start + state.timing.busy(), EventKind::kStepDone,
                    pack_subject(work.replica, work.slot));
  }

  StepTiming collect(ReplicaId replica, std::uint32_t /*slot*/) override {
    return replicas_[index(replica)].timing;
  }

 private:
  struct ReplicaState {
    TimeNs loads_end = 0;
    StepTiming timing;
  };

  // Loads of a replica do not queue: each ends on its own.
  void begin_load(ReplicaId replica, std::uint32_t what) {
    const TimeNs end = timeline_->now() + each_;
    replicas_[index(replica)].loads_end = end;
    timeline_->post(end, EventKind::kLoadDone, pack_subject(replica, what));
  }

  Timeline* timeline_;
  TimeNs each_;
  FlatCost cost_;
  std::vector<ReplicaState> replicas_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(Timeline* timeline, TimeNs each) {
  return std::make_unique<NullBackend>(timeline, each);
}

class Null final : public VirtualBackend {
 public:
  std::string summary() const override { return "computes nothing: every step takes the same"; }
  void fields(ParamFields& f) override {
    f.add("null_time_s", &time_s_,
          "what each step, load, merge and swap takes on the null backend, in virtual time")
        .range(1e-9, 1e6);
  }
  std::unique_ptr<Backend> make(Timeline* timeline, CostModels /*costs*/) const override {
    return make_null_backend(timeline, from_seconds(time_s_));
  }
  bool uses_costs() const override { return false; }

 private:
  double time_s_ = 0.01;
};

}  // namespace servelab

SERVELAB_BACKEND("null", Null)

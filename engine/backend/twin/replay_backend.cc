// Replays a recorded run in virtual time: steps and loads end when they ended then. With
// ReplayTimeline it shows that a real run's decisions follow from its stamps alone.
#include "engine/core/check.h"
#include "engine/serve/backend.h"

namespace servelab {
namespace {

class ReplayBackend final : public Backend {
 public:
  ReplayBackend(Timeline* timeline, const CostModel* cost, const std::vector<StepTiming>& timings)
      : timeline_(timeline), cost_(cost), timings_(timings) {}

  const char* unsupported(const StepPlan& /*plan*/) const override { return nullptr; }
  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost() const override { return *cost_; }

  void load(ReplicaId replica, AdapterId adapter, Bytes /*bytes*/) override {
    timeline_->post(timeline_->now(), EventKind::kLoadDone,
                    pack_subject(replica, static_cast<std::uint32_t>(adapter)));
  }
  void submit(const StepWork& work) override {
    timeline_->post(timeline_->now(), EventKind::kStepDone, pack_subject(work.replica, work.slot));
  }
  StepTiming collect(ReplicaId /*replica*/, std::uint32_t /*slot*/) override {
    if (next_ == timings_.size()) throw SpecError("the replay ran more steps than were recorded");
    return timings_[next_++];
  }

 private:
  Timeline* timeline_;
  const CostModel* cost_;
  const std::vector<StepTiming>& timings_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_replay_backend(Timeline* timeline, const CostModel* cost,
                                             const std::vector<StepTiming>& timings) {
  return std::make_unique<ReplayBackend>(timeline, cost, timings);
}

}  // namespace servelab

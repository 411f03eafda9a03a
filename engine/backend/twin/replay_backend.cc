// Replays a recorded run in virtual time: steps and loads end when they ended then. With
// ReplayTimeline it shows that a real run's decisions follow from its stamps alone.
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/serve/backend.h"

namespace servelab {
namespace {

class ReplayBackend final : public Backend {
 public:
  ReplayBackend(Timeline* timeline, CostModels costs, const std::vector<StepTiming>& timings)
      : timeline_(timeline), costs_(std::move(costs)), timings_(timings) {}

  void attach(ReplicaId /*replica*/, const ReplicaLayout& layout) override {
    devices_.push_back(static_cast<int>(layout.devices.size()));
  }
  const char* unsupported(ReplicaId /*replica*/, const StepPlan& /*plan*/) const override {
    return nullptr;
  }
  int max_steps_in_flight() const override { return 1; }
  const CostModel& cost(ReplicaId replica, ModelId model) const override {
    return costs_(model, devices_[index(replica)]);
  }

  void load(ReplicaId replica, AdapterId adapter, Bytes /*bytes*/) override {
    timeline_->post(timeline_->now(), EventKind::kLoadDone,
                    pack_subject(replica, load_subject(adapter)));
  }
  void load(ReplicaId replica, ModelId model, Bytes /*bytes*/) override {
    timeline_->post(timeline_->now(), EventKind::kLoadDone,
                    pack_subject(replica, load_subject(model)));
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
  CostModels costs_;
  std::vector<int> devices_;  // by replica
  const std::vector<StepTiming>& timings_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_replay_backend(Timeline* timeline, CostModels costs,
                                             const std::vector<StepTiming>& timings) {
  return std::make_unique<ReplayBackend>(timeline, std::move(costs), timings);
}

}  // namespace servelab

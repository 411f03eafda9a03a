// Serves one adapter per step: that of the oldest unfinished request, first come, first served.
#ifndef SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_
#define SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_

#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {

class OldestAdapterPolicy final : public ReplicaPolicy {
 public:
  explicit OldestAdapterPolicy(PreemptMode mode)
      : builder_(StepBuilder::Options{.preempt_mode = mode, .evict_paused = true}) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    oldest_requests(view, 1, &batch_);
    if (batch_.empty()) return false;
    out->exec = Exec::kMerged;
    out->merged = view.request(batch_.front()).adapter();
    builder_.begin(view, out);
    oldest_of_adapter(view, out->merged, view.limits().max_batch, &batch_);
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  StepBuilder builder_;
  std::vector<RequestId> batch_;  // reused
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_

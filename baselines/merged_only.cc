// dLoRA's strawman Merged-only (dLoRA 7.3): each step serves the adapter of the oldest unfinished
// request, folded into the weights; everyone else's KV waits.
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class MergedOnlyPolicy final : public ReplicaPolicy {
 public:
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
  StepBuilder builder_{
      StepBuilder::Options{.preempt_mode = PreemptMode::kSwap, .evict_paused = true}};
  std::vector<RequestId> batch_;
};

}  // namespace

class MergedOnlyTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "dLoRA's strawman: the oldest request's adapter, always merged";
  }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.3"; }
  Capabilities capabilities() const override { return {.merges = true}; }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<MergedOnlyPolicy>();
  }
};

}  // namespace servelab

SERVELAB_TECHNIQUE("merged-only", MergedOnlyTechnique)

// Serves one adapter per step: that of the oldest unfinished request, first come, first served.
#ifndef SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_
#define SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_

#include <string>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {

class OldestAdapterPolicy final : public ReplicaPolicy {
 public:
  struct Options {
    PreemptMode preempt_mode = PreemptMode::kRecompute;
    bool merge = true;  // else LoRA is computed beside the weights
    // The batch is what stands before the first request of another adapter in the queue, and not
    // every request of the oldest one's adapter.
    bool prefix = false;
  };
  explicit OldestAdapterPolicy(const Options& options)
      : options_(options),
        builder_(StepBuilder::Options{.preempt_mode = options.preempt_mode, .evict_paused = true}) {
  }

  bool plan(const ReplicaView& view, StepPlan* out) override {
    batch_of_oldest(view, &RequestView::adapter, options_.prefix, &batch_);
    if (batch_.empty()) return false;
    const AdapterId adapter = view.request(batch_.front()).adapter();
    out->exec = options_.merge ? Exec::kMerged : Exec::kUnmerged;
    out->merged = options_.merge ? adapter : kBaseModel;
    out->kernel = LoraKernel::kSgmv;  // one segment: a plain LoRA product
    builder_.begin(view, out);
    out->repeats = StepPlan::kAlways;
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  Options options_;
  StepBuilder builder_;
  std::vector<RequestId> batch_;  // reused
};

// The `batch` parameter of techniques that serve one adapter per step.
inline void add_batch_field(ParamFields& f, std::string* batch) {
  f.add("batch", batch,
        "whom a step serves: every request of the oldest one's adapter, or the prefix of the queue "
        "before the first request of another adapter, as dLoRA's artifact runs its baselines")
      .one_of({"adapter", "prefix"});
}

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_OLDEST_ADAPTER_POLICY_H_

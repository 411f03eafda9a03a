// dLoRA's strawman Merged-only (dLoRA 7.3): each step serves the adapter of the oldest unfinished
// request, folded into the weights; everyone else's KV waits.
#include "baselines/shared/oldest_adapter_policy.h"
#include "engine/serve/policy.h"

namespace servelab {

class MergedOnlyTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "dLoRA's strawman: the oldest request's adapter, always merged";
  }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.3"; }
  Capabilities capabilities() const override { return {.merges = true}; }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<OldestAdapterPolicy>(
        OldestAdapterPolicy::Options{.preempt_mode = PreemptMode::kSwap});
  }
};

}  // namespace servelab

SERVELAB_TECHNIQUE("merged-only", MergedOnlyTechnique)

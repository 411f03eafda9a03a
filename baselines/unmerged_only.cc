// dLoRA's strawman Unmerged-only (dLoRA 7.3): always the FCFS batch, never merged.
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class UnmergedOnlyPolicy final : public ReplicaPolicy {
 public:
  explicit UnmergedOnlyPolicy(LoraKernel kernel) : kernel_(kernel) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = kernel_;
    builder_.begin(view, out);
    out->repeats = StepPlan::kAlways;
    return add_oldest(view, view.limits().max_batch, &builder_, &batch_) > 0;
  }

 private:
  LoraKernel kernel_;
  StepBuilder builder_{
      StepBuilder::Options{.preempt_mode = PreemptMode::kSwap, .evict_paused = true}};
  std::vector<RequestId> batch_;
};

}  // namespace

class UnmergedOnlyTechnique final : public Technique {
 public:
  std::string summary() const override { return "dLoRA's strawman: FCFS, always unmerged"; }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.3"; }
  Capabilities capabilities() const override { return {.mixed_batches = true}; }
  void fields(ParamFields& f) override { add_kernel_field(f, &kernel_); }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<UnmergedOnlyPolicy>(kernel_from(kernel_));
  }

 private:
  std::string kernel_ = "einsum";
};

}  // namespace servelab

SERVELAB_TECHNIQUE("unmerged-only", UnmergedOnlyTechnique)

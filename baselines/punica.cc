// Punica (MLSys '24) 5: FCFS, unmerged, adapters loaded on demand while other requests go on; at
// most `prefills_per_step` prompts join the decodes of a step.
#include <vector>

#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class PunicaPolicy final : public ReplicaPolicy {
 public:
  PunicaPolicy(LoraKernel kernel, int prefills) : kernel_(kernel), prefills_(prefills) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = kernel_;
    builder_.begin(view, out);
    int prefills = prefills_;
    builder_.add_running();
    for (const RequestId id : view.waiting()) {
      if (prefills == 0 || builder_.full() || !out->preempt.empty()) break;
      const AdapterId adapter = view.request(id).adapter();
      if (!builder_.acquire(adapter)) break;
      // Its adapter is on its way: the others do not wait for it.
      if (adapter != kBaseModel && !view.adapters().resident(adapter) && !idle(view)) continue;
      if (builder_.add(id) != StepBuilder::Added::kYes) break;
      --prefills;
    }
    // Who finds no room now finds none while others only grow.
    out->repeats = StepPlan::kAlways;
    out->repeats_when_full = builder_.full();
    return out->runs() || !out->load.empty();
  }

 private:
  static bool idle(const ReplicaView& view) { return view.running().empty(); }

  LoraKernel kernel_;
  int prefills_;
  StepBuilder builder_{StepBuilder::Options{}};
};

}  // namespace

class PunicaTechnique final : public Technique {
 public:
  std::string summary() const override { return "FCFS, unmerged SGMV, on-demand adapter loads"; }
  std::string paper() const override { return "Punica (MLSys '24) 4, 5"; }
  Capabilities capabilities() const override { return {.mixed_batches = true}; }
  void fields(ParamFields& f) override {
    add_kernel_field(f, &kernel_);
    f.add("prefills_per_step", &prefills_, "prompts that may join the decodes of a step")
        .range(1, 4096);
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<PunicaPolicy>(kernel_from(kernel_), prefills_);
  }
  std::string default_cluster_policy() const override { return "fullest-fit"; }

 private:
  std::string kernel_ = "sgmv";
  int prefills_ = 1;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("punica", PunicaTechnique)

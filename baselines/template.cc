// A complete small technique to start from: copy this file, rename the class and the id on the last
// line, rebuild. It serves requests first come, first served, any mix of adapters in one step.
//
// Here to change: which requests go into a step (plan), in what order, merged or not.
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class TemplatePolicy final : public ReplicaPolicy {
 public:
  explicit TemplatePolicy(int max_batch) : max_batch_(max_batch) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    builder_.begin(view, out, max_batch_);
    oldest_requests(view, max_batch_, &batch_);
    out->repeats = StepPlan::kAlways;
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  int max_batch_;
  StepBuilder builder_{StepBuilder::Options{.evict_paused = true}};
  std::vector<RequestId> batch_;  // reused
};

}  // namespace

class TemplateTechnique final : public Technique {
 public:
  std::string summary() const override { return "first come, first served, unmerged"; }
  std::string paper() const override { return "none: a starting point for your own"; }
  Capabilities capabilities() const override { return {.mixed_batches = true}; }
  void fields(ParamFields& f) override {
    f.add("max_batch", &max_batch_, "requests in one step, below the engine's limit")
        .range(1, 4096);
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<TemplatePolicy>(max_batch_);
  }

 private:
  int max_batch_ = 16;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("template", TemplateTechnique)

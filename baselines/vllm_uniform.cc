// vLLM with uniform allocation (dLoRA 7.1): every adapter is served as a whole model of its own.
// Models are split evenly over the replicas; a replica holds `resident_models` of them and swaps
// whole models over the host link, least recently used first. One model per batch, FCFS.
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class VllmUniformPolicy final : public ReplicaPolicy {
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
  StepBuilder builder_{StepBuilder::Options{.evict_paused = true}};
  std::vector<RequestId> batch_;
};

}  // namespace

class VllmUniformTechnique final : public Technique {
 public:
  std::string summary() const override { return "each adapter as a whole model, LRU model swap"; }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.1"; }
  Capabilities capabilities() const override { return {}; }
  void fields(ParamFields& f) override {
    f.add("resident_models", &resident_models_, "whole models on the device at once (4 of 7B)")
        .range(1, 1024);
  }
  void configure(EngineSettings* engine) const override {
    engine->adapter_form = AdapterForm::kWholeModel;
    engine->adapter_slots = resident_models_;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<VllmUniformPolicy>();
  }
  std::string default_cluster_policy() const override { return "by-adapter"; }

 private:
  int resident_models_ = 4;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("vllm-uniform", VllmUniformTechnique)

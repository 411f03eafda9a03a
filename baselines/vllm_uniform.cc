// vLLM with uniform allocation (dLoRA 7.1): every adapter is served as a whole model of its own.
// Models are split evenly over the replicas; a replica holds `resident_models` of them and swaps
// whole models over the host link, least recently used first. One model per batch, FCFS.
#include <string>

#include "baselines/shared/oldest_adapter_policy.h"
#include "engine/serve/policy.h"

namespace servelab {

class VllmUniformTechnique final : public Technique {
 public:
  std::string summary() const override { return "each adapter as a whole model, LRU model swap"; }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.1"; }
  Capabilities capabilities() const override { return {}; }
  void fields(ParamFields& f) override {
    f.add("resident_models", &resident_models_, "whole models on the device at once (4 of 7B)")
        .range(1, 1024);
    add_batch_field(f, &batch_);
  }
  void configure(EngineSettings* engine) const override {
    engine->adapter_form = AdapterForm::kWholeModel;
    engine->adapter_slots = resident_models_;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<OldestAdapterPolicy>(
        OldestAdapterPolicy::Options{.prefix = batch_ == "prefix"});
  }
  std::string default_cluster_policy() const override { return "by-adapter"; }

 private:
  int resident_models_ = 4;
  std::string batch_ = "adapter";
};

}  // namespace servelab

SERVELAB_TECHNIQUE("vllm-uniform", VllmUniformTechnique)

// vLLM with uniform allocation (dLoRA 7.1): every adapter is served as a whole model of its own.
// Models are split evenly over the replicas; a replica holds `resident_models` of them and swaps
// whole models over the host link, least recently used first. One model per batch, FCFS.
#include <algorithm>
#include <string>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/oldest_adapter_policy.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class UniformPolicy final : public ReplicaPolicy {
 public:
  explicit UniformPolicy(bool prefix) : prefix_(prefix), builder_(StepBuilder::Options{}) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    oldest_requests(view, prefix_ ? view.limits().max_batch : 1, &batch_);
    if (batch_.empty()) return false;
    const ModelId model = view.request(batch_.front()).model();
    if (!hold(view, model, out)) return false;
    out->model = model;
    out->exec = Exec::kMerged;  // with nothing: a plain model has no LoRA to compute
    builder_.begin(view, out);
    if (prefix_) {
      batch_.erase(std::find_if(batch_.begin(), batch_.end(),
                                [&](RequestId id) { return view.request(id).model() != model; }),
                   batch_.end());
    } else {
      oldest_of_model(view, model, view.limits().max_batch, &batch_);
    }
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  // Makes sure that the model is on the device when the step runs.
  static bool hold(const ReplicaView& view, ModelId model, StepPlan* out) {
    const ModelPool& pool = view.models();
    if (pool.residency(model) != Residency::kAbsent) return true;
    if (pool.held() == pool.slots()) {
      const ModelId victim = least_needed(pool);
      if (victim == ModelPool::kNone) return false;
      out->evict_models.push_back(victim);
    }
    out->load_models.push_back(model);
    return true;
  }

  // The least recently used, of those that no paused request uses if there are any.
  static ModelId least_needed(const ModelPool& pool) {
    ModelId paused = ModelPool::kNone;
    for (ModelId id = pool.oldest(); id != ModelPool::kNone; id = pool.newer(id)) {
      if (!pool.evictable(id)) continue;
      if (pool.users(id) == 0) return id;
      if (paused == ModelPool::kNone) paused = id;
    }
    return paused;
  }

  bool prefix_;
  StepBuilder builder_;
  std::vector<RequestId> batch_;  // reused
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
    add_batch_field(f, &batch_);
  }
  void configure(EngineSettings* engine) const override {
    engine->adapters_as_models = true;
    engine->model_slots = resident_models_;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<UniformPolicy>(batch_ == "prefix");
  }
  std::string default_cluster_policy() const override { return "by-adapter"; }

 private:
  int resident_models_ = 4;
  std::string batch_ = "adapter";
};

}  // namespace servelab

SERVELAB_TECHNIQUE("vllm-uniform", VllmUniformTechnique)

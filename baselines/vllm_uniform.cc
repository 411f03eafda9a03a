// vLLM with uniform allocation (dLoRA 7.1): every adapter is served as a whole model of its own.
// Models are split evenly over the replicas; a replica holds `resident_models` of them and swaps
// whole models over the host link, least recently used first: from pinned memory, where each has a
// copy, or as frameworks move modules (`model_copies: pageable`, the artifact's `.to("cpu")` and
// `.to("cuda")`), back to pageable memory and from it. One model per batch, FCFS. Where all
// of a replica's models stay on its devices (`resident_models: 0`) this is HF-PEFT as CaraServe's
// Table 1 means it.
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
    batch_of_oldest(view, &RequestView::model, prefix_, &batch_);
    if (batch_.empty()) return false;
    const ModelId model = view.request(batch_.front()).model();
    if (!hold(view, model, out)) return false;
    out->model = model;
    out->exec = Exec::kMerged;  // with nothing: a plain model has no LoRA to compute
    builder_.begin(view, out);
    out->repeats = StepPlan::kAlways;
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  // Makes sure that the model is on the device when the step runs.
  static bool hold(const ReplicaView& view, ModelId model, StepPlan* out) {
    const ModelPool& pool = view.models();
    if (pool.slots() == 0) return true;  // all of them are always there
    if (pool.residency(model) != Residency::kAbsent) return true;
    if (pool.held() == pool.slots()) {
      const ModelId victim = least_needed(pool, true, [](ModelId) { return false; });
      if (victim == ModelPool::kNone) return false;
      out->evict_models.push_back(victim);
    }
    out->load_models.push_back(model);
    return true;
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
  Capabilities capabilities() const override { return {.cold_start_free = resident_models_ == 0}; }
  void fields(ParamFields& f) override {
    f.add("resident_models", &resident_models_,
          "whole models on a replica's devices at once (4 of 7B); 0: all of its own, always")
        .range(0, 1024);
    f.add("model_copies", &model_copies_,
          "how models are swapped: from pinned memory, or to pageable memory and from it, as "
          "dLoRA's artifact does it")
        .one_of({"pinned", "pageable"});
    f.add(
        "preloaded", &preloaded_,
        "the first models of a replica are on its devices from the start, as in dLoRA's artifact; "
        "in virtual time only");
    add_batch_field(f, &batch_);
  }
  void configure(EngineSettings* engine) const override {
    engine->adapters_as_models = true;
    engine->model_slots = resident_models_;
    engine->preloaded_models = preloaded_;
    if (model_copies_ == "pageable") engine->model_load_path = LoadPath::kPageable;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<UniformPolicy>(batch_ == "prefix");
  }
  std::string default_cluster_policy() const override { return "by-adapter"; }

 private:
  int resident_models_ = 4;
  std::string batch_ = "adapter";
  std::string model_copies_ = "pinned";
  bool preloaded_ = false;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("vllm-uniform", VllmUniformTechnique)

// vLLM's LoRA serving (v0.8.5, as the placement paper describes it in 5.1.4 and its twin repeats):
// A_max adapter slots, FCFS with chunked prefill. A waiting request whose adapter has no slot,
// while every slot is in use, is skipped, and the scan of the queue goes on: the scheduler's cost
// when slots are few and adapters many. That cost is the cost model's to charge: here whole
// adapters are skipped, so that a step costs us the same however many requests wait for a slot. Out
// of blocks, the latest arrival is preempted and recomputed.
#include <vector>

#include "baselines/shared/held_waiting.h"
#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class VllmLoraPolicy final : public ReplicaPolicy {
 public:
  explicit VllmLoraPolicy(LoraKernel kernel) : kernel_(kernel) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = kernel_;
    builder_.begin(view, out);
    builder_.add_running();
    if (out->preempt.empty()) admit(view);
    out->repeats = StepPlan::kAlways;
    out->repeats_when_full = builder_.full();
    return out->runs() || !out->load.empty();
  }

 private:
  void admit(const ReplicaView& view) {
    for (const RequestId id : view.waiting()) {
      if (builder_.full()) return;
      const AdapterId adapter = view.request(id).adapter();
      if (builder_.acquire(adapter)) {
        if (builder_.add(id) != StepBuilder::Added::kYes) return;
      } else if (!builder_.evicted(adapter)) {
        return admit_held(view, id);
      }
    }
  }

  // Every slot is in use: what is left of the queue after `skipped`, as far as its adapters are on
  // the device and stay there.
  void admit_held(const ReplicaView& view, RequestId skipped) {
    held_.begin(view, skipped, [this](AdapterId id) { return builder_.evicted(id); });
    while (!held_.empty() && !builder_.full()) {
      const RequestId id = held_.front();
      if (!builder_.acquire(view.request(id).adapter())) {
        held_.drop();  // evicted for this step's blocks
      } else if (builder_.add(id) == StepBuilder::Added::kYes) {
        held_.pop();
      } else {
        return;
      }
    }
  }

  LoraKernel kernel_;
  HeldWaiting held_;
  StepBuilder builder_{StepBuilder::Options{.chunked_prefill = true}};
};

}  // namespace

class VllmLoraTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "vLLM with A_max adapter slots: FCFS, chunked prefill, skips adapters without a slot";
  }
  std::string paper() const override { return "the placement paper's engine (5.1, 8.1)"; }
  Capabilities capabilities() const override { return {.mixed_batches = true}; }
  void fields(ParamFields& f) override { add_kernel_field(f, &kernel_); }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<VllmLoraPolicy>(kernel_from(kernel_));
  }

 private:
  std::string kernel_ = "sgmv";
};

}  // namespace servelab

SERVELAB_TECHNIQUE("vllm-lora", VllmLoraTechnique)

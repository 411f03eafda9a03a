// Hugging Face PEFT as a server (dLoRA 7.1, S-LoRA 7): one adapter per batch. As both papers grant
// it, batching is continuous within the adapter and KV is paged. The current adapter is kept while
// it has requests running; it takes in new ones of its own until `switch_after` requests of others
// wait (30 in S-LoRA's PEFT queue; 0 is strict FCFS), then drains and gives way to the oldest.
#include <string>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/oldest_adapter_policy.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class PeftPolicy final : public ReplicaPolicy {
 public:
  PeftPolicy(bool merge, int switch_after) : merge_(merge), switch_after_(switch_after) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    oldest_requests(view, 1, &batch_);
    if (batch_.empty()) return false;
    if (view.running().empty()) {
      current_ = view.request(batch_.front()).adapter();
    }
    const auto mine = static_cast<std::size_t>(view.requests_of(current_).count);
    const bool open = view.unfinished() - mine <= static_cast<std::size_t>(switch_after_) ||
                      view.request(batch_.front()).adapter() == current_;
    out->exec = merge_ ? Exec::kMerged : Exec::kUnmerged;
    out->merged = merge_ ? current_ : kBaseModel;
    out->kernel = LoraKernel::kSgmv;  // one segment: a plain LoRA product
    builder_.begin(view, out);
    oldest_of(view, view.requests_of(current_), view.limits().max_batch, &batch_);
    if (!open) {
      std::erase_if(batch_, [&](RequestId id) {
        return view.request(id).phase() == Phase::kWaiting && view.request(id).generated() == 0;
      });
    }
    out->repeats = StepPlan::kAlways;
    return add_batch(view, batch_, &builder_) > 0;
  }

 private:
  bool merge_;
  int switch_after_;
  AdapterId current_ = kBaseModel;
  StepBuilder builder_{StepBuilder::Options{.evict_paused = true}};
  std::vector<RequestId> batch_;
};

}  // namespace

class PeftTechnique final : public Technique {
 public:
  std::string summary() const override { return "one adapter per batch, swapped between batches"; }
  std::string paper() const override { return "dLoRA (OSDI '24) 7.1; S-LoRA (MLSys '24) 7"; }
  Capabilities capabilities() const override { return {.merges = true}; }
  void fields(ParamFields& f) override {
    f.add("merge", &merge_, "fold the adapter into the weights (else compute it beside them)");
    f.add("switch_after", &switch_after_, "others' waiting requests that close the batch")
        .range(0, 1e9);
    add_batch_field(f, &batch_);
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    if (batch_ == "prefix") {
      return std::make_unique<OldestAdapterPolicy>(
          OldestAdapterPolicy::Options{.merge = merge_, .prefix = true});
    }
    return std::make_unique<PeftPolicy>(merge_, switch_after_);
  }
  std::string default_cluster_policy() const override { return "by-adapter"; }

 private:
  bool merge_ = true;
  int switch_after_ = 30;
  std::string batch_ = "adapter";
};

}  // namespace servelab

SERVELAB_TECHNIQUE("peft", PeftTechnique)

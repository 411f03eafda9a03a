// A measuring tool, not a baseline: the least that a policy can do and be correct. With the null
// backend, what a run takes is the harness: workload, timeline, views, verification and recording
// (after the null system of MLPerf LoadGen).
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class NullPolicy final : public ReplicaPolicy {
 public:
  // Everyone who is in goes on, then others join in the order of their arrival until one does not
  // fit. Adapters stay until room is needed; who finds no memory begins again later.
  bool plan(const ReplicaView& view, StepPlan* out) override {
    builder_.begin(view, out);
    for (const RequestId id : view.running()) {
      const RequestView& r = view.request(id);
      if (r.decoding() && builder_.add_decode(id, r)) continue;
      builder_.add_or_yield(id);
    }
    for (const RequestId id : view.waiting()) {
      if (!out->preempt.empty()) break;  // no memory even for those who are in
      if (builder_.full() || !builder_.acquire(view.request(id).adapter(), id)) break;
      if (builder_.add(id) != StepBuilder::Added::kYes) break;
    }
    out->repeats = StepPlan::kAlways;
    out->repeats_when_full = builder_.full();
    return !out->empty();
  }

 private:
  StepBuilder builder_{StepBuilder::Options{}};
};

}  // namespace

class NullTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "no baseline but a measuring tool: the least work that serves first come, first served";
  }
  std::string paper() const override {
    return "none: with `backend: null` it measures the harness (as MLPerf LoadGen's null system)";
  }
  Capabilities capabilities() const override { return {.mixed_batches = true}; }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<NullPolicy>();
  }
  std::string default_cluster_policy() const override { return "round-robin"; }
};

}  // namespace servelab

SERVELAB_TECHNIQUE("null", NullTechnique)

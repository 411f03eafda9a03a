// Hugging Face PEFT as S-LoRA's authors ran it (S-LoRA 7, benchmarks/run_exp_peft.py): one process
// without a server. It takes all requests that have come as a round, which nobody joins. A round is
// grouped by adapter, in order of each group's oldest request, and every group makes its adapter
// anew. A group is cut into static batches, oldest first, of the engine's max_batch: prompts are
// padded to the batch's longest, and rows that finish leave at once. Its KV cache is contiguous:
// padding is in none of the memory that is counted here. `peft` is what papers grant it instead.
#include <algorithm>
#include <vector>

#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class Peft2023Policy final : public ReplicaPolicy {
 public:
  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = LoraKernel::kSgmv;  // one segment: a plain LoRA product
    builder_.begin(view, out);
    if (view.running().empty()) return begin_batch(view, out);
    if (!builder_.acquire(adapter_)) return false;
    for (const RequestId id : view.running()) add(view, id, out);
    out->repeats = StepPlan::kAlways;
    out->repeats_when_full = true;  // nobody joins a batch
    return !out->empty();
  }

 private:
  // The oldest of an adapter that wait and are of the round: all ids up to its last.
  RequestId first_of_group(const ReplicaView& view, AdapterId adapter) const {
    const RequestId id = view.first_waiting(adapter);
    return id != kNoRequest && id <= last_of_round_ ? id : kNoRequest;
  }

  bool begin_batch(const ReplicaView& view, StepPlan* out) {
    if (view.waiting().empty()) return false;
    const RequestId oldest = view.waiting().front();
    const bool is_new_round = last_of_round_ == kNoRequest || oldest > last_of_round_;
    if (is_new_round) last_of_round_ = view.waiting().back();
    if (is_new_round || first_of_group(view, adapter_) == kNoRequest) {
      adapter_ = view.request(oldest).adapter();
      drop_adapter(view, out);
    }
    if (!builder_.acquire(adapter_)) return false;  // another's load ends first
    // The prefill's rows are as long as the longest, and together within the engine's limit.
    batch_.clear();
    longest_ = 0;
    for (RequestId id = first_of_group(view, adapter_); id != kNoRequest && id <= last_of_round_;
         id = view.next_waiting(id)) {
      const int longest = std::max(longest_, view.request(id).pending());
      const std::int64_t rows = static_cast<std::int64_t>(batch_.size()) + 1;
      if (rows > view.limits().max_batch) break;
      if (rows > 1 && rows * longest > view.limits().max_batch_tokens) break;
      batch_.push_back(id);
      longest_ = longest;
    }
    for (const RequestId id : batch_) {
      if (!add(view, id, out)) break;
    }
    return !out->slices.empty();
  }

  // A group's adapter is made anew, also where it is the last group's: get_peft_model knows nothing
  // of that.
  void drop_adapter(const ReplicaView& view, StepPlan* out) const {
    if (adapter_ == kBaseModel || !view.adapters().evictable(adapter_)) return;
    out->evict.push_back(adapter_);
    out->load.push_back(adapter_);
  }

  // With the padding that stands before its prompt from the prefill on.
  bool add(const ReplicaView& view, RequestId id, StepPlan* out) {
    const RequestView& r = view.request(id);
    const bool is_added = r.decoding() ? builder_.add_decode(id, r) || builder_.add_or_yield(id)
                                       : builder_.add_or_yield(id);
    if (!is_added) return false;
    Slice& slice = out->slices.back();
    const bool is_whole = slice.tokens == r.pending();  // not a chunk of a long prompt
    const int own = r.decoding() ? r.prompt_tokens() : r.context() + r.pending();
    if (is_whole) slice.padding = std::max(0, longest_ - own);
    return true;
  }

  RequestId last_of_round_ = kNoRequest;
  AdapterId adapter_ = kBaseModel;  // of the group
  int longest_ = 0;                 // prompt of the batch
  StepBuilder builder_{StepBuilder::Options{.evict_paused = true}};
  std::vector<RequestId> batch_;
};

}  // namespace

class Peft2023Technique final : public Technique {
 public:
  std::string summary() const override {
    return "PEFT without a server: rounds, an adapter made anew per group, static padded batches";
  }
  std::string paper() const override { return "S-LoRA (MLSys '24) 7"; }
  Capabilities capabilities() const override { return {}; }
  void configure(EngineSettings* engine) const override { engine->adapter_slots = 1; }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<Peft2023Policy>();
  }
};

}  // namespace servelab

SERVELAB_TECHNIQUE("peft-2023", Peft2023Technique)

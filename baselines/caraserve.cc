// CaraServe (2024), the replica's side: a new request is prefilled at once, its LoRA on the host
// while the adapter loads (section 4); decodes run on the device. As in its public code, a LightLLM
// server: prompts before decodes, one at a time; FCFS admission by a bound on future memory; a
// decode step waits for the adapters that are still loading.
//
// The paper's baselines (7.1) are settings of the same scheduler. OnDemand is `cold: wait`: the
// prefill waits for the load. Cached, an oracle, is `engine: {cached_adapters: true}`.
#include <algorithm>
#include <string>
#include <vector>

#include "baselines/shared/admission_bound.h"
#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

struct CaraserveParams {
  std::string kernel = "bgmv";
  std::string cold = "host";
  std::string host_copy = "fused";
  std::string take_over = "loaded";
  std::string loading = "wait";
  std::string load_at = "admission";
  std::string idle = "keep";
  int prefill_batch = 1;

  void fields(ParamFields& f) {
    add_kernel_field(f, &kernel);
    f.add("cold", &cold, "a prompt whose adapter is not there: LoRA on the host, or wait for it")
        .one_of({"host", "wait"});
    f.add("host_copy", &host_copy,
          "how activations reach the host: copy and signal in one; a copy whose end the host waits "
          "for; or a framework's copy to pageable memory")
        .one_of({kHostCopies.begin(), kHostCopies.end()});
    f.add("take_over", &take_over,
          "within a prefill, the device goes on with LoRA that the host began: never, once the "
          "whole adapter has come (4.1), or by groups of layers as they come (public code)")
        .one_of({kTakeOvers.begin(), kTakeOvers.end()});
    f.add("loading", &loading,
          "a decode whose adapter still loads: the step waits, the host computes its LoRA, or it "
          "is left out of the step")
        .one_of({"wait", "host", "skip"});
    f.add("load_at", &load_at,
          "loads begin when requests join the batch, or as soon as the scheduler sees them, where "
          "there is room")
        .one_of({"admission", "arrival"});
    f.add("idle", &idle, "an adapter that no request uses: kept until others need room, or dropped")
        .one_of({"keep", "drop"});
    f.add("prefill_batch", &prefill_batch, "prompts in one prefill step").range(1, 4096);
  }
};

class CaraservePolicy final : public ReplicaPolicy {
 public:
  explicit CaraservePolicy(const CaraserveParams& params)
      : params_(params),
        kernel_(kernel_from(params.kernel)),
        cold_on_host_(params.cold == "host"),
        copy_(named<HostCopy>(kHostCopies, params.host_copy)),
        take_over_(named<TakeOver>(kTakeOvers, params.take_over)) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = kernel_;
    out->host_copy = copy_;
    builder_.begin(view, out);
    prefill(view, out);
    if (out->slices.empty()) decode(view, out);
    if (params_.load_at == "arrival") load_for_waiting(view, out);
    drop_idle(view, out);
    // While somebody waits who might join, whether he may changes as the others grow.
    const bool is_full = static_cast<int>(view.running().size()) >= view.limits().max_batch;
    if (is_full || view.waiting().empty()) out->repeats = StepPlan::kAlways;
    out->repeats_when_full = is_full && params_.load_at == "admission" && params_.loading != "skip";
    if (std::any_of(out->slices.begin(), out->slices.end(),
                    [](const Slice& slice) { return slice.lora == LoraSite::kHost; })) {
      out->take_over = take_over_;
    }
    return !out->empty();
  }

  void on_step_done(const ReplicaView& view, const StepReport& report) override {
    if (params_.idle == "keep") return;
    for (const RequestId id : report.finished) maybe_idle_.push_back(view.request(id).adapter());
  }

 private:
  // Prompts that were begun come first, then the queue until one finds no room.
  void prefill(const ReplicaView& view, StepPlan* out) {
    int left = params_.prefill_batch;
    for (const RequestId id : view.running()) {
      if (left == 0) return;
      if (view.request(id).decoding() || builder_.preempted(id)) continue;
      if (add(view, id, cold_on_host_, out)) --left;
    }
    if (!out->preempt.empty() || view.waiting().empty() || left == 0) return;
    bound_admission(view);
    for (const RequestId id : view.waiting()) {
      if (left-- == 0 || builder_.full() || !may_join(view, id)) return;
      if (!builder_.acquire(view.request(id).adapter(), id)) return;
      if (!add(view, id, cold_on_host_, out)) return;
    }
  }

  void decode(const ReplicaView& view, StepPlan* out) {
    const bool on_host = params_.loading == "host";
    for (const RequestId id : view.running()) {
      if (builder_.preempted(id)) continue;
      const AdapterId adapter = view.request(id).adapter();
      if (params_.loading == "skip" && adapter != kBaseModel && !view.adapters().resident(adapter))
        continue;
      add(view, id, on_host, out);
    }
  }

  // Its LoRA runs on the device where the adapter is there, or where nothing else is wanted.
  bool add(const ReplicaView& view, RequestId id, bool on_host, StepPlan* out) {
    if (!builder_.add_or_yield(id)) return false;
    const AdapterId adapter = view.request(id).adapter();
    if (on_host && adapter != kBaseModel && !view.adapters().resident(adapter)) {
      out->slices.back().lora = LoraSite::kHost;
    }
    return true;
  }

  // In the queue's order, until one finds no room; nothing leaves the device for them. By adapter,
  // of which there are fewer than requests.
  void load_for_waiting(const ReplicaView& view, StepPlan* out) {
    const AdapterPool& adapters = view.adapters();
    const bool in_slots = adapters.memory() == AdapterMemory::kSlots;
    std::int64_t room = builder_.free_blocks();
    if (in_slots) {
      room = adapters.slots() - adapters.held() + static_cast<std::int64_t>(out->evict.size()) -
             static_cast<std::int64_t>(out->load.size());
    }
    if (room <= 0) return;
    first_.clear();
    for (const AdapterId adapter : view.active_adapters()) {
      if (adapter == kBaseModel || adapters.residency(adapter) != Residency::kAbsent ||
          std::find(out->load.begin(), out->load.end(), adapter) != out->load.end()) {
        continue;
      }
      const RequestId id = view.first_waiting(adapter);
      if (id != kNoRequest) first_.push_back(id);
    }
    std::sort(first_.begin(), first_.end());
    for (const RequestId id : first_) {
      const AdapterId adapter = view.request(id).adapter();
      room -= in_slots ? 1 : adapters.blocks_of(adapter);
      if (room < 0) return;
      out->load.push_back(adapter);
    }
  }

  void drop_idle(const ReplicaView& view, StepPlan* out) {
    for (const AdapterId id : maybe_idle_) {
      if (id == kBaseModel || view.adapters().users(id) > 0 || !view.adapters().evictable(id) ||
          builder_.uses(id) || builder_.evicted(id)) {
        continue;
      }
      out->evict.push_back(id);
    }
    maybe_idle_.clear();
  }

  // LightLLM's bound on what the running requests will come to hold, as S-LoRA has it: clients ask
  // for as many tokens as they get.
  void bound_admission(const ReplicaView& view) {
    bound_.clear();
    for (const RequestId id : view.running()) {
      const RequestView& r = view.request(id);
      bound_.append(r.context() + r.pending(), std::max(0, r.remaining_limit() - 1));
    }
    bound_.sort();
    adapter_blocks_ = view.adapters().blocks_in_use();
  }

  bool may_join(const ReplicaView& view, RequestId id) {
    const RequestView& r = view.request(id);
    if (static_cast<int>(bound_.size()) >= view.limits().max_batch) return false;
    bound_.insert(r.pending() + 1, std::max(0, r.remaining_limit() - 1));
    // Twice where two new ones share an adapter.
    if (r.adapter() != kBaseModel && view.adapters().users(r.adapter()) == 0) {
      adapter_blocks_ += view.adapters().blocks_of(r.adapter());
    }
    const std::int64_t blocks = view.kv().total_blocks() - adapter_blocks_;
    // Alone it always fits: requests that never could were rejected on arrival.
    return bound_.peak_tokens() < blocks * view.kv().block_tokens() || bound_.size() == 1;
  }

  CaraserveParams params_;
  LoraKernel kernel_;
  bool cold_on_host_;
  HostCopy copy_;
  TakeOver take_over_;
  StepBuilder builder_{StepBuilder::Options{}};
  AdmissionBound bound_;
  std::vector<AdapterId> maybe_idle_;  // of requests that have just finished
  std::vector<RequestId> first_;       // to wait for each adapter that is absent; reused
  std::int64_t adapter_blocks_ = 0;
};

}  // namespace

class CaraserveTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "cold adapters' LoRA on the host while they load (prefill), then on the device (BGMV)";
  }
  std::string paper() const override { return "CaraServe (2024) 4"; }
  Capabilities capabilities() const override {
    return {.mixed_batches = true,
            .knows_output_length = true,
            .host_lora = params_.cold == "host" || params_.loading == "host",
            .cold_start_free = params_.cold == "host"};
  }
  void check() const override {
    const CaraserveParams untouched;
    if (capabilities().host_lora ||
        (params_.host_copy == untouched.host_copy && params_.take_over == untouched.take_over)) {
      return;
    }
    throw SpecError(
        "host_copy and take_over are of LoRA on the host, and with cold: wait there is none; leave "
        "them out, or set cold: host or loading: host");
  }
  void fields(ParamFields& f) override { params_.fields(f); }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<CaraservePolicy>(params_);
  }

 private:
  CaraserveParams params_;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("caraserve", CaraserveTechnique)

// S-LoRA (MLSys '24) on one replica: FCFS admission by a bound on future memory, prompts prefilled
// in a step of their own every `admit_every` decode steps, unified paging of KV and adapters (one
// page = one token), prefetch of the next batch's adapters, off-loading of idle ones, and optional
// early abort (its 6.2). Rules and constants follow its public code.
#include <algorithm>
#include <string>
#include <vector>

#include "baselines/shared/admission_bound.h"
#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

struct SloraParams {
  int admit_every = 10;
  bool retry = false;
  int max_running = 1000;
  int min_prefill_tokens = 3072;
  bool prefetch = true;
  bool early_abort = false;
  double ttft_slo_s = 6.0;
  std::string kernel = "mbgmv";

  void fields(ParamFields& f) {
    f.add("admit_every", &admit_every, "decode steps between admissions; 0: whenever a step ends")
        .range(0, 1e6);
    f.add("retry", &retry,
          "an admission that takes nobody is tried again at each step, as in its public code; else "
          "after admit_every steps");
    f.add("max_running", &max_running, "requests running at once").range(1, 1 << 16);
    f.add("min_prefill_tokens", &min_prefill_tokens,
          "floor of the prefill step's budget, which is a sixth of the pool")
        .range(1, 1e9);
    f.add("prefetch", &prefetch, "load the next batch's adapters during decodes");
    f.add("early_abort", &early_abort, "drop requests that can no longer meet the TTFT SLO");
    f.add("ttft_slo_s", &ttft_slo_s, "TTFT objective of early abort, s").range(0.5, 1e6);
    add_kernel_field(f, &kernel);
  }
};

constexpr double kAbortMarginSeconds = 0.5;
constexpr int kMostDecodes = 1 << 30;  // that are counted
constexpr double kRateSmoothing = 0.7;

class SloraPolicy final : public ReplicaPolicy {
 public:
  explicit SloraPolicy(const SloraParams& params)
      : params_(params), kernel_(kernel_from(params.kernel)) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = kernel_;
    const bool due = view.running().empty() || decodes_since_admission_ >= params_.admit_every;
    if (due && !params_.retry) decodes_since_admission_ = 0;
    if (due && !view.waiting().empty() && admit(view, out)) {
      decodes_since_admission_ = 0;
    } else if (!view.running().empty()) {
      decode(view, out);
      decodes_since_admission_ = std::min(decodes_since_admission_ + 1, kMostDecodes);
      if (params_.prefetch && !view.waiting().empty()) prefetch(view, out);
      say_how_often(view, out);
    }
    offload_idle(view, out);
    return !out->empty();
  }

  void on_step_done(const ReplicaView& view, const StepReport& report) override {
    count_decodes(report.repeats);
    follow_running(report);
    for (const RequestId id : report.finished) {
      const AdapterId adapter = view.request(id).adapter();
      if (adapter != kBaseModel) maybe_idle_.push_back(adapter);
    }
  }

 private:
  // Decodes go on until somebody may be admitted or prefetched for: never where nobody waits, or
  // the batch is full and has nothing to drop when admission is due.
  void say_how_often(const ReplicaView& view, StepPlan* out) const {
    const int room = std::min(params_.max_running, view.limits().max_batch);
    const bool is_full = static_cast<int>(view.running().size()) >= room && prefetched_.empty() &&
                         !params_.early_abort;
    out->repeats_when_full = is_full;
    if (is_full || view.waiting().empty()) {
      out->repeats = StepPlan::kAlways;
      return;
    }
    const int made = decodes_since_admission_;
    int quiet = std::max(0, params_.admit_every - made);
    for (const int looks : {params_.admit_every / 2, params_.admit_every - 3}) {
      if (params_.prefetch && looks > made) quiet = std::min(quiet, looks - made - 1);
    }
    out->repeats = quiet;
  }

  // As plan() counts them, one by one.
  void count_decodes(std::int64_t repeats) {
    if (repeats == 0) return;
    const std::int64_t every = params_.admit_every;
    std::int64_t made = decodes_since_admission_ + repeats;
    if (!params_.retry && made > every) made = every == 0 ? 1 : (made - 1) % every + 1;
    decodes_since_admission_ = static_cast<int>(std::min<std::int64_t>(made, kMostDecodes));
  }

  // What runs, as the bound sees it, after steps of whom was admitted or of all.
  void follow_running(const StepReport& report) {
    follows_ = follows_ && is_foreseen_;
    if (decodes_all_) running_.decode(report.steps);
    for (const Joining& one : joining_) running_.insert(one.held, one.left, one.id);
    joining_.clear();
    for (const RequestId id : report.finished) running_.erase(id);
  }

  void look_at_running(const ReplicaView& view) {
    if (follows_ && running_.size() == view.running().size()) return;
    running_.clear();
    for (const RequestId id : view.running()) {
      const RequestView& r = view.request(id);
      running_.append(r.context() + r.pending(), std::max(0, r.remaining_limit() - 1), id);
    }
    running_.sort();
    follows_ = true;
  }

  // Adapters leave as soon as no running request uses them, unless they were prefetched.
  void offload_idle(const ReplicaView& view, StepPlan* out) {
    for (const AdapterId id : maybe_idle_) {
      if (view.adapters().users(id) > 0 || !view.adapters().evictable(id) || prefetched(id) ||
          builder_.uses(id) || builder_.evicted(id)) {
        continue;
      }
      out->evict.push_back(id);
    }
    maybe_idle_.clear();
  }

  bool prefetched(AdapterId id) const {
    return std::find(prefetched_.begin(), prefetched_.end(), id) != prefetched_.end();
  }

  void decode(const ReplicaView& view, StepPlan* out) {
    builder_.begin(view, out, params_.max_running);
    builder_.add_running();
    decodes_all_ = is_foreseen_ = out->decode_all;
  }

  // The waiting requests that may join: first come, first served (or the reverse) until one does
  // not fit.
  void select(const ReplicaView& view) {
    selected_.clear();
    new_adapters_.clear();
    const int room = std::min(params_.max_running, view.limits().max_batch);
    if (static_cast<int>(view.running().size()) >= room) return;
    look_at_running(view);
    bound_ = running_;
    std::int64_t adapter_blocks = view.adapters().blocks_in_use();
    const KvPool& kv = view.kv();
    const std::int64_t prompt_budget =
        std::min<std::int64_t>(view.limits().max_batch_tokens,
                               std::max<std::int64_t>(kv.total_blocks() * kv.block_tokens() / 6,
                                                      params_.min_prefill_tokens));
    std::int64_t prompts = 0;
    const std::span<const RequestId> waiting = view.waiting();
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const RequestId id = waiting[newest_first_ ? waiting.size() - 1 - i : i];
      if (aborted(id)) continue;
      const RequestView& r = view.request(id);
      if (static_cast<int>(bound_.size()) >= room) break;
      const std::int64_t pending = r.pending();
      if (prompts + pending > prompt_budget && !selected_.empty()) break;
      bound_.insert(pending + 1, std::max(0, r.remaining_limit() - 1));
      std::int64_t blocks = adapter_blocks;
      const bool is_new =
          r.adapter() != kBaseModel && view.adapters().users(r.adapter()) == 0 &&
          std::find(new_adapters_.begin(), new_adapters_.end(), r.adapter()) == new_adapters_.end();
      if (is_new) blocks += view.adapters().blocks_of(r.adapter());
      const std::int64_t capacity = (kv.total_blocks() - blocks) * kv.block_tokens();
      // Alone it always fits: requests that never could were rejected on arrival.
      if (bound_.peak_tokens() >= capacity && bound_.size() > 1) break;
      adapter_blocks = blocks;
      prompts += pending;
      if (is_new) new_adapters_.push_back(r.adapter());
      selected_.push_back(id);
    }
  }

  bool admit(const ReplicaView& view, StepPlan* out) {
    if (params_.early_abort) abort_late(view, out);
    select(view);
    builder_.begin(view, out, params_.max_running);
    decodes_all_ = false;
    is_foreseen_ = true;
    for (const RequestId id : selected_) {
      const RequestView& r = view.request(id);
      if (!builder_.acquire(r.adapter()) || !builder_.add_or_yield(id)) break;
      is_foreseen_ = is_foreseen_ && out->slices.back().tokens == r.pending();
      joining_.push_back({id, r.pending() + 1, r.remaining_limit() - 2});
    }
    maybe_idle_.insert(maybe_idle_.end(), prefetched_.begin(), prefetched_.end());
    prefetched_.clear();
    admitted_ = out->slices.size();
    is_foreseen_ = is_foreseen_ && out->preempt.empty();
    if (admitted_ > 0) return true;
    joining_.clear();
    out->load.clear();
    out->evict.clear();
    out->preempt.clear();
    return false;
  }

  // Halfway to the next admission, and just before it: loads overlap with decodes.
  void prefetch(const ReplicaView& view, StepPlan* out) {
    const int step = decodes_since_admission_;
    if (step != params_.admit_every / 2 && step != params_.admit_every - 3) return;
    select(view);
    std::int64_t free_blocks = builder_.free_blocks();
    for (const AdapterId id : new_adapters_) {
      if (view.adapters().residency(id) != Residency::kAbsent) continue;
      if (view.adapters().blocks_of(id) > free_blocks) break;
      free_blocks -= view.adapters().blocks_of(id);
      out->load.push_back(id);
      prefetched_.push_back(id);
    }
  }

  bool aborted(RequestId id) const {
    return std::find(aborted_.begin(), aborted_.end(), id) != aborted_.end();
  }

  void abort_late(const ReplicaView& view, StepPlan* out) {
    aborted_.clear();
    for (const RequestId id : view.waiting()) {  // oldest first: the rest are younger
      if (to_seconds(view.waited(id)) + kAbortMarginSeconds < params_.ttft_slo_s) break;
      if (view.request(id).generated() == 0) aborted_.push_back(id);
    }
    out->reject = aborted_;
    const auto waiting = static_cast<double>(view.waiting().size() - aborted_.size());
    const auto admitted = static_cast<double>(admitted_);
    const double change = waiting - last_waiting_ + admitted;
    arrival_rate_ =
        static_cast<int>(kRateSmoothing * change + (1 - kRateSmoothing) * arrival_rate_);
    batch_rate_ = std::max(
        1, static_cast<int>(kRateSmoothing * admitted + (1 - kRateSmoothing) * batch_rate_));
    last_waiting_ = waiting;
    newest_first_ = arrival_rate_ >= batch_rate_;  // newest first while they come too fast
  }

  SloraParams params_;
  LoraKernel kernel_;
  int decodes_since_admission_ = 0;
  StepBuilder builder_{StepBuilder::Options{}};
  AdmissionBound running_, bound_;  // with those who are being selected
  struct Joining {                  // as it will be after its prefill
    RequestId id;
    std::int64_t held, left;
  };
  std::vector<Joining> joining_;
  bool follows_ = false;      // running_ is of the requests that run
  bool decodes_all_ = false;  // the step does
  bool is_foreseen_ = false;  // what it makes of running_
  std::vector<RequestId> selected_, aborted_;
  std::vector<AdapterId> new_adapters_, prefetched_, maybe_idle_;
  bool newest_first_ = false;  // early abort only
  int arrival_rate_ = 0, batch_rate_ = 1;
  double last_waiting_ = 0;
  std::size_t admitted_ = 0;  // by the latest admission
};

}  // namespace

class SloraTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "unmerged MBGMV, unified paging (no adapter slots), memory-bound admission, prefetch";
  }
  std::string paper() const override { return "S-LoRA (MLSys '24) 4-6"; }
  Capabilities capabilities() const override {
    return {.mixed_batches = true, .knows_output_length = true};
  }
  void fields(ParamFields& f) override { params_.fields(f); }
  void configure(EngineSettings* engine) const override {
    engine->adapter_memory = AdapterMemory::kUnified;
    engine->block_tokens = 1;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<SloraPolicy>(params_);
  }

 private:
  SloraParams params_;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("slora", SloraTechnique)

// dLoRA (OSDI '24) on one replica: dynamic batching between merged and unmerged execution
// (Algorithm 1), adaptive thresholds (Algorithm 2), credits against starvation (Algorithm 3).
// Constants that the paper leaves open come from its artifact, except those marked "ours".
#include <algorithm>
#include <string>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/credits.h"
#include "baselines/shared/kernel_param.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

struct DloraParams {
  double alpha = 1.0;
  double beta = 0;
  double alpha_max = 1.0;
  double gamma_dec = 0.05;
  double gamma_mul = 1.1;
  int break_iterations = 0;
  double starve_credit = 10000;
  std::string kernel = "einsum";

  void fields(ParamFields& f) {
    f.add("alpha", &alpha, "initial threshold: it merges from |R_merge| / |B_fcfs| = alpha on")
        .range(0, 100);
    f.add(
         "beta", &beta,
         "initial threshold below which it unmerges; 0: the time of a full merged decode step over "
         "an unmerged one, which is how the artifact came to its 15/27")
        .range(0, 100);
    f.add("alpha_max", &alpha_max,
          "bound on alpha (ours: above 1 a full merged batch could never be chosen)")
        .range(0, 100);
    f.add("gamma_dec", &gamma_dec, "additive change of a threshold that was too strict")
        .range(0, 1);
    f.add("gamma_mul", &gamma_mul, "factor on a threshold that was too loose").range(1, 10);
    f.add("break_iterations", &break_iterations,
          "also tune after this many steps without a switch or a new R_merge; 0: never, as in the "
          "artifact (the paper gives no number)")
        .range(0, 1e9);
    f.add("starve_credit", &starve_credit,
          "credit, in displaced full batches, that an adapter gathers before it starves")
        .range(0, 1e9);
    add_kernel_field(f, &kernel);
  }
};

// What a period between two break points would have done in either mode (Algorithm 2).
struct Period {
  double merged_requests = 0, merged_time = 0;
  double unmerged_requests = 0, unmerged_time = 0;
  int iterations = 0;
};

class DloraPolicy final : public ReplicaPolicy {
 public:
  explicit DloraPolicy(const DloraParams& params)
      : params_(params),
        kernel_(kernel_from(params.kernel)),
        alpha_(params.alpha),
        beta_(params.beta) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    if (credits_.empty()) start(view);
    const int max_batch = view.limits().max_batch;
    oldest_requests(view, max_batch, &fcfs_);
    if (fcfs_.empty()) return false;
    const bool was_merged = merged_;
    choose(view, max_batch);
    if (fill(view, out)) {
      prefetch(view, out);
      if (merged_ == was_merged) say_how_often(view, out);
      return true;
    }
    // The chosen batch found no memory: first-come order always makes progress.
    to_unmerged();
    batch_ = fcfs_;
    out->clear();
    return fill(view, out);
  }

  // Steps that repeat the plan count for the thresholds as those that were planned.
  void on_step_done(const ReplicaView& /*view*/, const StepReport& report) override {
    for (std::int64_t i = 0; i < report.repeats && observes_; ++i) {
      merged_shape_.decode_context += merged_growth_;
      unmerged_shape_.decode_context += unmerged_growth_;
      add_observation();
    }
  }

  std::vector<Gauge> gauges() const override {
    return {{"alpha_switch", &alpha_}, {"beta_switch", &beta_}, {"merge_ratio", &ratio_}};
  }

 private:
  void start(const ReplicaView& view) {
    if (beta_ == 0) beta_ = std::min(merged_speed_ratio(view, kernel_), alpha_);
    const auto n = static_cast<double>(view.adapter_table().size());
    const double unit = params_.starve_credit;
    credits_.open(view.adapter_table().size(), {unit * (n - 1), unit * n, unit * (n - 0.5)});
  }

  // Algorithms 3 and 1: fills batch_, merged_ and target_.
  void choose(const ReplicaView& view, int max_batch) {
    unit_ = 1.0 / max_batch;
    has_paid_ = observes_ = false;
    if (credits_.update(view.active_adapters()) && choose_starving(view, max_batch)) return;
    const AdapterId candidate = merged_ ? target_ : most_requested(view, max_batch);
    oldest_of(view, view.requests_of(candidate), max_batch, &merge_);
    observe(view, candidate);
    const double size = static_cast<double>(view.requests_of(candidate).count);
    ratio_ = size / static_cast<double>(fcfs_.size());
    // ">= alpha" as in the artifact: with the paper's ">" and alpha = 1, a batch that is all of one
    // adapter would never be merged.
    if (!merged_ && candidate != kBaseModel && ratio_ >= alpha_) {
      tune();
      merged_ = true;
      target_ = candidate;
    } else if (merged_ && (ratio_ < beta_ || merge_.empty() || !eligible(candidate))) {
      to_unmerged();
    }
    batch_ = merged_ ? merge_ : fcfs_;
    if (merged_) pay(view, target_);
  }

  bool choose_starving(const ReplicaView& view, int max_batch) {
    batch_.clear();
    for (const AdapterId id : view.active_adapters()) {
      if (!credits_.starving(id)) continue;
      oldest_of(view, view.requests_of(id), max_batch, &merge_);
      batch_.insert(batch_.end(), merge_.begin(), merge_.end());
    }
    if (batch_.empty()) return false;
    has_paid_ = true;
    std::sort(batch_.begin(), batch_.end());
    if (static_cast<int>(batch_.size()) > max_batch)
      batch_.resize(static_cast<std::size_t>(max_batch));
    if (merged_) to_unmerged();
    pay(view, view.request(batch_.front()).adapter());
    return true;
  }

  // The adapter with the most unfinished requests that can pay for overtaking; the lowest id among
  // equals. The base model cannot be merged into itself and never wins.
  AdapterId most_requested(const ReplicaView& view, int max_batch) {
    AdapterId best = kBaseModel;
    int most = 0;
    for (const AdapterId id : view.active_adapters()) {
      const int count = view.requests_of(id).count;
      if (id == kBaseModel || count < most || (count == most && best < id)) continue;
      oldest_of(view, view.requests_of(id), max_batch, &merge_);
      if (!eligible(id)) continue;
      best = id;
      most = count;
    }
    return best;
  }

  // Algorithm 3, line 17, for the batch in merge_.
  bool eligible(AdapterId id) {
    difference_.compute(fcfs_, merge_);
    return credits_.credit(id) >= unit_ * static_cast<double>(difference_.displaced.size());
  }

  void pay(const ReplicaView& view, AdapterId payer) {
    difference_.compute(fcfs_, batch_);
    has_paid_ = has_paid_ || !difference_.displaced.empty();
    credits_.transfer(view, difference_, unit_, payer);
  }

  // Algorithm 2: what this step takes, merged (merge_) and unmerged (fcfs_).
  void observe(const ReplicaView& view, AdapterId candidate) {
    const bool new_candidate = candidate != last_candidate_;
    last_candidate_ = candidate;
    const int limit = params_.break_iterations;
    if (new_candidate || (limit > 0 && period_.iterations >= limit)) tune();
    if (merge_.empty() || candidate == kBaseModel) return;
    const CostModel& cost = view.cost();
    cost_ = &cost;
    observes_ = true;
    merged_shape_ = shaper_.shape_of(view, merge_);
    unmerged_shape_ = shaper_.shape_of(view, fcfs_);
    add_observation();
    const int rank = view.adapter(candidate).rank;
    switch_time_ = static_cast<double>(merged_ ? cost.unmerge(rank) : cost.merge(rank));
  }

  void add_observation() {
    const auto ns = [&](const BatchShape& shape, Exec exec) {
      return static_cast<double>(cost_->step(shape, exec, kernel_).total());
    };
    ++period_.iterations;
    period_.merged_requests += static_cast<double>(merge_.size());
    period_.merged_time += ns(merged_shape_, Exec::kMerged);
    period_.unmerged_requests += static_cast<double>(fcfs_.size());
    period_.unmerged_time += ns(unmerged_shape_, Exec::kUnmerged);
  }

  // The same batch goes on while nobody is displaced, who would be paid for every step, up to the
  // next break point. A batch that is observed without running stays as it is.
  void say_how_often(const ReplicaView& view, StepPlan* out) {
    if (has_paid_ || out->slices.size() != batch_.size()) return;
    const auto growing = [&](const std::vector<RequestId>& batch) {
      return std::count_if(batch.begin(), batch.end(), [&](RequestId id) {
        return std::binary_search(batch_.begin(), batch_.end(), id) && view.request(id).decoding();
      });
    };
    if (observes_) {
      merged_growth_ = growing(merge_);
      unmerged_growth_ = growing(fcfs_);
    }
    const int limit = params_.break_iterations;
    out->repeats =
        limit > 0 && observes_ ? std::max(0, limit - period_.iterations) : StepPlan::kAlways;
  }

  // A break point. The switch that was not made would have cost the mode that was not chosen.
  void tune() {
    if (period_.iterations > 0) {
      const double merged =
          period_.merged_requests / (period_.merged_time + (merged_ ? 0 : switch_time_));
      const double unmerged =
          period_.unmerged_requests / (period_.unmerged_time + (merged_ ? switch_time_ : 0));
      if (!merged_) {
        if (merged > unmerged) {
          alpha_ = std::max(alpha_ - params_.gamma_dec, beta_);
        } else {
          alpha_ = std::min(alpha_ * params_.gamma_mul, params_.alpha_max);
        }
      } else if (unmerged > merged) {
        beta_ = std::min(beta_ + params_.gamma_dec, alpha_);
      } else {
        beta_ /= params_.gamma_mul;
      }
    }
    period_ = Period{};
  }

  void to_unmerged() {
    if (merged_) tune();
    merged_ = false;
  }

  bool fill(const ReplicaView& view, StepPlan* out) {
    out->kernel = kernel_;
    out->exec = merged_ ? Exec::kMerged : Exec::kUnmerged;
    out->merged = merged_ ? target_ : kBaseModel;
    builder_.begin(view, out);
    return add_batch(view, batch_, &builder_) > 0;
  }

  // Adapters of the requests that come next load while this step runs (4.3), into memory that is
  // free; what the batch may grow into is left to it.
  void prefetch(const ReplicaView& view, StepPlan* out) const {
    std::int64_t free_blocks = builder_.free_blocks() - view.limits().max_batch;
    std::size_t ahead = static_cast<std::size_t>(view.limits().max_batch);
    for (const RequestId id : view.waiting()) {
      if (ahead-- == 0) break;
      const AdapterId adapter = view.request(id).adapter();
      if (adapter == kBaseModel || view.adapters().residency(adapter) != Residency::kAbsent ||
          std::find(out->load.begin(), out->load.end(), adapter) != out->load.end()) {
        continue;
      }
      free_blocks -= view.adapters().blocks_of(adapter);
      if (free_blocks < 0 || builder_.evicted(adapter)) break;
      out->load.push_back(adapter);
    }
  }

  DloraParams params_;
  LoraKernel kernel_;
  bool merged_ = false;  // the paper's S.state
  AdapterId target_ = kBaseModel;
  AdapterId last_candidate_ = kBaseModel;
  double alpha_, beta_;
  double ratio_ = 0;
  double unit_ = 0;
  double switch_time_ = 0;
  Period period_;
  bool has_paid_ = false;  // credits, in the latest plan
  // What the latest plan observed of its step, and by how much the keys of both batches grow in the
  // next one.
  bool observes_ = false;
  BatchShape merged_shape_, unmerged_shape_;
  std::int64_t merged_growth_ = 0, unmerged_growth_ = 0;
  const CostModel* cost_ = nullptr;
  CreditBook credits_;
  BatchDifference difference_;
  BatchShaper shaper_;
  StepBuilder builder_{
      StepBuilder::Options{.preempt_mode = PreemptMode::kSwap, .evict_paused = true}};
  std::vector<RequestId> fcfs_, merge_, batch_;
};

}  // namespace

class DloraTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "merged or unmerged by adaptive thresholds, with credits; balances replicas by "
           "migration";
  }
  std::string paper() const override { return "dLoRA (OSDI '24) 4, 5, A.1: Algorithms 1-3"; }
  Capabilities capabilities() const override { return {.mixed_batches = true, .merges = true}; }
  void fields(ParamFields& f) override { params_.fields(f); }
  // Adapters and requests share the device's memory, and either grows as the workload wants (4.3).
  void configure(EngineSettings* engine) const override {
    engine->adapter_memory = AdapterMemory::kUnified;
  }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<DloraPolicy>(params_);
  }
  std::string default_cluster_policy() const override { return "dlora"; }

 private:
  DloraParams params_;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("dlora", DloraTechnique)

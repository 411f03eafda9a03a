// dLoRA as its public artifact behaves where that differs from the paper: iteration and switching
// times are constants (15, 27 and 20 ms for 7B), thresholds are tuned only when the mode switches,
// and the other way round (alpha after a merged period, beta after an unmerged one), a starving
// batch is filled up first come, first served, and credits are so large that starvation practically
// never fires.
#include <algorithm>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/credits.h"
#include "baselines/shared/step_builder.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

struct ArtifactParams {
  double merged_ms = 15;
  double unmerged_ms = 27;
  double switch_ms = 20;
  double alpha = 1.0;
  double gamma_dec = 0.05;
  double gamma_mul = 1.1;
  double credit = 10000;
  double credit_band = 5000;

  double speed_rate() const { return merged_ms / unmerged_ms; }

  void fields(ParamFields& f) {
    f.add("merged_ms", &merged_ms, "assumed time of a merged iteration").range(0.001, 1e6);
    f.add("unmerged_ms", &unmerged_ms, "assumed time of an unmerged iteration").range(0.001, 1e6);
    f.add("switch_ms", &switch_ms, "assumed time of a switch").range(0, 1e6);
    f.add("alpha", &alpha, "initial merge threshold").range(0, 100);
    f.add("gamma_dec", &gamma_dec, "additive change of a threshold").range(0, 1);
    f.add("gamma_mul", &gamma_mul, "multiplicative change of a threshold").range(1, 10);
    f.add("credit", &credit, "initial credit is this times (adapters - 1); starving above n times")
        .range(0, 1e9);
    f.add("credit_band", &credit_band, "starving ends this far below").range(0, 1e9);
  }
};

class DloraArtifactPolicy final : public ReplicaPolicy {
 public:
  explicit DloraArtifactPolicy(const ArtifactParams& params)
      : params_(params), alpha_(params.alpha), beta_(params.speed_rate()) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    if (credits_.empty()) {
      const auto n = static_cast<double>(view.adapter_table().size());
      credits_.open(view.adapter_table().size(), {params_.credit * (n - 1), params_.credit * n,
                                                  params_.credit * n - params_.credit_band});
    }
    const int max_batch = view.limits().max_batch;
    oldest_requests(view, max_batch, &fcfs_);
    if (fcfs_.empty()) return false;
    has_switched_ = has_paid_ = false;
    choose(view, max_batch);
    if (fill(view, out)) {
      // The same batch goes on where nobody is displaced, who would be paid for every step.
      const bool is_whole = out->slices.size() == batch_.size();
      if (is_whole && !has_switched_ && !has_paid_) out->repeats = StepPlan::kAlways;
      return true;
    }
    enter(false, kBaseModel);
    batch_ = fcfs_;
    out->clear();
    return fill(view, out);
  }

  // Steps that repeat the plan are iterations as those that were planned.
  void on_step_done(const ReplicaView& /*view*/, const StepReport& report) override {
    const auto repeats = static_cast<double>(report.repeats);
    iterations_ += repeats;
    merged_requests_ += repeats * counted_merged_;
    unmerged_requests_ += repeats * counted_unmerged_;
  }

  std::vector<Gauge> gauges() const override {
    return {{"alpha_switch", &alpha_}, {"beta_switch", &beta_}, {"merge_ratio", &ratio_}};
  }

 private:
  // The artifact's order: starving, stay merged, merge the largest, unmerged.
  void choose(const ReplicaView& view, int max_batch) {
    const auto fcfs_size = static_cast<double>(fcfs_.size());
    count_iteration(view);
    if (credits_.update(view.active_adapters())) {
      starving_batch(view, max_batch);
      enter(false, kBaseModel);
      pay(view, 1.0 / max_batch);
      return;
    }
    const AdapterId largest = most_requested(view);
    const AdapterId candidate = merged_ ? target_ : largest;
    ratio_ = static_cast<double>(view.requests_of(candidate).count) / fcfs_size;
    const bool stay = merged_ && ratio_ >= beta_ && view.requests_of(target_).count > 0;
    if (!stay) {
      const double best = static_cast<double>(view.requests_of(largest).count);
      if (largest != kBaseModel && best >= alpha_ * fcfs_size) {
        enter(true, largest);
      } else {
        enter(false, kBaseModel);
      }
    }
    if (!merged_) {
      batch_ = fcfs_;
      return;
    }
    oldest_of(view, view.requests_of(target_), max_batch, &batch_);
    const double unit = 1.0 / (params_.speed_rate() * max_batch);
    pay(view, batch_.size() == fcfs_.size() ? unit : unit / 2);
  }

  AdapterId most_requested(const ReplicaView& view) const {
    AdapterId best = kBaseModel;
    int most = 0;
    for (const AdapterId id : view.active_adapters()) {
      const int count = view.requests_of(id).count;
      if (id == kBaseModel || count < most || (count == most && best < id)) continue;
      best = id;
      most = count;
    }
    return best;
  }

  void starving_batch(const ReplicaView& view, int max_batch) {
    batch_.clear();
    starving_.clear();
    for (const AdapterId id : view.active_adapters()) {
      if (credits_.starving(id)) starving_.push_back(id);
    }
    std::sort(starving_.begin(), starving_.end(), [&](AdapterId a, AdapterId b) {
      const double x = credits_.credit(a), y = credits_.credit(b);
      return x != y ? x > y : a < b;
    });
    const auto most = static_cast<std::size_t>(max_batch);
    for (const AdapterId id : starving_) {
      oldest_of(view, view.requests_of(id), max_batch, &scratch_);
      batch_.insert(batch_.end(), scratch_.begin(), scratch_.end());
    }
    for (const RequestId id : fcfs_) {
      if (batch_.size() >= most) break;
      if (!credits_.starving(view.request(id).adapter())) batch_.push_back(id);
    }
    if (batch_.size() > most) batch_.resize(most);
    std::sort(batch_.begin(), batch_.end());
  }

  void pay(const ReplicaView& view, double unit) {
    difference_.compute(fcfs_, batch_);
    has_paid_ = has_paid_ || !difference_.displaced.empty();
    credits_.transfer(view, difference_, unit,
                      merged_ ? target_ : view.request(batch_.front()).adapter());
  }

  void count_iteration(const ReplicaView& view) {
    const AdapterId largest = most_requested(view);
    if (largest != last_largest_) ++largest_changes_;
    last_largest_ = largest;
    ++iterations_;
    const double most = view.limits().max_batch;
    counted_merged_ = std::min<double>(view.requests_of(largest).count, most);
    counted_unmerged_ = std::min<double>(static_cast<double>(fcfs_.size()), most);
    merged_requests_ += counted_merged_;
    unmerged_requests_ += counted_unmerged_;
  }

  // Moves to the mode; a change of mode or of merged adapter tunes the thresholds first.
  void enter(bool merged, AdapterId target) {
    if (merged == merged_ && target == target_) return;
    has_switched_ = true;
    tune();
    merged_ = merged;
    target_ = target;
  }

  void tune() {
    double merged_time = params_.merged_ms * iterations_;
    double unmerged_time = params_.unmerged_ms * iterations_;
    if (merged_) {
      merged_time += params_.switch_ms;
    } else {
      unmerged_time += params_.switch_ms;
      merged_time += params_.switch_ms * largest_changes_;
    }
    const double merged = merged_time > 0 ? merged_requests_ / merged_time : 0;
    const double unmerged = unmerged_time > 0 ? unmerged_requests_ / unmerged_time : 0;
    if (merged_) {
      if (merged > unmerged) {
        if (alpha_ - params_.gamma_dec > beta_) alpha_ -= params_.gamma_dec;
      } else if (merged < unmerged) {
        alpha_ *= params_.gamma_mul;
      }
    } else if (unmerged > merged) {
      if (beta_ + params_.gamma_dec < alpha_) beta_ += params_.gamma_dec;
    } else if (unmerged < merged) {
      beta_ /= params_.gamma_mul;
    }
    iterations_ = 0;
    largest_changes_ = 0;
    merged_requests_ = unmerged_requests_ = 0;
  }

  bool fill(const ReplicaView& view, StepPlan* out) {
    out->kernel = LoraKernel::kEinsum;
    out->exec = merged_ ? Exec::kMerged : Exec::kUnmerged;
    out->merged = target_;
    builder_.begin(view, out);
    return add_batch(view, batch_, &builder_) > 0;
  }

  ArtifactParams params_;
  bool merged_ = false;
  AdapterId target_ = kBaseModel;
  AdapterId last_largest_ = kBaseModel;
  double alpha_, beta_;
  double ratio_ = 0;
  double iterations_ = 0;
  double largest_changes_ = 0;
  double merged_requests_ = 0, unmerged_requests_ = 0;
  double counted_merged_ = 0, counted_unmerged_ = 0;  // of the latest plan
  bool has_switched_ = false, has_paid_ = false;      // in it
  CreditBook credits_;
  BatchDifference difference_;
  StepBuilder builder_{
      StepBuilder::Options{.preempt_mode = PreemptMode::kSwap, .evict_paused = true}};
  std::vector<RequestId> fcfs_, batch_, scratch_;
  std::vector<AdapterId> starving_;
};

}  // namespace

class DloraArtifactTechnique final : public Technique {
 public:
  std::string summary() const override {
    return "dLoRA with the constants and rules of its public artifact";
  }
  std::string paper() const override { return "dLoRA (OSDI '24), LLMServe/dLoRA-artifact"; }
  Capabilities capabilities() const override { return {.mixed_batches = true, .merges = true}; }
  void fields(ParamFields& f) override { params_.fields(f); }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<DloraArtifactPolicy>(params_);
  }
  std::string default_cluster_policy() const override { return "dlora-artifact"; }

 private:
  ArtifactParams params_;
};

}  // namespace servelab

SERVELAB_TECHNIQUE("dlora-artifact", DloraArtifactTechnique)

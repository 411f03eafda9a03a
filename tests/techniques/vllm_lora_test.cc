// vllm-lora's admission looks at few of the requests that wait, and decides as a scan of the whole
// queue does: after any history, and in whole runs.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "baselines/shared/step_builder.h"
#include "engine/core/rng.h"
#include "tests/support/chaos.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kHistories = 30;
#else
constexpr std::uint64_t kHistories = 300;
#endif

// The oracle: every waiting request is looked at in every step.
class WholeScan final : public ReplicaPolicy {
 public:
  // `looked_at` counts the waiting requests that it looks at, over all plans.
  explicit WholeScan(std::size_t* looked_at) : looked_at_(looked_at) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    out->kernel = LoraKernel::kSgmv;
    builder_.begin(view, out);
    for (const RequestId id : view.running()) {
      if (builder_.preempted(id)) continue;
      const RequestView& r = view.request(id);
      if (r.decoding() && builder_.add_decode(id, r)) continue;
      builder_.add_or_yield(id);
    }
    if (out->preempt.empty()) admit(view);
    return !out->slices.empty() || !out->load.empty();
  }

 private:
  void admit(const ReplicaView& view) {
    bool slots_taken = false;
    for (const RequestId id : view.waiting()) {
      if (builder_.full()) return;
      ++*looked_at_;
      const AdapterId adapter = view.request(id).adapter();
      const bool held =
          adapter == kBaseModel || view.adapters().residency(adapter) != Residency::kAbsent;
      if (slots_taken && !held) continue;
      if (!builder_.acquire(adapter)) {
        slots_taken = slots_taken || !held;
        continue;
      }
      if (builder_.add(id) != StepBuilder::Added::kYes) return;
    }
  }

  std::size_t* looked_at_;
  StepBuilder builder_{StepBuilder::Options{.chunked_prefill = true}};
};

// With decode_all spelt out.
std::string text(const ReplicaView& view, const StepPlan& plan) {
  std::string out;
  const auto add = [&out](const char* label, std::size_t number) {
    out.append(label).append(std::to_string(number));
  };
  add("exec ", static_cast<std::size_t>(plan.exec));
  add(" kernel ", static_cast<std::size_t>(plan.kernel));
  for (const RequestId id : plan.reject) add(" reject ", index(id));
  for (const Preemption& p : plan.preempt) {
    add(" preempt ", index(p.request));
    add("/", static_cast<std::size_t>(p.mode));
  }
  for (const AdapterId id : plan.evict) add(" evict ", index(id));
  for (const AdapterId id : plan.load) add(" load ", index(id));
  std::vector<Slice> slices;
  if (plan.decode_all) {
    for (const RequestId id : view.running()) slices.push_back({id, 1});
  }
  slices.insert(slices.end(), plan.slices.begin(), plan.slices.end());
  for (const Slice& slice : slices) {
    add(" run ", index(slice.request));
    add("x", static_cast<std::size_t>(slice.tokens));
  }
  return out;
}

struct Tally {
  int plans = 0;
  int behind = 0;  // plans that admit a request and pass over an older one
  int preempting = 0, evicting = 0, base = 0, others = 0;
  std::size_t looked_at = 0;
  std::string difference;  // the first
};

std::unique_ptr<ReplicaPolicy> vllm_lora() {
  return Registry<Technique>::instance().make("vllm-lora")->replica_policy();
}

// Asks both at every turn; carries vllm-lora's plan out, or (with probability `disorder`) one that
// preempts, swaps, rejects, loads and evicts at random. Nobody brings a swapped request back: they
// are rejected in the end.
class BothAsked final : public ReplicaPolicy {
 public:
  BothAsked(std::uint64_t seed, double disorder, Tally* tally)
      : rng_(seed, "both"), disorder_(disorder), scan_(&tally->looked_at), tally_(tally) {}

  bool plan(const ReplicaView& view, StepPlan* out) override {
    expected_.clear();
    const bool expects = scan_.plan(view, &expected_);
    const bool starts = policy_->plan(view, out);
    ++tally_->plans;
    const std::string want = text(view, expected_), got = text(view, *out);
    if (tally_->difference.empty() && (want != got || expects != starts)) {
      tally_->difference = "expected " + want + "\n     got " + got;
    }
    count(view, *out);
    if (chance(disorder_) || !starts) {
      expected_.clear();
      upset(view, starts, &expected_);
      if (!expected_.empty()) {
        ++tally_->others;
        std::swap(*out, expected_);
        return true;
      }
    }
    return starts;
  }

 private:
  void count(const ReplicaView& view, const StepPlan& plan) {
    tally_->preempting += plan.preempt.empty() ? 0 : 1;
    tally_->evicting += plan.evict.empty() ? 0 : 1;
    const RequestId oldest = view.waiting().empty() ? kNoRequest : view.waiting().front();
    bool admits = false, has_oldest = false;
    for (const Slice& slice : plan.slices) {
      const RequestView& r = view.request(slice.request);
      if (r.phase() != Phase::kWaiting) continue;
      admits = true;
      tally_->base += r.adapter() == kBaseModel ? 1 : 0;
      has_oldest = has_oldest || slice.request == oldest;
    }
    tally_->behind += admits && !has_oldest ? 1 : 0;
  }

  bool chance(double p) { return rng_.uniform() < p; }

  void upset(const ReplicaView& view, bool starts, StepPlan* out) {
    for (const RequestId id : view.running()) {
      const PreemptMode mode = chance(0.8) ? PreemptMode::kRecompute : PreemptMode::kSwap;
      if (starts && chance(0.2)) out->preempt.push_back({id, mode});
    }
    for (const RequestId id : view.swapped()) {
      if (!starts || chance(0.1)) out->reject.push_back(id);
    }
    for (const RequestId id : view.waiting()) {
      if (starts && chance(0.01)) out->reject.push_back(id);
    }
    if (!starts) return;
    const AdapterPool& pool = view.adapters();
    for (AdapterId id = pool.oldest(); id != pool.kNone; id = pool.newer(id)) {
      if (pool.evictable(id) && pool.users(id) == 0 && chance(0.2)) out->evict.push_back(id);
    }
    const auto id = static_cast<AdapterId>(rng_.below(view.adapter_table().size()));
    if (pool.residency(id) == Residency::kAbsent && pool.fits(id)) out->load.push_back(id);
  }

  RngStream rng_;
  double disorder_;
  std::unique_ptr<ReplicaPolicy> policy_ = vllm_lora();
  WholeScan scan_;
  Tally* tally_;
  StepPlan expected_;
};

// Few slots and many adapters, on one to three replicas between which requests migrate.
TEST(VllmLora, PlansAsAScanOfTheWholeQueueAfterAnyHistory) {
  Tally tally;
  std::int64_t migrations = 0;
  for (std::uint64_t seed = 0; seed < kHistories; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RngStream rng(seed, "vllm-lora history");
    test::WorkloadShape shape;
    shape.requests = 200;
    shape.adapters = 2 + static_cast<int>(rng.below(30));
    shape.base_share = rng.below(3) == 0 ? 0 : 0.15;
    shape.burst = rng.below(4) == 0;
    shape.max_prompt = 60;
    shape.max_output = 40;
    test::RunOptions options;
    options.technique = "vllm-lora";
    options.engine.limits.max_batch = 1 + static_cast<int>(rng.below(40));
    options.engine.limits.max_batch_tokens = rng.below(2) == 0 ? 128 : 1024;
    options.engine.adapter_slots = 1 + static_cast<int>(rng.below(4));
    if (rng.below(3) == 0) options.engine.adapter_memory = AdapterMemory::kUnified;
    options.kv_blocks = 14 + static_cast<std::int64_t>(rng.below(150));
    options.replicas = 1 + static_cast<int>(rng.below(3));
    if (rng.below(4) == 0) options.max_waiting = 10;
    const double disorder = rng.below(3) == 0 ? 0 : 0.15;
    std::uint64_t replica = 0;
    options.replica_policy = [&] {
      return std::make_unique<BothAsked>(8 * seed + replica++, disorder, &tally);
    };
    test::ClusterNotes notes;
    options.cluster_policy = [&] { return std::make_unique<test::ChaosCluster>(seed, &notes); };
    const Workload workload = test::make_workload(shape, seed);
    const RunRecord record = test::run(workload, options);
    EXPECT_EQ(test::violation(workload, record), "");
    EXPECT_EQ(notes.violation, "");
    migrations += record.cluster.migrations;
    ASSERT_EQ(tally.difference, "");
  }
  // That all of it happened, and often.
  const auto n = static_cast<int>(kHistories);
  EXPECT_GT(tally.plans, 300 * n);
  EXPECT_GT(tally.behind, 20 * n);
  EXPECT_GT(tally.preempting, 5 * n);
  EXPECT_GT(tally.evicting, 20 * n);
  EXPECT_GT(tally.base, 10 * n);
  EXPECT_GT(tally.others, 20 * n);
  EXPECT_GT(migrations, 15 * n);
}

// 2,000 requests to 200 adapters with 3 slots: the same log, byte for byte.
TEST(VllmLora, AStarvingRunHasTheLogOfAScanOfTheWholeQueue) {
  test::WorkloadShape shape;
  shape.requests = 2000;
  shape.adapters = 200;
  shape.base_share = 0.02;
  shape.rate_per_s = 20'000;
  test::RunOptions options;
  options.technique = "vllm-lora";
  options.engine = test::small_engine();
  options.engine.limits.max_batch = 64;
  options.engine.adapter_slots = 3;
  options.record.decision_text = true;
  const Workload workload = test::make_workload(shape, 5);
  const RunRecord ours = test::run(workload, options);
  std::size_t looked_at = 0;
  options.replica_policy = [&] { return std::make_unique<WholeScan>(&looked_at); };
  const RunRecord scanned = test::run(workload, options);
  EXPECT_EQ(ours.decisions, scanned.decisions);
  EXPECT_EQ(ours.decision_hash.value(), scanned.decision_hash.value());
  // It was a run in which the scan is long: hundreds of requests at every step.
  EXPECT_GT(looked_at, static_cast<std::size_t>(100 * ours.steps));
}

}  // namespace
}  // namespace servelab

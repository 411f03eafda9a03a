// dLoRA's algorithms on cases small enough to follow by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "baselines/shared/credits.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

// The paper's example (4.2): merged iterations take 50 ms, unmerged 100 ms, switching 100 ms.
class ExampleCost final : public CostModel {
 public:
  StepCost step(const BatchShape&, Exec exec, LoraKernel) const override {
    StepCost cost;
    cost.dense = 50'000'000;
    if (exec == Exec::kUnmerged) cost.lora = 50'000'000;
    return cost;
  }
  TimeNs merge(int) const override { return 100'000'000; }
  TimeNs unmerge(int) const override { return 100'000'000; }
  TimeNs host_to_device(Bytes) const override { return 1; }
  TimeNs device_to_host(Bytes) const override { return 1; }
};

class Preloaded final : public ClusterPolicy {
 public:
  ReplicaId route(const RoutedRequest&, const ClusterView&) override { return ReplicaId{}; }
  Deployment deploy(const DeploymentView& view) override {
    Deployment deployment = view.equal_replicas();
    for (std::size_t i = 0; i < view.adapter_table().size(); ++i) {
      deployment.units[0].adapters.push_back(static_cast<AdapterId>(static_cast<std::uint32_t>(i)));
    }
    return deployment;
  }
};

RunRecord run_with(const CostModel& cost, const Workload& workload, const std::string& technique_id,
                   const std::string& params, int max_batch) {
  const auto technique = Registry<Technique>::instance().make(technique_id);
  ParamFields fields;
  technique->fields(fields);
  fields.bind(parse_yaml(params, "test"), "test");
  ClusterSettings settings;
  settings.engine.limits.max_batch = max_batch;
  technique->configure(&settings.engine);
  settings.models[0].memory[1].kv_per_token = kKiB;
  settings.device_memory = 256 * kMiB;
  RunRecord record;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  Cluster cluster(
      settings, workload, [&] { return technique->replica_policy(); },
      std::make_unique<Preloaded>(), backend.get(), &timeline, &record);
  cluster.run();
  return record;
}

Workload requests(const std::vector<int>& adapter_of, int output_tokens) {
  Workload workload;
  for (int i = 0; i < 8; ++i) {
    workload.adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, 64 * kKiB});
  }
  for (const int adapter : adapter_of) {
    Request r;
    r.adapter = static_cast<AdapterId>(static_cast<std::uint32_t>(adapter));
    r.prompt_tokens = 10;
    r.output_tokens = output_tokens;
    r.output_limit_tokens = output_tokens;
    workload.requests.push_back(r);
  }
  return workload;
}

TEST(DloraExample, ThreeIterationsTake300msUnmergedAnd250msMerged) {
  const Workload workload = requests({0}, 3);
  const ExampleCost cost;
  const RunRecord unmerged = run_with(cost, workload, "unmerged-only", "", 16);
  EXPECT_EQ(unmerged.end, 300'000'000);
  const RunRecord merged = run_with(cost, workload, "merged-only", "", 16);
  EXPECT_EQ(merged.end, 250'000'000);
}

// With one adapter only, merging pays from the second iteration on; dLoRA must find that out and
// stay merged.
TEST(Dlora, MergesForASingleAdapterAndStays) {
  const Workload workload = requests({0, 0, 0, 0}, 400);
  const ExampleCost cost;
  const RunRecord record = run_with(cost, workload, "dlora", "", 16);
  EXPECT_EQ(record.replicas[0].switches, 1);
  EXPECT_GT(record.replicas[0].merged_steps, 300);
}

// With every request of another adapter, merging can only serve one of eight at a time.
TEST(Dlora, StaysUnmergedForUniformAdapters) {
  const Workload workload = requests({0, 1, 2, 3, 4, 5, 6, 7}, 200);
  const ExampleCost cost;
  const RunRecord record = run_with(cost, workload, "dlora", "", 16);
  EXPECT_EQ(record.replicas[0].merged_steps, 0);
  EXPECT_EQ(record.replicas[0].steps, 200);
}

// Algorithm 2. Twelve of sixteen requests of one adapter: merged iterations, twice as fast, serve
// more in a time, so alpha falls to where the batch is merged. Two of sixteen: it rises.
TEST(Dlora, AlphaMovesTowardsTheFasterMode) {
  const ExampleCost cost;
  const auto alphas = [&](int of_one, const std::string& params) {
    std::vector<int> adapters(16, 1);
    for (std::size_t i = 0; i < 16; ++i) {
      adapters[i] = i < static_cast<std::size_t>(of_one) ? 0 : 1 + static_cast<int>(i) % 7;
    }
    const RunRecord record = run_with(cost, requests(adapters, 200), "dlora",
                                      "break_iterations: 5\nbeta: 0.05\n" + params, 16);
    std::vector<double> values;
    for (const double value : record.gauges[0].value) values.push_back(value);
    EXPECT_EQ(record.replicas[0].merged_steps > 0, of_one == 12);
    return values;
  };
  const std::vector<double> falls = alphas(12, "alpha: 1\n");
  ASSERT_GT(falls.size(), 3u);
  const auto least = std::min_element(falls.begin(), falls.end());  // then the twelve have ended
  EXPECT_TRUE(std::is_sorted(std::make_reverse_iterator(least), falls.rend()));
  EXPECT_LT(*least, 0.9);  // as a bin ends; merging, above, needs 0.75
  const std::vector<double> rises = alphas(2, "alpha: 0.3\nalpha_max: 0.9\n");
  ASSERT_GT(rises.size(), 3u);
  EXPECT_TRUE(std::is_sorted(rises.begin(), rises.end()));
  EXPECT_DOUBLE_EQ(rises.back(), 0.9);
}

TEST(Dlora, GaugesPublishTheThresholds) {
  const Workload workload = requests({0, 0, 0, 1}, 50);
  const ExampleCost cost;
  const RunRecord record = run_with(cost, workload, "dlora", "", 16);
  ASSERT_EQ(record.gauges.size(), 3u);
  EXPECT_EQ(record.gauges[0].name, "alpha_switch");
  EXPECT_FALSE(record.gauges[0].value.empty());
}

// One cold request beside an endless stream of hot ones on a batch of four: credits let it finish
// long before the stream ends, and later when they are larger.
TEST(Dlora, CreditsBoundTheWaitOfAColdAdapter) {
  std::vector<int> adapters(400, 0);
  adapters[6] = 1;
  const ExampleCost cost;
  const auto finish = [&](const std::string& params) {
    const RunRecord record =
        run_with(cost, requests(adapters, 8), "dlora", "alpha: 0.5\nbeta: 0.1\n" + params, 4);
    return record.requests[6].last_token;
  };
  const TimeNs soon = finish("starve_credit: 1");
  const TimeNs later = finish("starve_credit: 20");
  const TimeNs never = finish("starve_credit: 1000000");
  EXPECT_LT(soon, later);
  EXPECT_LT(later, never);
}

// Adapter 0 overtakes adapter 1 until the latter starves, then pays back until it does not.
class CreditsPolicy final : public ReplicaPolicy {
 public:
  bool plan(const ReplicaView& view, StepPlan*) override {
    CreditBook book;
    book.open(2, {10, 12, 11});
    const std::vector<AdapterId> active = {AdapterId{0}, AdapterId{1}};
    BatchDifference difference;
    difference.compute({RequestId{1}}, {RequestId{0}});
    EXPECT_FALSE(book.update(active));
    for (int i = 0; i < 3; ++i) book.transfer(view, difference, 1.0, kBaseModel);
    EXPECT_EQ(book.credit(AdapterId{0}), 7);
    EXPECT_EQ(book.credit(AdapterId{1}), 13);
    EXPECT_TRUE(book.update(active));
    EXPECT_TRUE(book.starving(AdapterId{1}));
    difference.compute({RequestId{0}}, {RequestId{1}});
    book.transfer(view, difference, 1.5, kBaseModel);
    EXPECT_TRUE(book.update(active)) << "11.5 is not below the normal threshold";
    book.transfer(view, difference, 1.0, kBaseModel);
    EXPECT_FALSE(book.update(active));
    EXPECT_EQ(book.credit(AdapterId{0}) + book.credit(AdapterId{1}) + book.credit(kBaseModel), 30);
    ++calls_;
    return false;
  }
  static int calls_;
};
int CreditsPolicy::calls_ = 0;

TEST(Credits, AreConservedAndSwitchStateAtTheThresholds) {
  const Workload workload = requests({0, 1}, 1);
  const ExampleCost cost;
  ClusterSettings settings;
  settings.models[0].memory[1].kv_per_token = kKiB;
  settings.device_memory = 64 * kMiB;
  RunRecord record;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  Cluster cluster(
      settings, workload, [] { return std::make_unique<CreditsPolicy>(); },
      std::make_unique<Preloaded>(), backend.get(), &timeline, &record);
  cluster.run();
  EXPECT_EQ(CreditsPolicy::calls_, 1);
}

TEST(BatchDifference, FindsWhoWasDisplacedAndWhoOvertook) {
  BatchDifference difference;
  difference.compute({RequestId{1}, RequestId{2}, RequestId{3}}, {RequestId{2}, RequestId{7}});
  EXPECT_EQ(difference.displaced, (std::vector<RequestId>{RequestId{1}, RequestId{3}}));
  EXPECT_EQ(difference.overtaking, (std::vector<RequestId>{RequestId{7}}));
}

}  // namespace
}  // namespace servelab

// Placement of adapters on GPUs: Algorithms 1 and 2 by hand, what holds for any workload, and units
// with different slots in a run.
#include "baselines/shared/adapter_packing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "engine/core/rng.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum Feature : std::int64_t {
  kAdapters,
  kRateSum,
  kRateStd,
  kSizeMax,
  kSizeMean,
  kSizeStd,
  kSlots
};

Forest constant(double value) { return Forest({{0}, {-1}, {0}, {value}}, "test"); }
// `low` up to the threshold, `high` above.
Forest stump(Feature feature, double threshold, double low, double high) {
  return Forest({{0}, {feature, -1, -1}, {2, 0, 0}, {threshold, low, high}}, "test");
}

AdapterId id_of(std::size_t i) { return static_cast<AdapterId>(static_cast<std::uint32_t>(i)); }

PackingProblem problem_of(std::vector<AdapterDemand> adapters, int gpus) {
  return {std::move(adapters), gpus, [](int, int) { return std::int64_t{1}; }};
}

// So many adapters alike.
PackingProblem alike(int adapters, int gpus, int rank = 8, double rate = 1) {
  std::vector<AdapterDemand> all;
  for (int i = 0; i < adapters; ++i)
    all.push_back({id_of(static_cast<std::size_t>(i)), rank, rate});
  return problem_of(all, gpus);
}

std::vector<std::size_t> sizes(const Packing& packing) {
  std::vector<std::size_t> sizes;
  for (const PackedGpu& gpu : packing.gpus) sizes.push_back(gpu.adapters.size());
  return sizes;
}

std::vector<int> slots(const Packing& packing) {
  std::vector<int> slots;
  for (const PackedGpu& gpu : packing.gpus) slots.push_back(gpu.slots);
  return slots;
}

TEST(Forest, AveragesItsTreesAndGoesLeftAtTheThreshold) {
  const Forest two({{0, 3}, {kRateSum, -1, -1, -1}, {2, 0, 0, 0}, {5, 1, 2, 10}}, "test");
  Features features{};
  features[kRateSum] = 5;
  EXPECT_DOUBLE_EQ(two.predict(features), 5.5);
  features[kRateSum] = 5.5f;
  EXPECT_DOUBLE_EQ(two.predict(features), 6);
  EXPECT_EQ(two.leaves(), 3u);
}

TEST(Forest, RefusesArraysThatAreNoTrees) {
  const auto error = [](const ForestArrays& arrays) -> std::string {
    try {
      const Forest forest(arrays, "m.h5: /throughput");
    } catch (const SpecError& problem) {
      return problem.what();
    }
    return "";
  };
  EXPECT_EQ(error({{}, {}, {}, {}}), "m.h5: /throughput has no tree");
  EXPECT_THAT(error({{0}, {0, -1, -1}, {2, 0}, {5, 1, 2}}), HasSubstr("of different lengths"));
  EXPECT_THAT(error({{0}, {0, -1, -1}, {0, 0, 0}, {5, 1, 2}}), HasSubstr("not in its tree"));
  EXPECT_THAT(error({{0}, {0, -1, -1}, {3, 0, 0}, {5, 1, 2}}), HasSubstr("not in its tree"));
  EXPECT_THAT(error({{0}, {0}, {1}, {5}}), HasSubstr("not in its tree"));
  EXPECT_THAT(error({{0}, {7, -1, -1}, {2, 0, 0}, {5, 1, 2}}), HasSubstr("a feature that there"));
  EXPECT_THAT(error({{0, 1}, {-1}, {0}, {5}}), HasSubstr("a tree without nodes"));
}

TEST(AdapterPacking, OrdersBySizeThenZigzagByRate) {
  const std::vector<AdapterDemand> ordered = priority_order(
      {{id_of(0), 8, 1}, {id_of(1), 16, 5}, {id_of(2), 8, 4}, {id_of(3), 8, 3}, {id_of(4), 8, 2}});
  std::vector<std::uint32_t> ids;
  for (const AdapterDemand& adapter : ordered) {
    ids.push_back(static_cast<std::uint32_t>(index(adapter.id)));
  }
  EXPECT_THAT(ids, ElementsAre(1, 2, 0, 3, 4));
}

TEST(AdapterPacking, FeaturesAreThoseOfTheAdapters) {
  GpuFeatures all;
  for (const AdapterDemand& adapter : {AdapterDemand{id_of(0), 8, 1}, AdapterDemand{id_of(1), 8, 3},
                                       AdapterDemand{id_of(2), 32, 2}}) {
    all.add(adapter);
  }
  const Features features = all.with_slots(2);
  EXPECT_EQ(features[kAdapters], 3);
  EXPECT_EQ(features[kRateSum], 6);
  EXPECT_NEAR(features[kRateStd], 0.816497, 1e-6);
  EXPECT_EQ(features[kSizeMax], 32);
  EXPECT_EQ(features[kSizeMean], 16);
  EXPECT_NEAR(features[kSizeStd], 11.313708, 1e-5);
  EXPECT_EQ(features[kSlots], 2);
}

// A GPU takes 20 requests/s: it passes at 8 and 16 adapters of one, fails at 32, gives back 16, and
// is closed.
TEST(AdapterPacking, ClosesAGpuAtTheTestThatFailsAndGoesOnWithWhatItGaveBack) {
  const Forest tokens = constant(100), starves = stump(kRateSum, 20, 0, 1);
  const Packing packing = pack_greedily(alike(48, 4), {&tokens, &starves});
  EXPECT_EQ(packing.refused, "");
  EXPECT_THAT(sizes(packing), ElementsAre(16, 16, 16, 0));
  EXPECT_EQ(packing.gpus[1].slot_rank, 8);
  EXPECT_THAT(packing.gpus[3].adapters, ElementsAre());
}

// Ties go up a step of A_max at each test; where a larger A_max lowers throughput it stays.
TEST(AdapterPacking, RaisesAmaxByOneStepATestAsLongAsThroughputDoesNotFall) {
  const Forest even = constant(100), never = constant(0);
  EXPECT_THAT(slots(pack_greedily(alike(64, 1), {&even, &never})), ElementsAre(64));
  EXPECT_THAT(slots(pack_greedily(alike(20, 1), {&even, &never})), ElementsAre(20))
      << "no more slots than adapters";
  const Forest falls = stump(kSlots, 16, 100, 90);
  EXPECT_THAT(slots(pack_greedily(alike(64, 1), {&falls, &never})), ElementsAre(16));
}

TEST(AdapterPacking, TakesNoAmaxThatTheServerRefuses) {
  const Forest rises = stump(kSlots, 32, 10, 100), never = constant(0);
  PackingProblem problem = alike(64, 1, 32);
  problem.kv_tokens = [](int slots, int rank) { return slots * rank > 16 * 32 ? 0 : 1; };
  EXPECT_THAT(slots(pack_greedily(problem, {&rises, &never})), ElementsAre(16));
  problem.kv_tokens = [](int, int) { return 0; };
  EXPECT_THAT(pack_greedily(problem, {&rises, &never}).refused, HasSubstr("starvation"));
}

TEST(AdapterPacking, AFailingFinalTestIsAnErrorUnlessOtherGpusAreTried) {
  const Forest tokens = constant(100), starves = stump(kRateSum, 20, 0, 1);
  const PackingModels models{&tokens, &starves};
  EXPECT_THAT(pack_greedily(alike(24, 2), models).refused,
              HasSubstr("the last 8 adapters do not pass the final test on GPU 0"));
  EXPECT_THAT(sizes(pack_greedily(alike(24, 2), models, {.retry_final = true})),
              ElementsAre(16, 8));
  EXPECT_THAT(pack_greedily(alike(64, 3), models).refused,
              HasSubstr("16 of 64 adapters are left when all 3 GPUs are full"));
}

TEST(AdapterPacking, BaselinesFillAndSpreadAsThePaperSays) {
  const Forest tokens = constant(100), starves = stump(kRateSum, 20, 0, 1);
  EXPECT_THAT(sizes(pack_by_backbone(alike(25, 3), 10, 1)), ElementsAre(10, 10, 5));
  EXPECT_THAT(slots(pack_by_backbone(alike(25, 3), 10, 0.5)), ElementsAre(5, 5, 3));
  EXPECT_THAT(pack_by_backbone(alike(31, 3), 10, 1).refused, HasSubstr("3 GPUs"));
  const Packing spread = pack_for_latency(alike(40, 4), {&tokens, &starves});
  EXPECT_THAT(sizes(spread), ElementsAre(10, 10, 10, 10));
  EXPECT_THAT(slots(spread), ElementsAre(10, 10, 10, 10));
  EXPECT_THAT(pack_for_latency(alike(84, 4), {&tokens, &starves}).refused,
              HasSubstr("GPU 0 with 21 adapters is predicted to starve"));
}

// With a margin a GPU that takes 20 requests/s is filled as if it took 16; what is said of it is at
// the rates expected.
TEST(AdapterPacking, AMarginRaisesRatesForDecisionsOnly) {
  const Forest tokens = stump(kRateSum, 16, 100, 200), starves = stump(kRateSum, 20, 0, 1);
  PackingModels models{&tokens, &starves};
  EXPECT_THAT(sizes(pack_greedily(alike(20, 2), models)), ElementsAre(20, 0));
  models.margin = 0.25;
  const Packing packing = pack_greedily(alike(32, 3), models);
  EXPECT_THAT(sizes(packing), ElementsAre(16, 16, 0));
  EXPECT_EQ(packing.gpus[0].features[kRateSum], 16);
  EXPECT_EQ(packing.gpus[0].tokens_per_s, 100);
  EXPECT_EQ(packing.gpus[0].starvation, 0);
  EXPECT_THAT(pack_for_latency(alike(34, 2), models).refused, HasSubstr("predicted to starve"));
  EXPECT_THAT(sizes(pack_again(alike(32, 3), models, std::vector<int>(32, 0))),
              ElementsAre(16, 16, 0));
}

// GPU 0 would starve with 24 of the 20 that it takes: four go, and the new one with them.
TEST(AdapterPacking, APlanInUseIsChangedByAsFewMovesAsCanBe) {
  const Forest tokens = constant(100), starves = stump(kRateSum, 20, 0, 1);
  const PackingModels models{&tokens, &starves};
  PackingProblem problem = alike(34, 3);
  std::vector<int> before(34, 0);
  std::fill(before.begin() + 24, before.end(), 2);
  before[33] = -1;
  const Packing packing = pack_again(problem, models, before);
  EXPECT_THAT(sizes(packing), ElementsAre(20, 0, 14));
  const Packing same = pack_again(problem, models, [&] {
    std::vector<int> after(34);
    for (std::size_t gpu = 0; gpu < 3; ++gpu) {
      for (const AdapterId id : packing.gpus[gpu].adapters)
        after[index(id)] = static_cast<int>(gpu);
    }
    return after;
  }());
  for (std::size_t gpu = 0; gpu < 3; ++gpu) {
    EXPECT_EQ(same.gpus[gpu].adapters, packing.gpus[gpu].adapters);
  }
  EXPECT_THAT(pack_again(alike(61, 3), models, std::vector<int>(61, 1)).refused,
              HasSubstr("no GPU takes adapter"));
}

// A random workload, and models that are random but say that more load starves.
struct Random {
  PackingProblem problem;
  Forest tokens, starves;
  explicit Random(std::uint64_t seed)
      : tokens(stump(kSlots, static_cast<double>(1 + seed % 200), 50, 60)),
        starves(stump(kRateSum, 1 + static_cast<double>(seed % 97), 0.1, 0.9)) {
    RngStream rng(seed, "workload");
    const double rates[] = {0.0125, 0.1, 0.1, 0.8, 3.2};
    const int ranks[] = {8, 16, 32};
    const auto count = 1 + rng.below(500);
    for (std::size_t i = 0; i < count; ++i) {
      problem.adapters.push_back({id_of(i), ranks[rng.below(3)], rates[rng.below(5)]});
    }
    problem.gpus = 1 + static_cast<int>(rng.below(6));
    const auto bytes = static_cast<int>(500 + rng.below(8000));
    problem.kv_tokens = [bytes](int slots, int rank) {
      return std::max<std::int64_t>(0, bytes - slots * rank);
    };
  }
  std::vector<Packing> all() const {
    const PackingModels models{&tokens, &starves};
    return {pack_greedily(problem, models), pack_greedily(problem, models, {.retry_final = true}),
            pack_for_latency(problem, models), pack_by_backbone(problem, 20, 0.5),
            pack_at_random(problem, 7)};
  }
};

TEST(AdapterPacking, EveryAdapterIsPlacedOnceOrTheErrorSaysWhy) {
  int placed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    const Random random(seed);
    const std::vector<Packing> packings = random.all();
    for (std::size_t method = 0; method < packings.size(); ++method) {
      SCOPED_TRACE(method);
      const Packing& packing = packings[method];
      if (!packing.refused.empty()) {
        EXPECT_TRUE(packing.gpus.empty());
        ++refused;
        continue;
      }
      ++placed;
      ASSERT_EQ(packing.gpus.size(), static_cast<std::size_t>(random.problem.gpus));
      std::set<AdapterId> seen;
      for (const PackedGpu& gpu : packing.gpus) {
        int widest = 0;
        for (const AdapterId id : gpu.adapters) {
          ASSERT_TRUE(seen.insert(id).second);
          widest = std::max(widest, random.problem.adapters[index(id)].rank);
        }
        ASSERT_EQ(gpu.slot_rank, widest);
        ASSERT_LE(gpu.slots, static_cast<int>(gpu.adapters.size()));
        ASSERT_EQ(gpu.slots == 0, gpu.adapters.empty());
        if (method > 2 || gpu.adapters.empty()) continue;  // baselines know neither
        ASSERT_GT(random.problem.kv_tokens(gpu.slots, gpu.slot_rank), 0);
        ASSERT_LE(random.starves.predict(gpu.features), 0.5);
      }
      ASSERT_EQ(seen.size(), random.problem.adapters.size());
    }
  }
  EXPECT_GT(placed, 500);
  EXPECT_GT(refused, 500);
}

// Which adapters are listed first changes no GPU's features: those that are alike change places.
TEST(AdapterPacking, ThePlanDoesNotDependOnTheOrderOfAdapters) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Random random(seed);
    PackingProblem shuffled = random.problem;
    RngStream rng(seed, "order");
    rng.shuffle(&shuffled.adapters);
    const PackingModels models{&random.tokens, &random.starves};
    for (const bool greedy : {true, false}) {
      const Packing a =
          greedy ? pack_greedily(random.problem, models) : pack_for_latency(random.problem, models);
      const Packing b =
          greedy ? pack_greedily(shuffled, models) : pack_for_latency(shuffled, models);
      ASSERT_EQ(a.refused, b.refused);
      for (std::size_t i = 0; i < a.gpus.size(); ++i) {
        ASSERT_EQ(a.gpus[i].adapters, b.gpus[i].adapters);
        ASSERT_EQ(a.gpus[i].features, b.gpus[i].features);
      }
    }
  }
}

// Units with different slots, one of them off: each request is served where its adapter is.
TEST(AdapterPacking, ARunKeepsToThePlacement) {
  test::WorkloadShape shape;
  shape.adapters = 9;
  shape.requests = 500;
  const Workload workload = test::make_workload(shape, 3);
  test::RunOptions options;
  options.technique = "vllm-lora";
  options.engine = test::small_engine();
  options.replicas = 4;
  options.route = "random-placement";
  options.route_params = "{placement_seed: 4}";
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  std::set<int> different;
  std::vector<const Unit*> on;
  std::size_t adapters = 0;
  for (const Unit& unit : record.deployment.units) {
    EXPECT_EQ(unit.off, unit.repository->empty());
    adapters += unit.repository->size();
    if (unit.off) continue;
    on.push_back(&unit);
    different.insert(unit.adapter_slots);
  }
  EXPECT_EQ(adapters, 9u);
  EXPECT_GT(different.size(), 1u) << "a draw whose units have different slots";
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    ASSERT_TRUE(on.at(index(record.requests[i].replica))->stores(workload.requests[i].adapter));
  }
  std::map<ReplicaId, int> resident, most;
  for (const EventRecord& event : record.events) {
    if (event.code == EventCode::kLoad) ++resident[event.replica];
    if (event.code == EventCode::kEvict) --resident[event.replica];
    most[event.replica] = std::max(most[event.replica], resident[event.replica]);
  }
  for (std::size_t i = 0; i < on.size(); ++i) {
    EXPECT_LE(most[static_cast<ReplicaId>(static_cast<std::uint16_t>(i))], on[i]->adapter_slots);
  }
}

}  // namespace
}  // namespace servelab

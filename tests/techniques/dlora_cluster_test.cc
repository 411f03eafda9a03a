// dLoRA across replicas: placement, dispatch and the trigger of migration on cases small enough to
// follow by hand, and whole runs whose outcome follows from the algorithm.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "baselines/shared/burst_tolerance.h"
#include "baselines/shared/comigration.h"
#include "engine/core/rng.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

AdapterId adapter(std::uint32_t i) { return static_cast<AdapterId>(i); }

PlacementProblem problem_of(std::vector<double> load, std::size_t replicas, std::int64_t blocks) {
  PlacementProblem problem;
  problem.adapter_blocks.assign(load.size(), 1);
  problem.preload_adapters = static_cast<std::int64_t>(load.size());
  problem.load = std::move(load);
  problem.replicas = replicas;
  problem.replica_blocks = blocks;
  problem.preload_blocks = blocks;
  return problem;
}

// The hot adapter goes to replica 0, the other to replica 1, which has more memory left. Then the
// hot one has the lowest tolerance, 9 / 0.75 = 12 against 9 / 0.25 = 36, and gets a second copy:
// 17 / 0.75 = 22.7. It is everywhere then, and nothing can raise the lowest tolerance any more.
TEST(BurstTolerance, TheHotAdapterGetsTheSecondCopy) {
  const PlacementProblem problem = problem_of({0.75, 0.25}, 2, 10);
  const Placement placement = place_by_burst_tolerance(problem);
  EXPECT_EQ(placement[0], (std::vector<AdapterId>{adapter(0)}));
  EXPECT_EQ(placement[1], (std::vector<AdapterId>{adapter(1), adapter(0)}));
  EXPECT_NEAR(lowest_tolerance(problem, placement), 17 / 0.75, 1e-9);
}

// A copy of the colder adapter (tolerance 4 / 0.5 = 8) would take the memory that the other one's
// tolerance stands on: 3 blocks / 0.5 = 6.
TEST(BurstTolerance, StopsBeforeTheLowestFalls) {
  PlacementProblem problem = problem_of({0.5, 0.5}, 2, 10);
  problem.adapter_blocks = {6, 6};
  const Placement placement = place_by_burst_tolerance(problem);
  EXPECT_EQ(placement[0].size() + placement[1].size(), 2u);
  EXPECT_NEAR(lowest_tolerance(problem, placement), 8, 1e-9);
}

TEST(BurstTolerance, EveryAdapterHasACopyWhileThereIsRoomAndLimitsHold) {
  RngStream rng(1, "placement");
  for (int round = 0; round < 300; ++round) {
    const std::size_t adapters = 1 + rng.below(30);
    std::vector<double> load(adapters);
    for (double& one : load) one = 0.01 + rng.uniform();
    PlacementProblem problem = problem_of(load, 1 + rng.below(6), 5 + rng.below(100));
    for (std::int64_t& blocks : problem.adapter_blocks) blocks = 1 + rng.below(4);
    problem.preload_blocks = 1 + rng.below(static_cast<std::uint32_t>(problem.replica_blocks));
    problem.preload_adapters = 1 + rng.below(40);
    const Placement placement = place_by_burst_tolerance(problem);
    std::vector<int> copies(adapters, 0);
    bool all_full = true;
    for (const auto& held : placement) {
      std::int64_t blocks = 0;
      std::vector<int> here(adapters, 0);
      for (const AdapterId id : held) {
        blocks += problem.adapter_blocks[index(id)];
        ++copies[index(id)];
        EXPECT_EQ(++here[index(id)], 1) << "two copies on one replica";
      }
      EXPECT_LE(blocks, problem.preload_blocks);
      EXPECT_LE(static_cast<std::int64_t>(held.size()), problem.preload_adapters);
      all_full &= blocks + 4 > problem.preload_blocks ||
                  static_cast<std::int64_t>(held.size()) == problem.preload_adapters;
    }
    for (const int count : copies) EXPECT_TRUE(count > 0 || all_full);
  }
}

// Greedy never ends below the placement with one copy each.
TEST(BurstTolerance, MoreCopiesNeverLowerTheTolerance) {
  RngStream rng(2, "placement");
  for (int round = 0; round < 100; ++round) {
    std::vector<double> load(2 + rng.below(10));
    for (double& one : load) one = 0.01 + rng.uniform();
    const PlacementProblem problem = problem_of(load, 2 + rng.below(4), 60);
    Placement placement = place_by_burst_tolerance(problem);
    const double end = lowest_tolerance(problem, placement);
    std::vector<bool> seen(load.size(), false);
    for (auto& held : placement) {
      std::erase_if(held, [&](AdapterId id) {
        if (!seen[index(id)]) return !(seen[index(id)] = true);
        return true;
      });
    }
    EXPECT_GE(end, lowest_tolerance(problem, placement) - 1e-9);
  }
}

TEST(BurstTolerance, TheArtifactForcesOneCopyMoreThanReplicasAndAdapters) {
  const PlacementProblem problem = problem_of(std::vector<double>(12, 1.0 / 12), 4, 100);
  for (const ArtifactCopies copies :
       {ArtifactCopies::kOneAdapterEverywhere, ArtifactCopies::kInTurn}) {
    const Placement placement = place_as_artifact(problem, copies);
    std::vector<int> count(12, 0);
    for (const auto& held : placement) {
      for (const AdapterId id : held) ++count[index(id)];
    }
    const int total = std::accumulate(count.begin(), count.end(), 0);
    const int most = *std::max_element(count.begin(), count.end());
    if (copies == ArtifactCopies::kOneAdapterEverywhere) {
      EXPECT_EQ(total, 12 + 4 - 1);
      EXPECT_EQ(most, 4);
    } else {
      EXPECT_EQ(total, 12 + 4);
      EXPECT_EQ(most, 2);
    }
  }
}

ReplicaLoad load_of(std::size_t replica, double pending_s, double wait_s, double memory) {
  return {replica, pending_s, wait_s, memory};
}

// The average is 4.5 s. Replica 5 has more work than that, but nobody has waited long; replica 2
// has little work, but no memory left.
TEST(Comigration, PairsTheMostLoadedWithTheLeastLoaded) {
  ComigrationParams params;
  params.pairs = 3;
  const Selection selection =
      select_replicas({load_of(0, 9, 2, 0.2), load_of(1, 6, 2, 0.2), load_of(2, 1, 0, 0.95),
                       load_of(3, 2, 5, 0.2), load_of(4, 3, 0, 0.2), load_of(5, 6, 0.5, 0.2)},
                      params);
  EXPECT_EQ(selection.overloaded, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(selection.underloaded, (std::vector<std::size_t>{3, 4}));
}

TEST(Comigration, NoMoreReplicasThanPairs) {
  ComigrationParams params;
  params.pairs = 1;
  const Selection selection = select_replicas(
      {load_of(0, 8, 2, 0), load_of(1, 9, 2, 0), load_of(2, 2, 0, 0), load_of(3, 1, 0, 0)}, params);
  EXPECT_EQ(selection.overloaded, (std::vector<std::size_t>{1}));
  EXPECT_EQ(selection.underloaded, (std::vector<std::size_t>{3}));
}

TEST(Comigration, ReplicasThatNobodyWaitsForAreLeftAlone) {
  EXPECT_TRUE(select_replicas({load_of(0, 9, 0.9, 0), load_of(1, 5, 0, 0)}, {}).overloaded.empty());
  EXPECT_TRUE(
      select_replicas({load_of(0, 5, 9, 0.99), load_of(1, 5, 9, 0.99)}, {}).overloaded.empty())
      << "there is nowhere to go";
}

// Requests whose lengths only the future knows: every fourth is 40 times longer, so that dispatch
// by counts leaves replicas with unequal work.
Workload uneven(int requests, std::uint64_t seed) {
  test::WorkloadShape shape;
  shape.requests = requests;
  shape.adapters = 6;
  shape.base_share = 0;
  shape.max_output = 20;
  shape.rate_per_s = 20000;
  Workload workload = test::make_workload(shape, seed);
  for (std::size_t i = 0; i < workload.requests.size(); i += 4) {
    Request& r = workload.requests[i];
    r.adapter = adapter(0);
    r.output_tokens = r.output_limit_tokens = 800;
  }
  return workload;
}

test::RunOptions cluster_of(const std::string& route, int replicas) {
  test::RunOptions options;
  options.technique = "dlora";
  options.route = route;
  options.replicas = replicas;
  options.engine = test::small_engine();
  options.kv_blocks = 4000;
  options.record.decision_text = true;
  return options;
}

TEST(DloraCluster, DispatchFollowsThePendingTime) {
  const Workload workload = uneven(160, 3);
  const RunRecord proactive = test::run(workload, cluster_of("dlora-proactive", 4));
  EXPECT_EQ(test::violation(workload, proactive), "");
  std::vector<int> served(4, 0);
  for (const RequestRecord& r : proactive.requests) ++served[index(r.replica)];
  for (const int count : served) EXPECT_NEAR(count, 40, 15);
  EXPECT_EQ(proactive.cluster.rebalances, 0);
}

TEST(DloraCluster, MigrationEvensOutWhatDispatchCouldNotKnow) {
  int moved = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Workload workload = uneven(400, seed);
    test::RunOptions options = cluster_of("dlora", 4);
    options.route_params = "interval_s: 0.001\nqueue_threshold_s: 0\nprior_exec_s: 0.001\neta_s: 0";
    const RunRecord record = test::run(workload, options);
    EXPECT_EQ(test::violation(workload, record), "");
    EXPECT_GT(record.cluster.rebalances, 0);
    EXPECT_EQ(record.cluster.failures, 0);
    EXPECT_GT(record.cluster.decision_time, 0);
    moved += static_cast<int>(record.cluster.migrations);
  }
  EXPECT_GT(moved, 0);
}

TEST(DloraCluster, ASolverAtItsLimitLeavesTheClusterAsItWasAndIsCounted) {
  const Workload workload = uneven(400, 0);
  test::RunOptions options = cluster_of("dlora", 4);
  options.route_params =
      "interval_s: 0.001\nqueue_threshold_s: 0\nprior_exec_s: 0.001\nmax_iterations: 1";
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_GT(record.cluster.failures, 0);
  EXPECT_EQ(record.cluster.migrations, 0);
}

TEST(DloraCluster, DecisionsAreReproducible) {
  const Workload workload = uneven(400, 1);
  test::RunOptions options = cluster_of("dlora", 4);
  options.route_params = "interval_s: 0.001\nqueue_threshold_s: 0\nprior_exec_s: 0.001";
  const RunRecord a = test::run(workload, options);
  const RunRecord b = test::run(workload, options);
  EXPECT_EQ(a.decisions, b.decisions);
  EXPECT_NE(a.decisions.find(" cluster rebalance"), std::string::npos);
  EXPECT_NE(a.decisions.find("migrate="), std::string::npos);
}

TEST(DloraCluster, RoundRobinKeepsToTheHolders) {
  const Workload workload = uneven(160, 3);
  for (const char* route : {"dlora-rr", "dlora-artifact-dispatch"}) {
    const RunRecord record = test::run(workload, cluster_of(route, 3));
    EXPECT_EQ(test::violation(workload, record), "") << route;
    EXPECT_EQ(record.replicas[0].loads + record.replicas[1].loads + record.replicas[2].loads, 0)
        << route << ": every adapter is preloaded where its requests go";
  }
}

TEST(DloraCluster, TheArtifactMovesRequestsOfOnePair) {
  const Workload workload = uneven(600, 2);
  test::RunOptions options = cluster_of("dlora-artifact", 4);
  options.technique = "dlora-artifact";
  options.route_params = "interval_s: 0.001\nrequest_threshold: 4\nprior_exec_s: 0.001\nmove_s: 0";
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_GT(record.cluster.migrations, 0);
}

}  // namespace
}  // namespace servelab

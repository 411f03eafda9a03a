// dLoRA's co-migration program at the size of a cluster.
#include "tests/support/migration_cluster.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "baselines/shared/migration_ilp.h"

namespace servelab {
namespace {

TEST(MigrationCluster, RepeatsItselfInSilence) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    test::MigrationCluster cluster;
    cluster.eta_s = seed % 2 == 0 ? 0.1 : 5;  // at the root, and beyond
    if (seed >= 4) cluster.device_bytes = 20e9;
    const MigrationProblem problem = test::make_migration_problem(cluster, seed);
    const MigrationSolution first = solve_migration(problem, {});
    const MigrationSolution second = solve_migration(problem, {});
    EXPECT_TRUE(first.moves);
    EXPECT_EQ(first.nodes > 0, seed % 2 == 1);
    EXPECT_EQ(first.replica_of, second.replica_of);
    EXPECT_EQ(first.objective_s, second.objective_s);
    EXPECT_EQ(first.iterations, second.iterations);
    EXPECT_EQ(first.nodes, second.nodes);
    EXPECT_EQ(solving_seconds(first), solving_seconds(second));
    EXPECT_LT(first.bottleneck_s, 0.8 * first.stay_s);
    EXPECT_LE(first.bound_s, first.objective_s + 1e-9);
    EXPECT_LE(first.objective_s, 1.06 * first.bound_s);
    EXPECT_LE(first.rounded_s, 1.05 * first.objective_s);
    EXPECT_NEAR(first.bottleneck_s, bottleneck_seconds(problem, {}, first.replica_of), 1e-9);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// A sweep solves for several runs at once.
TEST(MigrationCluster, SolvesInParallelAsAlone) {
  test::MigrationCluster cluster;
  cluster.pairs = 2;
  cluster.eta_s = 5;  // with a search
  std::vector<MigrationProblem> problems;
  std::vector<MigrationSolution> alone;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    problems.push_back(test::make_migration_problem(cluster, seed));
    alone.push_back(solve_migration(problems.back(), {}));
  }
  std::vector<MigrationSolution> together(problems.size());
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < problems.size(); ++n) {
    threads.emplace_back([&, n] { together[n] = solve_migration(problems[n], {}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t n = 0; n < problems.size(); ++n) {
    EXPECT_EQ(together[n].replica_of, alone[n].replica_of);
    EXPECT_EQ(together[n].objective_s, alone[n].objective_s);
    EXPECT_EQ(together[n].iterations, alone[n].iterations);
  }
}

}  // namespace
}  // namespace servelab

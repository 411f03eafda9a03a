#include "baselines/shared/migration_ilp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "tests/support/migration_cluster.h"
#include "tests/support/migration_oracles.h"

namespace servelab {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

constexpr int kBase = MigrationRequest::kBase;

MigrationOptions exact(MigrationForm form) {
  MigrationOptions options;
  options.form = form;
  options.class_width = 0;
  options.mip = {.max_nodes = 100'000, .relative_gap = 0};
  return options;
}

std::vector<int> homes(const MigrationProblem& problem) {
  std::vector<int> out;
  for (const MigrationRequest& request : problem.requests) out.push_back(request.home);
  return out;
}

struct Shape {
  int replicas = 2;
  int requests = 5;
  int adapters = 2;
  double device = 1e3;  // bytes; a request has 1 to 10, an adapter 1 to 4
  double host = 1e3;
  double eta_s = 0;
};

// Loads lean to replica 0.
MigrationProblem random_problem(const Shape& shape, RngStream* rng) {
  MigrationProblem problem;
  problem.link_bytes_per_s = 8;
  problem.eta_s = shape.eta_s;
  for (int k = 0; k < shape.adapters; ++k) {
    problem.adapters.push_back({std::floor(rng->uniform(1, 5))});
  }
  for (int j = 0; j < shape.replicas; ++j) {
    problem.replicas.push_back({std::floor(shape.device * rng->uniform(0.7, 1.3)),
                                std::floor(shape.host * rng->uniform(0.7, 1.3)),
                                {}});
  }
  for (int i = 0; i < shape.requests; ++i) {
    MigrationRequest request;
    request.adapter = static_cast<int>(rng->below(shape.adapters + 1)) - 1;
    request.home = static_cast<int>(shape.replicas * rng->uniform() * rng->uniform());
    request.exec_s = rng->uniform(0.5, 4);
    request.move_s = rng->uniform(0, 1);
    request.bytes = std::floor(rng->uniform(1, 11));
    problem.requests.push_back(request);
  }
  return problem;
}

// `count` requests alike at `home`.
void add_requests(MigrationProblem* problem, int count, int adapter, int home, double exec_s,
                  double bytes = 0) {
  for (int i = 0; i < count; ++i) {
    problem->requests.push_back({adapter, home, exec_s, 0.01, bytes});
  }
}

TEST(MigrationFull, AgreesWithExhaustiveSearch) {
  RngStream rng(1, "full");
  int infeasible = 0;
  int moved = 0;
  int swapped = 0;
  const MigrationOptions options = exact(MigrationForm::kFull);
  for (int n = 0; n < 400; ++n) {
    Shape shape;
    shape.replicas = n % 4 == 0 ? 3 : 2;
    shape.requests = static_cast<int>(rng.below(shape.replicas == 3 ? 6 : 8));
    shape.adapters = static_cast<int>(rng.below(4));
    shape.eta_s = n % 3 * 0.4;
    if (n % 2 == 0) shape.device = 14;
    if (n % 4 == 2) shape.host = 8;
    MigrationProblem problem = random_problem(shape, &rng);
    if (n % 5 == 0) problem.replicas[0].may_receive = problem.replicas[1].may_send = false;
    SCOPED_TRACE(n);
    const MigrationSolution solution = solve_migration(problem, options);
    const double best = test::best_full_seconds(problem);
    if (!std::isfinite(best)) {
      ++infeasible;
      EXPECT_EQ(solution.status, MipStatus::kInfeasible);
      EXPECT_EQ(solution.replica_of, homes(problem));
      continue;
    }
    ASSERT_EQ(solution.status, MipStatus::kOptimal);
    EXPECT_NEAR(solution.objective_s, best, 1e-5);
    EXPECT_NEAR(solution.bound_s, best, 1e-4);
    EXPECT_NEAR(solution.bottleneck_s, best, 1e-5);
    EXPECT_NEAR(bottleneck_seconds(problem, options, solution.replica_of), best, 1e-5);
    moved += solution.moves;

    // Relaxing can only help.
    MigrationOptions relaxed = exact(MigrationForm::kRelaxed);
    EXPECT_LE(solve_migration(problem, relaxed).bound_s, best + 1e-6);
    swapped += best > test::best_whole_seconds(problem, relaxed) + 1e-6;
  }
  EXPECT_THAT(infeasible, AllOf(Ge(20), Le(150)));
  EXPECT_GE(moved, 100);
  EXPECT_GE(swapped, 20);  // memory is a constraint, not only a cost
}

TEST(MigrationRelaxed, AgreesWithBalancingByHand) {
  RngStream rng(2, "relaxed");
  int moved = 0;
  for (int n = 0; n < 400; ++n) {
    Shape shape;
    shape.requests = static_cast<int>(rng.below(30));
    shape.adapters = static_cast<int>(rng.below(4));
    shape.eta_s = n % 4 * 0.7;
    MigrationProblem problem = random_problem(shape, &rng);
    if (n % 2 == 0) problem.replicas[0].may_receive = problem.replicas[1].may_send = false;
    SCOPED_TRACE(n);
    const MigrationOptions options = exact(MigrationForm::kRelaxed);
    const MigrationSolution solution = solve_migration(problem, options);
    const double best = test::best_split_seconds(problem, options);
    ASSERT_EQ(solution.status, MipStatus::kOptimal);
    EXPECT_NEAR(solution.objective_s, best, 1e-5);
    EXPECT_LE(solution.bound_s, best + 1e-5);
    EXPECT_LE(solution.bottleneck_s, solution.stay_s);
    // Rounding moves one request per seam at most; a vertex has as many seams as loads to balance.
    EXPECT_LE(solution.rounded_s, best + 2 * 5 + shape.eta_s * 2);
    moved += solution.moves;

    // Nearly the same requests as one: an answer that exists, and not much worse.
    MigrationOptions classes = options;
    classes.class_width = 0.1;
    const MigrationSolution rough = solve_migration(problem, classes);
    ASSERT_EQ(rough.status, MipStatus::kOptimal);
    EXPECT_GE(rough.objective_s, best - 1e-5);
    EXPECT_LE(rough.bound_s / (1 + 2 * classes.class_width), best + 1e-5);
    EXPECT_LE(rough.columns, solution.columns);
  }
  EXPECT_GE(moved, 100);
}

TEST(MigrationRelaxed, IsABoundForWholePlacementsWithSwapping) {
  RngStream rng(3, "whole");
  int swaps = 0;
  for (int n = 0; n < 200; ++n) {
    Shape shape;
    shape.replicas = 2 + n % 2;
    shape.requests = static_cast<int>(rng.below(7));
    shape.adapters = static_cast<int>(rng.below(4));
    shape.device = 9;
    shape.eta_s = n % 3 * 0.3;
    const MigrationProblem problem = random_problem(shape, &rng);
    SCOPED_TRACE(n);
    const MigrationOptions options = exact(MigrationForm::kRelaxed);
    const MigrationSolution solution = solve_migration(problem, options);
    ASSERT_EQ(solution.status, MipStatus::kOptimal);
    const double best = test::best_whole_seconds(problem, options);
    EXPECT_LE(solution.objective_s, best + 1e-5);
    EXPECT_GE(solution.bottleneck_s, best - 1e-9);  // one of the placements
    EXPECT_LE(solution.bottleneck_s, solution.stay_s);
    MigrationProblem roomy = problem;
    for (MigrationReplica& replica : roomy.replicas) replica.device_bytes = 1e9;
    swaps += solve_migration(roomy, options).objective_s < solution.objective_s - 1e-6;
  }
  EXPECT_GE(swaps, 50);
}

TEST(MigrationArtifact, AgreesWithBalancingByHand) {
  RngStream rng(4, "artifact");
  int infeasible = 0;
  int capped = 0;
  for (int n = 0; n < 300; ++n) {
    Shape shape;
    shape.requests = static_cast<int>(rng.below(12));
    shape.adapters = 1 + static_cast<int>(rng.below(3));
    shape.eta_s = 3;  // which this form does not see
    MigrationProblem problem = random_problem(shape, &rng);
    for (int k = 0; k < shape.adapters; ++k) {
      for (MigrationReplica& replica : problem.replicas) {
        if (rng.uniform() < 0.7) replica.resident.push_back(k);
      }
    }
    SCOPED_TRACE(n);
    const MigrationOptions options = exact(MigrationForm::kArtifact);
    const MigrationSolution solution = solve_migration(problem, options);
    const double best = test::best_split_seconds(problem, options);
    if (!std::isfinite(best)) {
      ++infeasible;
      EXPECT_EQ(solution.status, MipStatus::kInfeasible);
      EXPECT_EQ(solution.replica_of, homes(problem));
      continue;
    }
    ASSERT_EQ(solution.status, MipStatus::kOptimal);
    EXPECT_NEAR(solution.objective_s, best, 1e-5);
    for (MigrationReplica& replica : problem.replicas) replica.resident = {0, 0, 0};
    capped += best > test::best_split_seconds(problem, options) + 1e-6;
  }
  EXPECT_GE(infeasible, 5);
  EXPECT_GE(capped, 50);
}

TEST(Migration, AnOverloadedReplicaGivesHalfAway) {
  for (const auto form :
       {MigrationForm::kFull, MigrationForm::kRelaxed, MigrationForm::kArtifact}) {
    MigrationProblem problem;
    problem.adapters = {{1}};
    problem.replicas = {{1e3, 1e3, {0}}, {1e3, 1e3, {0}}};
    add_requests(&problem, 8, 0, 0, 1);
    const MigrationSolution solution = solve_migration(problem, exact(form));
    EXPECT_EQ(solution.status, MipStatus::kOptimal);
    EXPECT_TRUE(solution.moves);
    EXPECT_EQ(std::accumulate(solution.replica_of.begin(), solution.replica_of.end(), 0), 4);
    EXPECT_EQ(solution.stay_s, 8);
    EXPECT_NEAR(solution.bottleneck_s, form == MigrationForm::kArtifact ? 4.2 : 4.04, 1e-6);
  }
}

TEST(Migration, AffinityKeepsRequestsOfOneAdapterTogether) {
  for (const auto form : {MigrationForm::kFull, MigrationForm::kRelaxed}) {
    MigrationProblem problem;
    problem.adapters = {{1}, {1}};
    problem.replicas = {{1e3, 1e3, {0, 1}}, {1e3, 1e3, {}}};
    add_requests(&problem, 3, 0, 0, 1);
    add_requests(&problem, 2, 1, 0, 1.6);
    problem.eta_s = 0.5;
    const MigrationSolution solution = solve_migration(problem, exact(form));
    // 3 + 0.5 against 3.2 + 0.02 + 0.5: any mixture loads an adapter twice.
    EXPECT_TRUE(solution.replica_of == std::vector<int>({0, 0, 0, 1, 1}) ||
                solution.replica_of == std::vector<int>({1, 1, 1, 0, 0}));
    EXPECT_NEAR(solution.objective_s, 3.7, 0.021);
    EXPECT_NEAR(solution.stay_s, 3 + 3.2 + 1, 1e-9);
    // 13 s against 3 s: half of the requests would go, but for the adapter that must go with them.
    problem.requests.resize(3);
    problem.replicas[1].may_send = false;
    add_requests(&problem, 3, kBase, 1, 1);
    problem.eta_s = 10;
    EXPECT_FALSE(solve_migration(problem, exact(form)).moves);
  }
}

TEST(Migration, AnAdapterOfRequestsThatStayCostsNothingMore) {
  MigrationProblem problem;
  problem.adapters = {{1}, {1}};
  problem.eta_s = 2;
  problem.replicas = {{1e3, 1e3, {0, 1}, true, false}, {1e3, 1e3, {1}, false, true}};
  add_requests(&problem, 4, 0, 0, 1);
  add_requests(&problem, 4, 1, 0, 1);
  add_requests(&problem, 1, 1, 1, 1);  // it stays, so adapter 1 is at replica 1 anyway
  const MigrationSolution solution = solve_migration(problem, exact(MigrationForm::kRelaxed));
  EXPECT_THAT(solution.replica_of, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_NEAR(solution.objective_s, 7.04, 1e-6);  // 5 + 4 * 0.01 and one eta against 4 and one eta
}

TEST(Migration, MemoryMovesRequestsAlthoughTimesAreBalanced) {
  MigrationProblem problem;
  problem.adapters = {{0}};
  problem.link_bytes_per_s = 10;
  problem.replicas = {{40, 1e3, {0}, true, false}, {1e3, 1e3, {0}, false, true}};
  add_requests(&problem, 4, 0, 0, 0.1, 20);  // 80 bytes in 40: 4 s of swapping
  add_requests(&problem, 4, 0, 1, 0.1, 1);
  for (const auto form :
       {MigrationForm::kFull, MigrationForm::kRelaxed, MigrationForm::kArtifact}) {
    const MigrationSolution solution = solve_migration(problem, exact(form));
    EXPECT_NEAR(solution.stay_s, 4.4, 1e-6);
    EXPECT_EQ(std::accumulate(solution.replica_of.begin(), solution.replica_of.begin() + 4, 0), 2);
    EXPECT_LT(solution.bottleneck_s, 0.8);
  }
}

TEST(Migration, RoundingTiesStayAtHome) {
  MigrationProblem problem;
  problem.replicas = {{1e3, 1e3, {}}, {1e3, 1e3, {}}};
  problem.requests = {{kBase, 0, 1, 0, 1}};  // one request that would best be halved
  const MigrationSolution solution = solve_migration(problem, exact(MigrationForm::kRelaxed));
  EXPECT_NEAR(solution.objective_s, 0.5, 1e-9);
  EXPECT_THAT(solution.replica_of, ElementsAre(0));
  EXPECT_FALSE(solution.moves);
  EXPECT_EQ(solution.bottleneck_s, 1);
}

TEST(Migration, LimitsLeaveRequestsAtHomeAndSaySo) {
  RngStream rng(5, "limits");
  Shape shape;
  shape.replicas = 3;
  shape.requests = 30;
  shape.adapters = 3;
  shape.device = 60;
  shape.eta_s = 0.3;
  const MigrationProblem problem = random_problem(shape, &rng);
  MigrationOptions options = exact(MigrationForm::kFull);
  options.mip.max_nodes = 1;
  const MigrationSolution solution = solve_migration(problem, options);
  EXPECT_EQ(solution.status, MipStatus::kLimit);
  EXPECT_EQ(solution.replica_of, homes(problem));
  EXPECT_FALSE(solution.moves);
  options.mip.max_nodes = 2000;
  const MigrationSolution more = solve_migration(problem, options);
  EXPECT_EQ(more.status, MipStatus::kFeasible);
  EXPECT_TRUE(more.moves);
  EXPECT_LT(more.bottleneck_s, more.stay_s);
  EXPECT_LT(more.bound_s, more.objective_s);
  // The relaxed form always has its rounding.
  options.form = MigrationForm::kRelaxed;
  options.mip.max_nodes = 0;
  EXPECT_TRUE(solve_migration(problem, options).moves);
}

TEST(Migration, ClustersRepeatThemselvesInSilence) {
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
TEST(Migration, SolvesInParallelAsAlone) {
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

// Sizes down to nothing: requests only move where they may, and never for the worse.
TEST(Migration, RandomProblemsOfEveryShape) {
  RngStream rng(6, "fuzz");
  for (int n = 0; n < 600; ++n) {
    Shape shape;
    shape.replicas = 1 + static_cast<int>(rng.below(5));
    shape.requests = n % 10 == 0 ? 0 : static_cast<int>(rng.below(40));
    shape.adapters = static_cast<int>(rng.below(5));
    shape.device = rng.uniform() < 0.5 ? 0 : rng.uniform(0, 200);
    shape.eta_s = rng.uniform(0, 2);
    MigrationProblem problem = random_problem(shape, &rng);
    for (MigrationReplica& replica : problem.replicas) {
      replica.may_send = rng.uniform() < 0.7;
      replica.may_receive = rng.uniform() < 0.7;
      for (int k = 0; k < shape.adapters; ++k) replica.resident.push_back(k);
    }
    for (MigrationRequest& request : problem.requests) {
      if (rng.uniform() < 0.1) request.exec_s = 0;
      if (rng.uniform() < 0.1) request.bytes = request.move_s = 0;
    }
    MigrationOptions options;
    options.form = static_cast<MigrationForm>(n % 3);
    options.class_width = n % 2 * 0.05;
    options.mip.max_nodes = static_cast<int>(rng.below(30));
    SCOPED_TRACE(n);
    const MigrationSolution solution = solve_migration(problem, options);
    EXPECT_NE(solution.status, MipStatus::kError);
    ASSERT_EQ(solution.replica_of.size(), problem.requests.size());
    for (std::size_t i = 0; i < problem.requests.size(); ++i) {
      const int home = problem.requests[i].home;
      const int now = solution.replica_of[i];
      if (now == home) continue;
      EXPECT_TRUE(problem.replicas[home].may_send && problem.replicas[now].may_receive);
      EXPECT_TRUE(solution.moves);
    }
    EXPECT_TRUE(!solution.moves || solution.bottleneck_s < solution.stay_s);
    if (options.form != MigrationForm::kFull) {
      EXPECT_LE(solution.bound_s, solution.objective_s + 1e-6);
      EXPECT_LE(solution.bottleneck_s, solution.stay_s);
      EXPECT_NEAR(solution.bottleneck_s, bottleneck_seconds(problem, options, solution.replica_of),
                  1e-9);
    }
    EXPECT_GE(solving_seconds(solution), 0);
  }
}

TEST(Migration, RefusesWhatIsNoProblem) {
  MigrationProblem problem;
  problem.adapters = {{1}};
  problem.replicas = {{1e3, 1e3, {0}}, {1e3, 1e3, {}}};
  add_requests(&problem, 2, 0, 0, 1);
  EXPECT_TRUE(solve_migration(problem, {}).moves);
  const auto refused = [&](const auto& spoil) {
    MigrationProblem bad = problem;
    spoil(&bad);
    EXPECT_THROW(solve_migration(bad, {}), InvariantError);
  };
  refused([](MigrationProblem* p) { p->requests[1].home = 2; });
  refused([](MigrationProblem* p) { p->requests[1].adapter = 1; });
  refused([](MigrationProblem* p) { p->requests[1].exec_s = -1; });
  refused([](MigrationProblem* p) { p->requests[1].bytes = std::nan(""); });
  refused([](MigrationProblem* p) { p->replicas[0].resident = {3}; });
  refused([](MigrationProblem* p) { p->replicas[0].device_bytes = -1; });
  refused([](MigrationProblem* p) { p->link_bytes_per_s = 0; });
  refused([](MigrationProblem* p) { p->eta_s = kMipInfinity; });
  EXPECT_THROW(bottleneck_seconds(problem, {}, {0}), InvariantError);
  EXPECT_THROW(bottleneck_seconds(problem, {}, {0, 2}), InvariantError);
}

}  // namespace
}  // namespace servelab

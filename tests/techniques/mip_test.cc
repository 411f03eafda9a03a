#include "baselines/shared/mip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"
#include "engine/core/rng.h"

namespace servelab {
namespace {

constexpr MipOptions kExact = {.max_nodes = 100'000, .relative_gap = 0};

// A knapsack in several dimensions: which of the items, all worth about as much as they weigh.
MipModel knapsack(RngStream* rng, int items, int dimensions) {
  MipModel model;
  std::vector<std::vector<MipEntry>> rows(dimensions);
  for (int i = 0; i < items; ++i) {
    double weight = 0;
    for (auto& row : rows) {
      row.push_back({i, std::floor(rng->uniform(5, 20))});
      weight += row.back().value;
    }
    model.add_column(0, 1, -std::floor(weight + rng->uniform(0, 10)), true);
  }
  for (const auto& row : rows) {
    double sum = 0;
    for (const MipEntry& entry : row) sum += entry.value;
    model.add_row(-kMipInfinity, std::floor(sum / 2), row);
  }
  return model;
}

bool feasible(const MipModel& model, std::span<const double> values) {
  for (int r = 0; r < model.rows(); ++r) {
    double sum = 0;
    for (int e = model.row_start()[r]; e < model.row_start()[r + 1]; ++e) {
      sum += model.entry_value()[e] * values[model.entry_column()[e]];
    }
    if (sum > model.row_upper()[r] + 1e-6 || sum < model.row_lower()[r] - 1e-6) return false;
  }
  return true;
}

double best_by_enumeration(const MipModel& model) {
  double best = kMipInfinity;
  std::vector<double> values(model.columns());
  for (unsigned bits = 0; bits < 1U << model.columns(); ++bits) {
    double cost = 0;
    for (int c = 0; c < model.columns(); ++c) {
      values[c] = bits >> c & 1U;
      cost += model.cost()[c] * values[c];
    }
    if (cost < best && feasible(model, values)) best = cost;
  }
  return best;
}

TEST(Mip, AgreesWithEnumeration) {
  RngStream rng(1, "mip");
  for (int n = 0; n < 60; ++n) {
    const MipModel model = knapsack(&rng, 3 + static_cast<int>(rng.below(9)), 3);
    const MipResult result = solve(model, kExact);
    ASSERT_EQ(result.status, MipStatus::kOptimal);
    EXPECT_NEAR(result.objective, best_by_enumeration(model), 1e-6);
    EXPECT_NEAR(result.bound, result.objective, 1e-5 * std::abs(result.objective));
    EXPECT_TRUE(feasible(model, result.values));
    for (const double v : result.values) EXPECT_TRUE(v == 0 || v == 1) << v;
  }
}

TEST(Mip, EqualRowsGeneralIntegersAndContinuousColumns) {
  MipModel model;  // min x + 0.4 s; 3 x + s = 7.5; x integer in [0, 5], s in [0, 4]
  const int x = model.add_column(0, 5, 1, true);
  const int s = model.add_column(0, 4, 0.4, false);
  const MipEntry row[] = {{x, 3}, {s, 1}};
  model.add_row(7.5, 7.5, row);
  const MipResult result = solve(model, kExact);
  ASSERT_EQ(result.status, MipStatus::kOptimal);
  EXPECT_EQ(result.values[x], 2);
  EXPECT_NEAR(result.values[s], 1.5, 1e-6);
  EXPECT_NEAR(result.objective, 2.6, 1e-6);
}

TEST(Mip, SaysWhenThereIsNoSolution) {
  MipModel model;
  const int x = model.add_column(0, 10, 1, true);
  const MipEntry twice[] = {{x, 2}};
  model.add_row(3, 3, twice);  // x = 1.5: the relaxation alone is feasible
  EXPECT_EQ(solve(model, kExact).status, MipStatus::kInfeasible);
  model.add_row(30, kMipInfinity, twice);
  const MipResult result = solve(model, kExact);
  EXPECT_EQ(result.status, MipStatus::kInfeasible);
  EXPECT_TRUE(result.values.empty());

  MipModel unbounded;
  unbounded.add_column(0, kMipInfinity, -1, false);
  EXPECT_EQ(solve(unbounded, kExact).status, MipStatus::kError);
  const MipResult nothing = solve(MipModel(), kExact);
  EXPECT_EQ(nothing.status, MipStatus::kOptimal);
  EXPECT_EQ(nothing.objective, 0);
}

TEST(Mip, RefusesAModelThatIsNone) {
  MipModel model;
  EXPECT_THROW(model.add_column(1, 0, 0, false), InvariantError);
  EXPECT_THROW(model.add_column(0, std::nan(""), 0, false), InvariantError);
  const MipEntry unknown[] = {{0, 1}};
  EXPECT_THROW(model.add_row(0, 1, unknown), InvariantError);
}

TEST(Mip, LimitsAreCountedNotTimed) {
  RngStream rng(2, "mip");
  const MipModel model = knapsack(&rng, 60, 5);
  MipOptions options = kExact;
  options.max_iterations = 1;
  EXPECT_EQ(solve(model, options).status, MipStatus::kLimit);

  options = kExact;
  options.max_nodes = 0;
  const MipResult root = solve(model, options);
  EXPECT_EQ(root.status, MipStatus::kLimit);
  EXPECT_EQ(root.nodes, 0);
  EXPECT_TRUE(std::isfinite(root.bound));

  options.max_nodes = 300;
  const MipResult some = solve(model, options);
  ASSERT_EQ(some.status, MipStatus::kFeasible);
  EXPECT_TRUE(feasible(model, some.values));
  EXPECT_LE(some.nodes, 310);
  EXPECT_LT(some.bound, some.objective);
  EXPECT_GE(some.bound, root.bound);

  options = kExact;
  options.max_iterations = some.iterations / 2;
  const MipResult fewer = solve(model, options);
  EXPECT_LT(fewer.nodes, some.nodes);
  EXPECT_LE(fewer.iterations, options.max_iterations + 200);  // a node ends before it stops
}

TEST(Mip, StopsWithinTheGap) {
  RngStream rng(3, "mip");
  const MipModel model = knapsack(&rng, 40, 4);
  MipOptions options = kExact;
  options.relative_gap = 0.05;
  const MipResult loose = solve(model, options);
  ASSERT_EQ(loose.status, MipStatus::kOptimal);
  EXPECT_LE(loose.objective - loose.bound, 0.05 * std::abs(loose.objective) + 1e-9);
  options.relative_gap = 0;
  const MipResult exact = solve(model, options);
  ASSERT_EQ(exact.status, MipStatus::kOptimal);
  EXPECT_LE(exact.objective, loose.objective + 1e-9);
  EXPECT_GE(exact.objective, loose.bound - 1e-6);
  EXPECT_GT(exact.nodes, loose.nodes);
}

TEST(Mip, ACallersRoundingIsEnoughForASolution) {
  RngStream rng(4, "mip");
  const MipModel model = knapsack(&rng, 40, 4);
  MipHints hints;
  int asked = 0;
  hints.round = [&](std::span<double> values) {
    ++asked;
    for (double& v : values) v = std::floor(v + 1e-6);
    return true;
  };
  MipOptions options = kExact;
  options.max_nodes = 0;
  const MipResult root = solve(model, options, hints);
  ASSERT_EQ(root.status, MipStatus::kFeasible);
  EXPECT_TRUE(feasible(model, root.values));
  EXPECT_EQ(asked, 1);
  // It changes the work, not the answer.
  options.max_nodes = kExact.max_nodes;
  EXPECT_NEAR(solve(model, options, hints).objective, solve(model, kExact).objective, 1e-6);
  EXPECT_GT(asked, 2);
}

TEST(Mip, AnyFirstBasisLeadsToTheSameResult) {
  MipModel model;  // min -x - 2 y; x + y <= 4, x + 3 y <= 6
  const int x = model.add_column(0, kMipInfinity, -1, false);
  const int y = model.add_column(0, kMipInfinity, -2, false);
  const MipEntry first[] = {{x, 1}, {y, 1}};
  const MipEntry second[] = {{x, 1}, {y, 3}};
  const int r1 = model.add_row(-kMipInfinity, 4, first);
  const int r2 = model.add_row(-kMipInfinity, 6, second);
  MipHints hints;
  hints.basis = {{x, r1}, {y, r2}};  // the optimal one
  EXPECT_NEAR(solve(model, kExact).objective, -5, 1e-9);
  EXPECT_NEAR(solve(model, kExact, hints).objective, -5, 1e-9);
  hints.basis = {{y, r1}};  // y = 4 breaks the second row
  EXPECT_NEAR(solve(model, kExact, hints).objective, -5, 1e-9);
}

TEST(Mip, RepeatsItselfAndPrintsNothing) {
  RngStream rng(5, "mip");
  const MipModel model = knapsack(&rng, 40, 4);
  MipOptions options = kExact;
  options.max_nodes = 500;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const MipResult first = solve(model, options);
  const MipResult second = solve(model, options);
  options.max_nodes = 3;
  solve(model, options);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(first.values, second.values);
  EXPECT_EQ(first.nodes, second.nodes);
  EXPECT_EQ(first.iterations, second.iterations);
  EXPECT_EQ(first.bound, second.bound);
}

}  // namespace
}  // namespace servelab

#include "engine/calibrate/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/core/check.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;

ValidatedPoint point(double incoming, const Outcome& engine, const Outcome& twin,
                     const std::string& variant = "twin", bool is_judged = true) {
  ValidatedPoint p;
  p.label = "slora rate=1";
  p.variant = variant;
  p.is_judged = is_judged;
  p.incoming_tokens_per_s = incoming;
  p.engine = engine;
  p.twin = twin;
  return p;
}

TEST(ValidateTest, SymmetricErrorIsThePapers) {
  EXPECT_DOUBLE_EQ(symmetric_error(100, 100), 0);
  EXPECT_DOUBLE_EQ(symmetric_error(150, 50), 50);  // no factor of two
  EXPECT_DOUBLE_EQ(symmetric_error(0, 0), 0);
  EXPECT_DOUBLE_EQ(symmetric_error(0, 5), 100);
  EXPECT_TRUE(std::isnan(symmetric_error(NAN, 5)));
}

TEST(ValidateTest, RegimesFollowBusyShareAndStarvation) {
  EXPECT_EQ(regime_of({.tokens_per_s = 100, .busy_share = 0.2}, 100), LoadRegime::kLow);
  EXPECT_EQ(regime_of({.tokens_per_s = 95, .busy_share = 0.7}, 100), LoadRegime::kHigh);
  EXPECT_EQ(regime_of({.tokens_per_s = 89, .busy_share = 0.2}, 100), LoadRegime::kSaturated);
  EXPECT_EQ(
      regime_of({.tokens_per_s = 89, .busy_share = 1}, std::numeric_limits<double>::infinity()),
      LoadRegime::kSaturated);
}

TEST(ValidateTest, ErrorsAreMeansByVariantAndRegime) {
  const Outcome base = {100, 0.010, 0.1, 0.2};
  std::vector<ValidatedPoint> points;
  points.push_back(point(100, base, {110, 0.010, 0.1, 0}));
  points.push_back(point(100, base, {100, 0.010, 0.1, 0}));
  points.push_back(point(500, base, {300, 0.010, 0.1, 0}));
  points.push_back(point(100, base, {100, NAN, 0.1, 0}, "mean", false));
  const auto errors = regime_errors(points, ErrorLimits{});
  ASSERT_EQ(errors.size(), 5u);
  EXPECT_EQ(errors[0].regime, "low");
  EXPECT_EQ(errors[0].points, 2u);
  EXPECT_NEAR(errors[0].smape.throughput, 100.0 * 10 / 210 / 2, 1e-9);
  EXPECT_TRUE(errors[0].is_supported);
  EXPECT_EQ(errors[1].regime, "saturated");
  EXPECT_DOUBLE_EQ(errors[1].smape.throughput, 50);
  EXPECT_FALSE(errors[1].is_supported);
  EXPECT_EQ(errors[2].regime, "all");
  EXPECT_EQ(errors[2].points, 3u);
  EXPECT_FALSE(errors[2].is_supported);
  EXPECT_EQ(errors[3].variant, "mean");
  EXPECT_FALSE(errors[3].is_judged);
  EXPECT_FALSE(errors[3].is_supported);  // no ITL at all is not within a limit
  const std::string table = errors_table(errors);
  EXPECT_THAT(table, HasSubstr("saturated"));
  EXPECT_THAT(table, HasSubstr("unsupported"));
  EXPECT_THAT(errors_csv(errors), HasSubstr("\"mean\",0,low,1,0,nan,0,nan,0\n"));
}

TEST(ValidateTest, InvalidPointsCountNowhere) {
  ValidatedPoint bad = point(100, {1, 1, 1, 0}, {2, 2, 2, 0});
  bad.problem = "the load generator lagged";
  EXPECT_TRUE(regime_errors({bad}, ErrorLimits{}).empty());
  EXPECT_THAT(points_table({bad}), HasSubstr("INVALID   slora rate=1 twin: the load generator"));
  EXPECT_THAT(points_csv({bad}), HasSubstr("\"the load generator lagged\"\n"));
}

TEST(ValidateTest, LimitsAreParsedOrRefused) {
  EXPECT_DOUBLE_EQ(parse_limits("").itl, 10);
  const ErrorLimits limits = parse_limits("ttft=30,throughput=2.5");
  EXPECT_DOUBLE_EQ(limits.ttft, 30);
  EXPECT_DOUBLE_EQ(limits.throughput, 2.5);
  EXPECT_DOUBLE_EQ(limits.itl, 10);
  EXPECT_THAT(test::error_of([] { parse_limits("itl=x"); }), HasSubstr("'itl=x' is not a name"));
  EXPECT_THAT(test::error_of([] { parse_limits("tfft=3"); }), HasSubstr("did you mean 'ttft'"));
}

TEST(ValidateTest, ALatencyIsJudgedWhereALimitIsGiven) {
  Outcome measured = {100, 0.010, 0.1, 0.2}, twin = measured;
  measured.latency_s = 8;
  twin.latency_s = 12;
  const std::vector<ValidatedPoint> points = {point(100, measured, twin)};
  EXPECT_TRUE(regime_errors(points, ErrorLimits{}).back().is_supported);
  const RegimeErrors errors = regime_errors(points, parse_limits("latency=15")).back();
  EXPECT_DOUBLE_EQ(errors.smape.latency, 20);
  EXPECT_DOUBLE_EQ(errors.relative.latency, 50);
  EXPECT_FALSE(errors.is_supported);
  const std::vector<ValidatedPoint> untold = {point(100, {100, 0.010, 0.1, 0.2}, twin)};
  EXPECT_TRUE(regime_errors(untold, parse_limits("latency=15")).back().is_supported);
}

TEST(ValidateTest, SpearmanIsOfRanks) {
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3}, {10, 11, 1000}), 1);
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3}, {5, 4, 3}), -1);
  // 1 - 6 x (1 + 1) / (4 x 15), by the differences of ranks.
  EXPECT_DOUBLE_EQ(spearman({1, 2, 3, 4}, {1, 3, 2, 4}), 0.8);
  EXPECT_NEAR(spearman({1, 1, 2}, {1, 2, 3}), std::sqrt(3) / 2, 1e-12);  // ranks 0.5, 0.5, 2
  EXPECT_TRUE(std::isnan(spearman({1, 2, 3}, {7, 7, 7})));
}

TEST(ValidateTest, RowsAreRankedAmongThoseThatDifferInOneKey) {
  std::vector<ValidatedPoint> points;
  const auto add = [&](const char* rate, const char* adapters, double measured, double twin,
                       const char* source = "a", const char* variant = "twin") {
    points.push_back(point(100, {measured, 1, 1, 1}, {twin, 1, 1, 1}, variant));
    points.back().settings = {{"rate", rate}, {"adapters", adapters}};
    points.back().source = source;
  };
  add("1", "8", 10, 11);
  add("2", "8", 20, 22);
  add("3", "8", 30, 20);
  add("3", "8", 30, 26, "a", "twin, rows fitted");  // with the row above: 23
  add("2", "9", 5, 5);                              // two values of adapters are no series
  add("4", "8", 1, 99, "b");                        // another source's
  add("4", "8", 1, 99, "a", "published-twin");
  const std::vector<RankCorrelation> all = rank_correlations(points);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].key, "rate");
  EXPECT_EQ(all[0].source, "a");
  EXPECT_EQ(all[0].series, 1u);
  EXPECT_EQ(all[0].values, 3u);
  EXPECT_DOUBLE_EQ(all[0].least, 1);
  points[2].twin.tokens_per_s = 2;  // 14 in the mean
  EXPECT_DOUBLE_EQ(rank_correlations(points)[0].least, 0.5);
}

TEST(ValidateTest, OutcomeComesFromTheSummary) {
  const Outcome outcome = outcome_of({{"total_tokens_per_s", 50},
                                      {"itl_mean_s", 0.01},
                                      {"ttft_mean_s", 0.2},
                                      {"busy_time_s", 5},
                                      {"duration_s", 20}});
  EXPECT_DOUBLE_EQ(outcome.tokens_per_s, 50);
  EXPECT_DOUBLE_EQ(outcome.busy_share, 0.25);
}

TEST(ValidateTest, ASpecWithoutBackendsGetsBoth) {
  Spec spec;
  spec.id = "a/b";
  spec.swept = {"workload.requests"};
  spec.positions.resize(2);
  for (SweepPosition& position : spec.positions) position.settings = ConfigNode::map();
  add_backends("cpu", &spec);
  ASSERT_EQ(spec.positions.size(), 4u);
  EXPECT_EQ(spec.positions[0].settings.find("backend")->scalar, "cpu");
  EXPECT_EQ(spec.positions[1].settings.find("backend")->scalar, "twin");
  EXPECT_EQ(spec.id, "a/b_validate");
  add_backends("cpu", &spec);  // it has them now
  EXPECT_EQ(spec.positions.size(), 4u);
}

}  // namespace
}  // namespace servelab

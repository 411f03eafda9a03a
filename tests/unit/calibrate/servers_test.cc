// Servers that others measured, and the twin of each: how far it is from rows that its profile was
// not fitted to, and whether runs come out in the measured order. The bounds are what users may
// count on, not what was seen.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/calibrate/measured_rows.h"
#include "engine/calibrate/validate.h"
#include "engine/run/runner.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

const std::string kRoot = SERVELAB_SOURCE_DIR;

std::vector<ValidatedPoint> twins_of(const std::string& server, const std::string& csv) {
  const test::TemporaryFolder folder;
  Spec spec =
      load_spec(kRoot + "/experiments/base/server/" + server + ".yaml", kRoot + "/experiments");
  const MeasuredRows rows = read_measured_rows(kRoot + "/analysis/published/" + csv + ".csv");
  RunOptions options;
  options.out = folder.path();
  options.data_dir = kRoot;  // traces are data/slora/*.csv
  options.quiet = true;
  add_rows(rows, &spec);
  EXPECT_TRUE(run_spec(spec, options).collected);
  return measured_points(spec, rows, options);
}

RegimeErrors judged(const std::vector<ValidatedPoint>& points) {
  for (const RegimeErrors& errors : regime_errors(points, ErrorLimits{})) {
    if (errors.is_judged && errors.regime == "all") return errors;
  }
  ADD_FAILURE() << "no row is judged";
  return {};
}

void expect_within_bounds(const std::vector<ValidatedPoint>& points, std::size_t judged_rows) {
  const RegimeErrors errors = judged(points);
  EXPECT_EQ(errors.points, judged_rows);
  EXPECT_LE(errors.relative.throughput, 4);
  EXPECT_LE(errors.relative.latency, 15);
  EXPECT_LE(errors.relative.ttft, 25);
}

// By adapters, skew, rate and cv: the mean over the series of one benchmark, which was run with two
// sets of ranks. Two saturated rates are 0.2 % apart, and change places in one series of four.
void expect_measured_order(const std::vector<ValidatedPoint>& points, std::size_t series) {
  const std::vector<RankCorrelation> all = rank_correlations(points);
  EXPECT_EQ(all.size(), series);
  std::map<std::string, std::vector<double>> benchmarks;
  for (const RankCorrelation& one : all) {
    std::string benchmark = one.source;
    benchmark.replace(benchmark.find("_S") + 1, 2, "S");  // S1, S2
    benchmarks[benchmark].push_back(one.mean);
  }
  EXPECT_EQ(benchmarks.size() * 2, series);
  for (const auto& [benchmark, means] : benchmarks) {
    double sum = 0;
    for (const double mean : means) sum += mean;
    EXPECT_GE(sum / static_cast<double>(means.size()), 0.9 - 1e-9) << benchmark;
  }
}

std::string place_of(const ValidatedPoint& point) {
  std::string place;
  for (const auto& [key, value] : point.settings) place += key + "=" + value + " ";
  return place;
}

TEST(Servers, SloraAndPeftAreTheTwinsAsTheyWereMeasuredOnAnA10G) {
  const std::vector<ValidatedPoint> slora = twins_of("s-lora-a10g", "slora_a10g");
  expect_within_bounds(slora, 28);
  expect_measured_order(slora, 10);
  const std::vector<ValidatedPoint> peft = twins_of("peft-2023-a10g", "peft_a10g");
  expect_within_bounds(peft, 14);
  expect_measured_order(peft, 8);

  std::map<std::string, const ValidatedPoint*> others;
  for (const ValidatedPoint& point : peft) others[place_of(point)] = &point;
  int both = 0;
  for (const ValidatedPoint& point : slora) {
    const auto other = others.find(place_of(point));
    if (other == others.end()) continue;
    ++both;
    EXPECT_EQ(point.twin.tokens_per_s > other->second->twin.tokens_per_s,
              point.engine.tokens_per_s > other->second->engine.tokens_per_s)
        << place_of(point);
  }
  EXPECT_GE(both, 30);
}

}  // namespace
}  // namespace servelab

// Workloads that are as long as their rate says, and the long-term shares of their adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/unit/workload/workload_testing.h"

namespace servelab {
namespace {

using test::build;
using test::counts_of;
using test::error_of;
using ::testing::HasSubstr;

std::size_t requests_of(const std::string& yaml) { return build(yaml).workload.requests.size(); }

TEST(RequestsPerRate, IsSoManySecondsOfTheRate) {
  EXPECT_EQ(requests_of("{requests_per_rate: 50, arrivals: {rate: 4}}"), 200u);
  EXPECT_EQ(requests_of("{requests_per_rate: 50, arrivals: {rate: 0.25}}"), 13u);  // 12.5
  EXPECT_EQ(requests_of("{requests_per_rate: 50, arrivals: {rate: 0.001}}"), 1u);
  const BuiltWorkload built =
      build("{requests_per_rate: 500, arrivals: {process: gamma, cv: 2, rate: 8}}");
  EXPECT_EQ(built.workload.requests.size(), 4000u);
  EXPECT_NEAR(to_seconds(built.workload.requests.back().arrival), 500, 60);
  EXPECT_EQ(requests_of("{requests_per_rate: 30, adapters: {count: 4}, arrivals: {process: "
                        "trace-shares, trace: maf1-like, rate: 10, window_s: 21600}, "
                        "popularity: {kind: trace}}"),
            300u);
  // The same requests as with their number written out.
  EXPECT_TRUE(test::same_requests(
      build("{requests_per_rate: 50, adapters: {count: 9}, arrivals: {rate: 4}}").workload,
      build("{requests: 200, adapters: {count: 9}, arrivals: {rate: 4}}").workload));
}

TEST(RequestsPerRate, WithoutSenseIsRefused) {
  EXPECT_THAT(error_of("{requests: 5, requests_per_rate: 50, arrivals: {rate: 4}}"),
              HasSubstr("set 'requests' or 'requests_per_rate', not both"));
  for (const std::string arrivals : {"{rate: 0, per_adapter: true}", "{process: closed}"}) {
    EXPECT_THAT(
        error_of("{requests_per_rate: 50, adapters: {count: 2}, arrivals: " + arrivals + "}"),
        HasSubstr("'requests_per_rate' needs an arrivals.rate above 0"))
        << arrivals;
  }
  EXPECT_THAT(error_of("{requests_per_rate: 1e8, arrivals: {rate: 40}}"),
              HasSubstr("more than 200 million"));
  EXPECT_THAT(error_of("{requests_per_rate: -1, arrivals: {rate: 40}}"),
              HasSubstr("'requests_per_rate'"));
}

// Shares sum to 1, one per adapter; and the requests follow them.
void expect_shares(const std::string& yaml, double tolerance) {
  const BuiltWorkload built = build(yaml);
  const std::vector<double>& shares = built.workload.adapter_shares;
  ASSERT_EQ(shares.size(), built.workload.adapters.size()) << yaml;
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-9) << yaml;
  const std::vector<double> counts = counts_of(built.workload);
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    EXPECT_NEAR(counts[i] / total, shares[i], tolerance) << yaml << " adapter " << i;
  }
}

TEST(AdapterShares, AreThoseOfThePopularity) {
  const auto shares = [](const std::string& popularity) {
    return build("{requests: 10, adapters: {count: 4, base_share: 0.5}, popularity: {" +
                 popularity + "}}")
        .workload.adapter_shares;
  };
  EXPECT_EQ(shares("kind: uniform"), std::vector<double>(4, 0.25)) << "the base model apart";
  const auto zipf = shares("kind: zipf, exponent: 1");
  ASSERT_EQ(zipf.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(zipf[i], 12.0 / 25 / static_cast<double>(i + 1), 1e-12);  // 1 + 1/2 + 1/3 + 1/4
  }
  EXPECT_TRUE(build("{requests: 10, adapters: {count: 0}}").workload.adapter_shares.empty());
  expect_shares(
      "{requests: 50000, lengths: {source: fixed}, adapters: {count: 20, base_share: 0.3}, "
      "popularity: {kind: zipf, exponent: 1.2, shuffle: true}}",
      0.01);
  expect_shares(
      "{requests: 50000, lengths: {source: fixed}, adapters: {count: 5}, "
      "arrivals: {process: gamma, cv: 3, per_adapter: true, rate: 9}, "
      "popularity: {kind: weights, weights: [6, 3, 1]}}",
      0.03);
}

TEST(AdapterShares, AreThoseOfTheTrace) {
  const std::string tail =
      "rate: 10, window_s: 21600}, adapters: {count: 16}, "
      "lengths: {source: fixed}, popularity: {kind: trace, skewness: 4}}";
  expect_shares("{requests: 40000, arrivals: {process: trace-shares, trace: maf1-like, " + tail,
                0.01);
  expect_shares("{requests: 40000, arrivals: {process: trace-shares, trace: maf2-like, " + tail,
                0.01);
  expect_shares(
      "{duration_s: 21600, arrivals: {process: trace-rate, trace: maf1-like, "
      "per_adapter: true, " +
          tail,
      0.01);
}

// Each interval of trace-shares has as many requests as the others, however many calls it had; so a
// share is the mean over intervals, and not that of all calls.
TEST(AdapterShares, OfTraceSharesWeighIntervalsAlike) {
  const auto shares = [](const std::string& process) {
    return build("{requests: 100, arrivals: {process: " + process +
                 ", trace: maf1-like, rate: 10, window_s: 86400}, "
                 "adapters: {count: 16}, popularity: {kind: trace, skewness: 4}}")
        .workload.adapter_shares;
  };
  const auto by_interval = shares("trace-shares"),
             by_call = shares("trace-rate, per_adapter: true");
  ASSERT_EQ(by_interval.size(), by_call.size());
  double difference = 0;
  for (std::size_t i = 0; i < by_call.size(); ++i) {
    difference += std::abs(by_call[i] - by_interval[i]);
  }
  EXPECT_GT(difference, 1e-3);
}

}  // namespace
}  // namespace servelab

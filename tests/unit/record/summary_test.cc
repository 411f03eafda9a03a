// The scalar metrics against values worked out by hand and against a naive recomputation.
#include "engine/record/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr TimeNs kMs = 1'000'000;

Request request(TimeNs arrival, int prompt) {
  Request r;
  r.arrival = arrival;
  r.prompt_tokens = prompt;
  r.output_tokens = r.output_limit_tokens = 100;
  return r;
}

RequestRecord finished(TimeNs admitted, TimeNs first, TimeNs last, int tokens) {
  RequestRecord r;
  r.admitted = admitted;
  r.first_token = first;
  r.last_token = last;
  r.generated = tokens;
  r.status = RequestStatus::kFinished;
  return r;
}

TEST(Percentile, InterpolatesAsNumpyDoes) {
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 0.5), 3);    // numpy.percentile(values, 50)
  EXPECT_DOUBLE_EQ(percentile(values, 0.9), 6.8);  // numpy.percentile(values, 90)
  EXPECT_DOUBLE_EQ(percentile(values, 0.99), 7.88);
  EXPECT_DOUBLE_EQ(percentile(values, 1), 8);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.9), 5);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(Summary, HandMadeRun) {
  Workload workload;
  workload.requests = {request(0, 10), request(100 * kMs, 20), request(200 * kMs, 30),
                       request(300 * kMs, 40)};
  RunRecord record;
  record.end = 2000 * kMs;
  record.requests = {finished(10 * kMs, 50 * kMs, 450 * kMs, 5),     // 450 ms over 5 tokens
                     finished(120 * kMs, 200 * kMs, 200 * kMs, 1)};  // 100 ms over 1 token
  RequestRecord cut;                                                 // began, and the run ended
  cut.admitted = 400 * kMs;
  cut.first_token = 500 * kMs;
  cut.generated = 4;
  cut.preemptions = 2;
  RequestRecord refused;
  refused.status = RequestStatus::kRejected;
  record.requests.push_back(cut);
  record.requests.push_back(refused);
  record.itl.add(100 * kMs, 4);
  record.itl.add(33'333'333, 3);  // of the request that did not finish
  ReplicaTotals totals;
  totals.steps = 10;
  totals.merged_steps = 4;
  totals.switches = 3;
  totals.loads = 7;
  totals.dense = 100 * kMs;
  totals.attention = 20 * kMs;
  totals.collective = 5 * kMs;
  totals.host = 15 * kMs;
  totals.lora = 60 * kMs;
  totals.busy = 250 * kMs;
  record.replicas = {totals, totals};

  const Summary s = summarize(workload, record);
  EXPECT_EQ(value_of(s, "requests_total"), 4);
  EXPECT_EQ(value_of(s, "requests_finished"), 2);
  EXPECT_EQ(value_of(s, "requests_rejected"), 1);
  EXPECT_EQ(value_of(s, "requests_unfinished"), 1);
  EXPECT_DOUBLE_EQ(value_of(s, "latency_per_token_mean_s"), 0.55 / 6);
  EXPECT_DOUBLE_EQ(value_of(s, "latency_per_token_mean_of_ratios_s"), (0.09 + 0.1) / 2);
  EXPECT_DOUBLE_EQ(value_of(s, "latency_per_token_p50_s"), 0.095);
  EXPECT_DOUBLE_EQ(value_of(s, "latency_mean_s"), 0.275);
  EXPECT_DOUBLE_EQ(value_of(s, "latency_p90_s"), 0.1 + 0.9 * 0.35);
  EXPECT_DOUBLE_EQ(value_of(s, "ttft_mean_s"), (0.05 + 0.1) / 2);
  EXPECT_DOUBLE_EQ(value_of(s, "tpot_mean_s"), 0.1);
  EXPECT_DOUBLE_EQ(value_of(s, "itl_mean_s"), 0.499999999 / 7);
  EXPECT_NEAR(value_of(s, "itl_p50_s"), 0.1, 0.1 * 0.016);
  EXPECT_DOUBLE_EQ(value_of(s, "queueing_mean_s"), 0.015);
  EXPECT_DOUBLE_EQ(value_of(s, "requests_per_s"), 1);
  EXPECT_DOUBLE_EQ(value_of(s, "output_tokens_per_s"), 5);
  EXPECT_DOUBLE_EQ(value_of(s, "total_tokens_per_s"), (10 + 10 + 20 + 30) / 2.0);
  EXPECT_EQ(value_of(s, "preemptions"), 2);
  EXPECT_EQ(value_of(s, "steps"), 20);
  EXPECT_DOUBLE_EQ(value_of(s, "merged_step_share"), 0.4);
  EXPECT_EQ(value_of(s, "switches"), 6);
  EXPECT_EQ(value_of(s, "adapter_loads"), 14);
  EXPECT_DOUBLE_EQ(value_of(s, "base_time_s"), 0.28);
  EXPECT_DOUBLE_EQ(value_of(s, "lora_time_s"), 0.12);
  EXPECT_DOUBLE_EQ(value_of(s, "base_time_per_step_s"), 0.014);
  EXPECT_DOUBLE_EQ(value_of(s, "lora_time_per_step_s"), 0.006);
}

TEST(Summary, NothingFinishedIsNan) {
  Workload workload;
  workload.requests = {request(0, 10)};
  RunRecord record;
  record.requests.resize(1);
  const Summary s = summarize(workload, record);
  for (const char* name : {"latency_per_token_mean_s", "latency_p50_s", "itl_mean_s", "itl_p50_s",
                           "tpot_mean_s", "output_tokens_per_s", "base_time_per_step_s"}) {
    EXPECT_TRUE(std::isnan(value_of(s, name))) << name;
  }
  EXPECT_EQ(value_of(s, "requests_unfinished"), 1);
}

TEST(Summary, GapsOfHoursKeepTheirPercentiles) {
  Workload workload;
  RunRecord record;
  record.itl.add(3600 * from_seconds(1), 10);
  const Summary s = summarize(workload, record);
  EXPECT_NEAR(value_of(s, "itl_p50_s"), 3600, 3600 * 0.016);
  EXPECT_DOUBLE_EQ(value_of(s, "itl_mean_s"), 3600);
}

TEST(Summary, AgreesWithANaiveRecomputation) {
  test::WorkloadShape shape;
  shape.requests = 500;
  const Workload workload = test::make_workload(shape, 3);
  test::RunOptions options;
  options.engine = test::small_engine();
  options.record.token_times = true;
  const RunRecord record = test::run(workload, options);
  const Summary s = summarize(workload, record);
  std::vector<double> latency, gaps;
  double latency_sum = 0, tokens = 0;
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const auto begin = record.token_times.begin() + record.token_offsets[i];
    const auto end = record.token_times.begin() + record.token_offsets[i + 1];
    for (auto at = begin; at < end && at + 1 < end; ++at) {
      gaps.push_back(to_seconds(*(at + 1) - *at));
    }
    if (record.requests[i].status != RequestStatus::kFinished) continue;
    latency.push_back(to_seconds(*(end - 1) - workload.requests[i].arrival));
    latency_sum += latency.back();
    tokens += static_cast<double>(end - begin);
  }
  ASSERT_GT(latency.size(), 400u);
  std::sort(latency.begin(), latency.end());
  std::sort(gaps.begin(), gaps.end());
  double gap_sum = 0;
  for (const double gap : gaps) gap_sum += gap;
  EXPECT_NEAR(value_of(s, "latency_per_token_mean_s"), latency_sum / tokens, 1e-12);
  EXPECT_NEAR(value_of(s, "latency_p99_s"), percentile(latency, 0.99), 1e-12);
  EXPECT_NEAR(value_of(s, "itl_mean_s"), gap_sum / static_cast<double>(gaps.size()), 1e-12);
  EXPECT_NEAR(value_of(s, "itl_p90_s"), percentile(gaps, 0.9), 0.017 * percentile(gaps, 0.9));
}

// A value of its own for each, so that none can stand for another.
TEST(Summary, EveryTimeIsItsOwn) {
  ReplicaTotals totals;
  totals.steps = 8;
  const std::vector<std::pair<const char*, TimeNs*>> times = {
      {"dense", &totals.dense},         {"attention", &totals.attention},
      {"lora", &totals.lora},           {"collective", &totals.collective},
      {"host", &totals.host},           {"switching", &totals.switching},
      {"load_wait", &totals.load_wait}, {"swap", &totals.swap},
      {"busy", &totals.busy},           {"scheduling", &totals.scheduling}};
  for (std::size_t i = 0; i < times.size(); ++i) {
    *times[i].second = (TimeNs{1} << i) * kMs + static_cast<TimeNs>(i);
  }
  RunRecord record;
  record.replicas = {totals, totals, totals};
  record.arrival_lag_max = 7777 * kMs;
  record.cluster.decision_time = 8888 * kMs;
  const Summary s = summarize(Workload{}, record);
  for (const auto& [name, time] : times) {
    EXPECT_DOUBLE_EQ(value_of(s, std::string(name) + "_time_s"), 3e-9 * static_cast<double>(*time))
        << name;
  }
  const auto base =
      static_cast<double>(totals.dense + totals.attention + totals.collective + totals.host);
  EXPECT_DOUBLE_EQ(value_of(s, "base_time_s"), 3e-9 * base);
  EXPECT_DOUBLE_EQ(value_of(s, "base_time_per_step_s"), 1e-9 * base / 8);
  EXPECT_DOUBLE_EQ(value_of(s, "dense_time_per_step_s"),
                   1e-9 * static_cast<double>(totals.dense) / 8);
  EXPECT_DOUBLE_EQ(value_of(s, "lora_time_per_step_s"),
                   1e-9 * static_cast<double>(totals.lora) / 8);
  EXPECT_DOUBLE_EQ(value_of(s, "arrival_lag_max_s"), 7.777);
  EXPECT_DOUBLE_EQ(value_of(s, "solver_time_s"), 8.888);
}

// From their definition (numpy's "linear"), over every number of requests from none on.
TEST(Summary, QuantilesAreThoseOfASortedCopy) {
  RngStream rng(1, "quantiles", 0);
  for (std::size_t n = 1; n <= 40; ++n) {
    Workload workload;
    RunRecord record;
    std::vector<double> sorted;
    for (std::size_t i = 0; i < n; ++i) {
      const auto last = static_cast<TimeNs>(1 + rng.uniform() * 1e9);
      workload.requests.push_back(request(0, 10));
      record.requests.push_back(finished(0, last, last, 1));
      sorted.push_back(to_seconds(last));
    }
    std::sort(sorted.begin(), sorted.end());
    const Summary s = summarize(workload, record);
    for (const auto& [name, q] :
         {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}}) {
      const double position = q * static_cast<double>(n - 1);
      const auto below = static_cast<std::size_t>(std::floor(position));
      const std::size_t above = std::min(below + 1, n - 1);
      const double inside = position - std::floor(position);
      const double expected = (1 - inside) * sorted[below] + inside * sorted[above];
      for (const char* metric : {"latency", "ttft", "latency_per_token"}) {
        EXPECT_NEAR(value_of(s, std::string(metric) + "_" + name + "_s"), expected, 1e-12)
            << metric << " " << name << " of " << n;
      }
    }
  }
}

}  // namespace
}  // namespace servelab

#include "engine/workload/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/core/yaml_writer.h"
#include "engine/workload/embedded_stats.h"
#include "engine/workload/function_trace.h"
#include "tests/support/program.h"
#include "tests/unit/workload/workload_testing.h"

namespace servelab {
namespace {

using test::build;
using test::context;
using test::counts_of;
using test::cv_of;
using test::error_of;
using test::gaps_of;
using test::mean_of;
using test::same_requests;
using ::testing::HasSubstr;

TEST(WorkloadTest, WhatSettingsLeadToNeedsNoRequests) {
  for (const std::string arrivals :
       {"{process: poisson, rate: 5}", "{process: gamma, cv: 4, rate: 5, per_adapter: true}",
        "{process: closed}", "{process: switching, rate: 5}",
        "{process: trace-rate, trace: maf1-like}",
        "{process: trace-rate, trace: maf2-like, rate: 5, window_s: 86400}"}) {
    const ConfigNode settings = parse_yaml(
        "{requests: 3000, adapters: {count: 20}, lengths: {source: sharegpt}, arrivals: " +
            arrivals + "}",
        "spec.yaml");
    WorkloadContext facts_only = context();
    facts_only.requests = false;
    const BuiltWorkload whole = build_workload(settings, context());
    const BuiltWorkload facts = build_workload(settings, facts_only);
    EXPECT_EQ(write_yaml(facts.effective), write_yaml(whole.effective)) << arrivals;
    ASSERT_EQ(facts.sources.size(), whole.sources.size()) << arrivals;
    for (std::size_t i = 0; i < whole.sources.size(); ++i) {
      EXPECT_EQ(facts.sources[i].name, whole.sources[i].name);
    }
    if (arrivals.find("poisson") != std::string::npos) {
      EXPECT_LE(facts.workload.requests.size(), 1u);
    }
  }
}

TEST(WorkloadTest, EveryRequestIsWellFormed) {
  for (const std::string arrivals :
       {"{process: poisson, rate: 5}", "{process: gamma, cv: 4, rate: 5, per_adapter: true}",
        "{process: lognormal, cv: 2, rate: 5}", "{process: weibull, cv: 2, rate: 5}",
        "{process: even, rate: 5}", "{process: closed}", "{process: switching, rate: 5}",
        "{process: trace-rate, trace: maf1-like, rate: 5}",
        "{process: trace-rate, trace: maf2-like, rate: 5, window_s: 86400}"}) {
    const BuiltWorkload built = build(
        "{requests: 3000, adapters: {count: 20, base_share: 0.2}, arrivals: " + arrivals + "}");
    ASSERT_EQ(built.workload.requests.size(), 3000u) << arrivals;
    TimeNs before = 0;
    for (const Request& request : built.workload.requests) {
      ASSERT_GE(request.arrival, before) << arrivals;
      before = request.arrival;
      ASSERT_GE(request.prompt_tokens, 1);
      ASSERT_GE(request.output_tokens, 1);
      ASSERT_GE(request.output_limit_tokens, request.output_tokens);
      ASSERT_LE(request.prompt_tokens + request.output_limit_tokens, 4096);
      ASSERT_TRUE(request.adapter == kBaseModel || index(request.adapter) < 20u);
    }
  }
}

TEST(WorkloadTest, SteadyProcessesHaveTheirRateAndCv) {
  const auto check = [](const std::string& process, double cv) {
    const BuiltWorkload built =
        build("{requests: 100000, arrivals: {process: " + process + ", rate: 8" +
              (cv == 1 ? "" : ", cv: " + std::to_string(cv)) + "}}");
    const auto gaps = gaps_of(built.workload.requests);
    EXPECT_NEAR(mean_of(gaps), 0.125, 0.125 * 0.012 * std::max(1.0, cv)) << process;
    EXPECT_NEAR(cv_of(gaps), cv, 0.06 * std::max(1.0, cv)) << process;
  };
  check("poisson", 1);
  check("gamma", 0.5);
  check("gamma", 3);
  check("lognormal", 1.5);
  check("weibull", 2);
  const auto even =
      gaps_of(build("{requests: 100, arrivals: {process: even, rate: 4}}").workload.requests);
  for (const double gap : even) EXPECT_NEAR(gap, 0.25, 1e-9);
}

TEST(WorkloadTest, PerAdapterProcessesAreIndependentRenewals) {
  const BuiltWorkload built = build(
      "{requests: 60000, adapters: {count: 3}, popularity: {kind: weights, weights: [6, 3, 1]}, "
      "arrivals: {process: gamma, cv: 2, rate: 0, per_adapter: true}}");
  const auto counts = counts_of(built.workload);
  EXPECT_NEAR(counts[0], 36000, 1200);
  EXPECT_NEAR(counts[1], 18000, 900);
  EXPECT_NEAR(counts[2], 6000, 500);
  std::vector<Request> one;
  for (const Request& request : built.workload.requests) {
    if (index(request.adapter) == 1) one.push_back(request);
  }
  EXPECT_NEAR(mean_of(gaps_of(one)), 1.0 / 3, 0.02);  // rate 0: the weights are rates
  EXPECT_NEAR(cv_of(gaps_of(one)), 2, 0.15);
}

TEST(WorkloadTest, BoundsEndTheWorkload) {
  const auto& timed = build("{duration_s: 100, arrivals: {rate: 50}}").workload.requests;
  EXPECT_NEAR(static_cast<double>(timed.size()), 5000, 250);
  EXPECT_LT(timed.back().arrival, from_seconds(100));
  EXPECT_EQ(build("{requests: 70, duration_s: 100, arrivals: {rate: 50}}").workload.requests.size(),
            70u);
  EXPECT_LT(
      build("{requests: 7000, duration_s: 100, arrivals: {rate: 5}}").workload.requests.size(),
      700u);
  EXPECT_THAT(error_of("{}"), HasSubstr("set 'requests' or 'duration_s'"));
}

TEST(WorkloadTest, PopularityKinds) {
  const auto shares = [](const std::string& adapters, const std::string& popularity) {
    const BuiltWorkload built = build("{requests: 200000, lengths: {source: fixed}, adapters: {" +
                                      adapters + "}, popularity: {" + popularity + "}}");
    auto counts = counts_of(built.workload);
    for (double& count : counts) count /= 200000;
    return counts;
  };
  const auto uniform = shares("count: 10", "kind: uniform");
  for (const double share : uniform) EXPECT_NEAR(share, 0.1, 0.003);
  const auto zipf = shares("count: 100", "kind: zipf, exponent: 1.2");
  double harmonic = 0;
  for (int i = 1; i <= 100; ++i) harmonic += std::pow(i, -1.2);
  EXPECT_NEAR(zipf[0], 1 / harmonic, 0.004);
  EXPECT_NEAR(zipf[9], std::pow(10, -1.2) / harmonic, 0.001);
  // S-LoRA: P(i) = ((i + 1) / n)^a - (i / n)^a.
  const auto power = shares("count: 20", "kind: power-law, exponent: 0.3");
  EXPECT_NEAR(power[0], std::pow(1.0 / 20, 0.3), 0.004);
  EXPECT_NEAR(power[19], 1 - std::pow(19.0 / 20, 0.3), 0.001);
  const auto geometric = shares("count: 8", "kind: geometric, exponent: 2");
  EXPECT_NEAR(geometric[0], 0.5 / (1 - std::pow(0.5, 8)), 0.004);
  const auto weights = shares("count: 6", "kind: weights, weights: [2, 1]");
  EXPECT_NEAR(weights[4], 2.0 / 9, 0.004);
  EXPECT_NEAR(weights[5], 1.0 / 9, 0.004);
  const auto robin = shares("count: 4", "kind: round-robin");
  for (const double share : robin) EXPECT_EQ(share, 0.25);
  auto shuffled = shares("count: 6", "kind: weights, weights: [2, 1], shuffle: true");
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_NEAR(shuffled[2], 1.0 / 9, 0.004);
  EXPECT_NEAR(shuffled[3], 2.0 / 9, 0.004);
}

TEST(WorkloadTest, RanksModelsAndBaseShare) {
  const BuiltWorkload cyclic =
      build("{requests: 20000, models: 2, adapters: {count: 5, ranks: [8, 16], base_share: 0.25}}");
  const auto& adapters = cyclic.workload.adapters;
  EXPECT_EQ(adapters[0].rank, 8);
  EXPECT_EQ(adapters[3].rank, 16);
  EXPECT_EQ(adapters[3].bytes, 16000);
  EXPECT_EQ(adapters[3].model, ModelId{1});
  EXPECT_EQ(adapters[4].model, ModelId{0});
  double base = 0;
  for (const Request& request : cyclic.workload.requests) {
    if (request.adapter == kBaseModel) {
      base += 1;
    } else {
      EXPECT_EQ(request.model, adapters[index(request.adapter)].model);
    }
  }
  EXPECT_NEAR(base / 20000, 0.25, 0.012);
  const auto rank_counts = [](const std::string& assign) {
    std::map<int, int> counts;
    for (const Adapter& adapter :
         build("{requests: 1, adapters: {count: 3000, ranks: [8, 16, 64], " + assign + "}}")
             .workload.adapters) {
      ++counts[adapter.rank];
    }
    return counts;
  };
  EXPECT_EQ(rank_counts("assign: shuffled"),
            (std::map<int, int>{{8, 1000}, {16, 1000}, {64, 1000}}));
  auto weighted = rank_counts("assign: random, rank_weights: [6, 3, 1]");
  EXPECT_NEAR(weighted[8], 1800, 110);
  EXPECT_NEAR(weighted[64], 300, 60);
  // No adapters: popularity chooses among the models.
  const BuiltWorkload models = build(
      "{requests: 9000, models: 3, adapters: {count: 0}, "
      "popularity: {kind: weights, weights: [6, 2, 1]}}");
  EXPECT_TRUE(models.workload.adapters.empty());
  double first = 0;
  for (const Request& request : models.workload.requests) {
    EXPECT_EQ(request.adapter, kBaseModel);
    first += request.model == ModelId{0} ? 1 : 0;
  }
  EXPECT_NEAR(first, 6000, 200);
}

TEST(WorkloadTest, SameSeedSameRequests) {
  const std::string yaml =
      "{requests: 5000, adapters: {count: 50, ranks: [8, 64], assign: random, base_share: 0.1}, "
      "arrivals: {process: gamma, cv: 3, per_adapter: true, rate: 9}, "
      "popularity: {kind: zipf, exponent: 1, shuffle: true}}";
  EXPECT_TRUE(same_requests(build(yaml).workload, build(yaml).workload));
  EXPECT_FALSE(same_requests(build(yaml).workload, build(yaml, 2).workload));
}

TEST(WorkloadTest, DimensionsAreIndependent) {
  const auto one = build("{requests: 3000, arrivals: {rate: 4}}").workload.requests;
  const auto other_lengths =
      build("{requests: 3000, arrivals: {rate: 4}, lengths: {source: alpaca-like}}")
          .workload.requests;
  const auto other_arrivals =
      build("{requests: 3000, arrivals: {process: gamma, cv: 5, rate: 4}}").workload.requests;
  const auto with_base =
      build("{requests: 3000, arrivals: {rate: 4}, adapters: {base_share: 0.5}}").workload.requests;
  for (std::size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(one[i].arrival, other_lengths[i].arrival);
    ASSERT_EQ(one[i].adapter, other_lengths[i].adapter);
    ASSERT_EQ(one[i].adapter, other_arrivals[i].adapter);
    ASSERT_EQ(one[i].prompt_tokens, other_arrivals[i].prompt_tokens);
    ASSERT_EQ(one[i].prompt_tokens, with_base[i].prompt_tokens);
    ASSERT_EQ(one[i].arrival, with_base[i].arrival);
    ASSERT_TRUE(with_base[i].adapter == kBaseModel || with_base[i].adapter == one[i].adapter);
  }
}

TEST(WorkloadTest, GoldenRequests) {
  const BuiltWorkload built = build(
      "{requests: 3, adapters: {count: 9}, arrivals: {process: gamma, cv: 2, rate: 3}, "
      "popularity: {kind: zipf}}",
      11);
  const auto& r = built.workload.requests;
  std::string text;
  for (const Request& request : r) {
    text += std::to_string(request.arrival) + " " + std::to_string(index(request.adapter)) + " " +
            std::to_string(request.prompt_tokens) + " " + std::to_string(request.output_tokens) +
            "\n";
  }
  EXPECT_EQ(text,
            "79554466 0 339 315\n"
            "1810532256 3 115 31\n"
            "2130832125 0 209 204\n");
}

TEST(WorkloadTest, SwitchingChangesItsRate) {
  const BuiltWorkload built = build(
      "{duration_s: 60000, adapters: {count: 1}, arrivals: {process: switching, rate: 2, "
      "update_s: 300, factor: 2, max_factor: 4}, lengths: {source: fixed}}");
  std::vector<double> per_window(200, 0.0);
  for (const Request& request : built.workload.requests) {
    per_window[static_cast<std::size_t>(to_seconds(request.arrival) / 300)] += 1;
  }
  // Rates between 0.5 and 8 per second, in factors of two.
  EXPECT_GT(*std::min_element(per_window.begin(), per_window.end()), 0.5 * 300 * 0.7);
  EXPECT_LT(*std::max_element(per_window.begin(), per_window.end()), 8 * 300 * 1.2);
  EXPECT_GT(cv_of(per_window), 0.4);
}

// A trace of five functions over two bins; totals 8, 5, 9, 5, 1.
FunctionTrace five_functions() {
  FunctionTrace trace;
  trace.functions = 5;
  trace.bins = 2;
  trace.counts = {4, 4, 5, 0, 9, 0, 2, 3, 0, 1};
  return trace;
}

TEST(FunctionMappingTest, DloraSkewnessOnAHandExample) {
  // Sorted: 2 (9), 0 (8), 1 (5), 3 (5, later in the file), 4 (1).
  const auto by_two = map_functions(five_functions(), 2, 2, true);
  EXPECT_EQ(by_two, (std::vector<std::uint32_t>{0, 1, 0, 1, 0}));
  const auto by_one = map_functions(five_functions(), 3, 1, true);
  EXPECT_EQ(by_one, (std::vector<std::uint32_t>{1, 2, 0, 0, 1}));
  const auto unsorted = map_functions(five_functions(), 2, 2, false);
  EXPECT_EQ(unsorted, (std::vector<std::uint32_t>{0, 0, 1, 1, 0}));
  const auto all_to_one = map_functions(five_functions(), 4, 10, true);
  EXPECT_EQ(all_to_one, (std::vector<std::uint32_t>(5, 0)));
}

TEST(FunctionMappingTest, ResampledSharesKeepTheCurve) {
  const std::vector<double> counts = {1, 50, 4, 30, 15};
  const auto same = resample_shares(counts, 5);
  EXPECT_NEAR(same[0], 0.5, 1e-12);
  EXPECT_NEAR(same[4], 0.01, 1e-12);
  const auto ten = resample_shares(counts, 10);
  EXPECT_NEAR(ten[0] + ten[1], 0.5, 1e-9);
  EXPECT_TRUE(std::is_sorted(ten.begin(), ten.end(), std::greater<>()));
}

TEST(WorkloadTest, LargerSkewnessIsMoreSkewed) {
  double before = 0;
  for (const int skewness : {1, 4, 8, 16, 32}) {
    const BuiltWorkload built = build(
        "{requests: 20000, arrivals: {process: trace-shares, trace: maf2-like, rate: 4, "
        "window_s: 21600}, popularity: {kind: trace, skewness: " +
        std::to_string(skewness) + "}}");
    const auto counts = counts_of(built.workload);
    const double top = *std::max_element(counts.begin(), counts.end());
    EXPECT_GT(top, before) << skewness;
    before = top;
  }
}

TEST(WorkloadTest, TraceSharesKeepsQuotaAndRate) {
  const std::string yaml =
      "{requests: 6000, adapters: {count: 32}, arrivals: {process: trace-shares, trace: maf1-like, "
      "rate: 10, window_s: 21600}, popularity: {kind: trace}}";
  const BuiltWorkload built = build(yaml);
  ASSERT_EQ(built.workload.requests.size(), 6000u);
  EXPECT_NEAR(6000 / to_seconds(built.workload.requests.back().arrival), 10, 0.5);
  EXPECT_NEAR(cv_of(gaps_of(built.workload.requests)), 1, 0.05);
  // Shares differ between the hours of the trace: 1,000 requests belong to each.
  std::vector<std::vector<double>> counts(6, std::vector<double>(32, 0.0));
  for (std::size_t i = 0; i < 6000; ++i) {
    counts[i / 1000][index(built.workload.requests[i].adapter)] += 1;
  }
  double difference = 0;
  for (std::size_t a = 0; a < 32; ++a) difference += std::abs(counts[0][a] - counts[5][a]);
  EXPECT_GT(difference, 300);
  // dLoRA's artifact gives all adapters the same draws: other arrivals, same length.
  std::string correlated = yaml;
  correlated.insert(correlated.find("rate: 10"), "correlated: true, ");
  EXPECT_EQ(build(correlated).workload.requests.size(), 6000u);
  EXPECT_FALSE(same_requests(build(correlated).workload, built.workload));
}

// A row's draw stands among the shares of whatever popularity a spec has.
TEST(WorkloadTest, ATracesDrawsChooseAdaptersByPopularity) {
  const test::TemporaryFolder folder;
  const std::string trace =
      folder.file("mine.csv",
                  "t_s,input_tokens,output_tokens,draw\n0,10,3,0\n1,10,3,0.49\n2,10,3,0.51\n"
                  "3,10,3,0.999\n");
  const auto adapters = [&](const std::string& more) {
    std::vector<int> found;
    const std::string yaml =
        "{lengths: {source: trace}, arrivals: {process: replay, trace: " + trace + "}, " + more +
        "}";
    for (const Request& request : build(yaml).workload.requests) {
      found.push_back(request.adapter == kBaseModel ? -1
                                                    : static_cast<int>(index(request.adapter)));
    }
    return found;
  };
  // Shares of the first of four: 1/4, and (1/4)^(1/2) = 1/2 for the exponent 0.5.
  EXPECT_EQ(adapters("adapters: {count: 4}, popularity: {kind: uniform}"),
            (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(adapters("adapters: {count: 4}, popularity: {kind: power-law, exponent: 0.5}"),
            (std::vector<int>{0, 0, 1, 3}));
  EXPECT_EQ(adapters("adapters: {count: 0}"), (std::vector<int>{-1, -1, -1, -1}));
  folder.file("mine.csv", "t_s,input_tokens,output_tokens,draw\n0,10,3,1\n");
  EXPECT_THAT(error_of("{arrivals: {process: replay, trace: " + trace + "}}"), HasSubstr("'draw'"));
}

TEST(WorkloadTest, TraceRateFollowsTheTrace) {
  const BuiltWorkload built = build(
      "{duration_s: 86400, lengths: {source: fixed}, adapters: {count: 4}, arrivals: {process: "
      "trace-rate, trace: maf1-like, rate: 5, per_adapter: true}, popularity: {kind: trace}}");
  FunctionTraceRequest request;
  request.name = "maf1-like";
  request.bin_s = 3600;
  const FunctionTrace trace = load_function_trace(request);
  std::vector<double> expected(24, 0.0);
  double total = 0;
  for (std::size_t f = 0; f < trace.functions; ++f) {
    for (std::size_t b = 0; b < 24; ++b) {
      expected[b] += trace.of(f)[b];
      total += trace.of(f)[b];
    }
  }
  std::vector<double> seen(24, 0.0);
  for (const Request& r : built.workload.requests) {
    seen[static_cast<std::size_t>(to_seconds(r.arrival) / 3600)] += 1;
  }
  EXPECT_NEAR(static_cast<double>(built.workload.requests.size()), 432000, 4000);
  // The minute factors of the trace are left out above, hence the generous bound.
  for (std::size_t b = 0; b < 24; ++b) {
    EXPECT_NEAR(seen[b] / 432000, expected[b] / total, 0.25 * expected[b] / total) << b;
  }
  const auto gaps = gaps_of(built.workload.requests);
  EXPECT_GT(cv_of(gaps), 1.0);  // burstier than Poisson
}

TEST(WorkloadTest, AMillionRequestsOverFortyThousandAdapters) {
  const BuiltWorkload built = build(
      "{requests: 1000000, adapters: {count: 40000, ranks: [8, 16, 32, 64]}, "
      "arrivals: {rate: 340}, "
      "popularity: {kind: trace, trace: maf1-like, functions: 40000}, "
      "lengths: {source: alpaca-like}}");
  EXPECT_EQ(built.workload.requests.size(), 1000000u);
  EXPECT_EQ(built.workload.adapters.size(), 40000u);
}

TEST(EmbeddedStatsTest, TablesAreUsable) {
  for (const EmbeddedLengths& lengths : embedded_lengths()) {
    double weight = 0;
    for (const LengthComponent& component : lengths.components) {
      weight += component.weight;
      EXPECT_TRUE(std::is_sorted(component.prompt.begin(), component.prompt.end()));
      EXPECT_TRUE(std::is_sorted(component.output.begin(), component.output.end()));
      EXPECT_GE(component.prompt.front(), 1);
      EXPECT_LE(std::abs(component.correlation), 1);
    }
    EXPECT_NEAR(weight, 1, 1e-3) << lengths.name;
  }
  for (const EmbeddedShares& shares : embedded_shares()) {
    double items = 0;
    double calls = 0;
    for (const ShareKnot& knot : shares.knots) {
      EXPECT_GT(knot.items, items);
      EXPECT_GE(knot.calls, calls);
      items = knot.items;
      calls = knot.calls;
    }
    EXPECT_EQ(items, 1);
    EXPECT_EQ(calls, 1);
  }
}

}  // namespace
}  // namespace servelab

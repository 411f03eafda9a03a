// The `workload:` section: defaults, effective settings, and what is refused with which message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/workload/workload_testing.h"

namespace servelab {
namespace {

using test::build;
using test::context;
using test::error_of;
using test::same_requests;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkloadSettingsTest, EffectiveSettingsNameEveryDefault) {
  const BuiltWorkload built = build("{requests: 5, arrivals: {rate: 3}}");
  const std::string json = canonical_json(built.effective);
  for (const char* part :
       {"\"requests\":5", "\"rate\":3", "\"process\":\"poisson\"", "\"kind\":\"uniform\"",
        "\"max_prompt_tokens\":1024", "\"max_total_tokens\":2048", "\"ranks\":[8]",
        "\"fallback\":\"embedded\""}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
  // Building from the effective settings gives the same workload.
  EXPECT_TRUE(same_requests(build_workload(built.effective, context()).workload, built.workload));
  ASSERT_EQ(built.sources.size(), 1u);
  EXPECT_EQ(built.sources[0].role, "lengths");
  EXPECT_EQ(built.sources[0].origin, "embedded");
}

TEST(WorkloadSettingsTest, ErrorsSayWhereAndHow) {
  EXPECT_THAT(error_of("requests: 5\nlength: {}"),
              AllOf(HasSubstr("spec.yaml:2:1"), HasSubstr("did you mean 'lengths'")));
  EXPECT_THAT(error_of("requests: 5\narrivals: {proces: x}"),
              AllOf(HasSubstr("spec.yaml:2:"), HasSubstr("did you mean 'process'")));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: poison}"),
              HasSubstr("did you mean 'poisson'"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {rate: -1}"), HasSubstr("'rate'"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {rate: 0}"), HasSubstr("must be above 0"));
  EXPECT_THAT(error_of("duration_s: 5\narrivals: {process: closed}"),
              HasSubstr("needs 'requests'"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-rate}"), HasSubstr("needs 'trace'"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: replay}"), HasSubstr("needs 'trace'"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-shares, trace: maf1-like}"),
              HasSubstr("set popularity.kind to trace"));
  EXPECT_THAT(error_of("duration_s: 5\narrivals: {process: trace-shares, trace: maf1-like}\n"
                       "popularity: {kind: trace}"),
              HasSubstr("needs 'requests'"));
  EXPECT_THAT(error_of("requests: 5\npopularity: {kind: trace}"), HasSubstr("needs 'trace'"));
  EXPECT_THAT(error_of("requests: 5\npopularity: {kind: trace, trace: maf3}"),
              HasSubstr("unknown trace of functions 'maf3'; did you mean"));
  EXPECT_THAT(error_of("requests: 5\npopularity: {kind: weights}"), HasSubstr("needs 'weights'"));
  EXPECT_THAT(error_of("requests: 5\npopularity: {kind: weights, weights: [0]}"),
              HasSubstr("weight 0"));
  EXPECT_THAT(error_of("requests: 5\npopularity: {kind: geometric, exponent: 0}"),
              HasSubstr("above 0"));
  EXPECT_THAT(error_of("requests: 5\nadapters: {ranks: [8.5]}"), HasSubstr("whole numbers"));
  EXPECT_THAT(error_of("requests: 5\nadapters: {ranks: []}"), HasSubstr("at least one rank"));
  EXPECT_THAT(error_of("requests: 5\nadapters: {ranks: [8], rank_weights: [1, 2]}"),
              HasSubstr("one weight per rank"));
  EXPECT_THAT(error_of("requests: 5\nadapters: {ranks: [8, 16], rank_weights: [1, 2]}"),
              HasSubstr("assign: random"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: sharegtp}"),
              HasSubstr("did you mean 'sharegpt'"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: trace}"), HasSubstr("process replay"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: uniform, prompt_range: [9, 9]}"),
              HasSubstr("low < high"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: bwb-like, max_total_tokens: 8}"),
              HasSubstr("hardly any length"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: missing.csv}"),
              AllOf(HasSubstr("spec.yaml:2:11: no such file 'missing.csv': looked for it as"),
                    HasSubstr("/missing.csv'")));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-rate, trace: gentd26-like}"),
              HasSubstr("popularity only, no times"));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-rate, trace: maf1-like, "
                       "start_s: 90000}"),
              HasSubstr("86400 s long"));
  EXPECT_THAT(error_of("requests: 5\nfallback: error\nlengths: {source: bwb}"),
              AllOf(HasSubstr("is not on this machine"), HasSubstr("data/fetch bwb")));
  EXPECT_THAT(error_of("requests: 5\nfallback: error\npopularity: {kind: trace, trace: maf1}"),
              AllOf(HasSubstr("spec.yaml:3:"), HasSubstr("SERVELAB_DATA")));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: replay, trace: azure-llm-conv}"),
              AllOf(HasSubstr("nothing embedded"), HasSubstr("data/fetch azure-llm-conv")));
}

TEST(WorkloadSettingsTest, MissingFilesAndTracesMadeByHand) {
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: replay, trace: mine.csv}"),
              AllOf(HasSubstr("spec.yaml:2:29: no such file 'mine.csv': looked for it as")));
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-rate, trace: mine.csv}"),
              AllOf(HasSubstr("spec.yaml:2:33: no such file 'mine.csv'")));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: mine.txt}"), HasSubstr("or a file *.csv"));
  for (const char* name : {"gentd26", "maf2", "servegen-m-large"}) {
    EXPECT_THAT(error_of("requests: 5\nfallback: error\npopularity: {kind: trace, trace: " +
                         std::string(name) + "}"),
                AllOf(HasSubstr("is not on this machine"), HasSubstr("by hand"),
                      Not(HasSubstr("data/fetch"))))
        << name;
  }
}

TEST(WorkloadSettingsTest, ArrivalSettingsWithoutEffectAreRefused) {
  EXPECT_THAT(
      error_of("requests: 5\narrivals: {cv: 3}"),
      HasSubstr("spec.yaml:2:12: 'cv' has no effect with process: poisson; remove it or "
                "use one of gamma, lognormal, switching, trace-rate, trace-shares, weibull"));
  const auto refused = [](const std::string& key, const std::string& arrivals) {
    EXPECT_THAT(error_of("requests: 5\narrivals: {" + arrivals + "}"),
                HasSubstr("'" + key + "' has no effect with "))
        << arrivals;
  };
  refused("trace", "trace: maf1-like");
  refused("rate", "process: closed, rate: 2");
  for (const char* key :
       {"interval_s", "start_s", "window_s", "speed", "update_s", "factor", "max_factor"}) {
    refused(key, std::string(key) + ": 7");
  }
  refused("gaps", "gaps: even");
  refused("correlated", "process: gamma, correlated: true");
  refused("per_adapter", "process: switching, per_adapter: true");
  refused("cv", "process: trace-rate, trace: maf1-like, gaps: even, cv: 2");
  // The trace of the arrivals may be there for the popularity.
  EXPECT_EQ(error_of("{requests: 5, arrivals: {trace: maf1-like, window_s: 7200}, "
                     "popularity: {kind: trace}}"),
            "(no error)");
}

TEST(WorkloadSettingsTest, OtherSettingsWithoutEffectAreRefused) {
  const auto refused = [](const std::string& key, const std::string& section) {
    EXPECT_THAT(error_of("requests: 5\n" + section),
                AllOf(HasSubstr("spec.yaml:2:"), HasSubstr("'" + key + "' has no effect with ")))
        << section;
  };
  refused("exponent", "popularity: {exponent: 2}");
  refused("trace", "popularity: {kind: zipf, trace: maf1}");
  refused("weights", "popularity: {kind: zipf, weights: [1, 2]}");
  refused("shuffle", "popularity: {kind: round-robin, shuffle: true}");
  refused("functions", "popularity: {functions: 4}");
  refused("skewness", "popularity: {kind: zipf, skewness: 4}");
  refused("sort", "popularity: {sort: false}");
  refused("prompt", "lengths: {prompt: 9}");
  refused("output", "lengths: {source: uniform, output: 9}");
  refused("prompt_cv", "lengths: {source: fixed, prompt_cv: 2}");
  refused("output_cv", "lengths: {source: alpaca-like, output_cv: 2}");
  refused("correlation", "lengths: {source: uniform, correlation: 0.5}");
  refused("prompt_range", "lengths: {source: normal, prompt_range: [1, 2]}");
  refused("output_range", "lengths: {output_range: [1, 2]}");
  refused("min_tokens", "lengths: {source: fixed, min_tokens: 2}");
  refused("max_total_tokens", "lengths: {source: normal, max_total_tokens: 99}");
}

TEST(WorkloadSettingsTest, SettingsWithoutEffectPassAtTheirDefaults) {
  EXPECT_EQ(error_of("{requests: 5, arrivals: {cv: 1, speed: 1.0, trace: \"\", factor: 2}, "
                     "popularity: {exponent: 1, weights: [], sort: true}, "
                     "lengths: {source: fixed, prompt_cv: 1, prompt_range: [8, 512]}}"),
            "(no error)");
  for (const std::string arrivals :
       {"{process: closed}", "{process: switching}", "{process: even, rate: 2}",
        "{process: trace-rate, trace: maf1-like, speed: 2}",
        "{process: trace-shares, trace: maf2-like}"}) {
    const bool shares = arrivals.find("shares") != std::string::npos;
    const BuiltWorkload built = build("{requests: 50, arrivals: " + arrivals + ", popularity: " +
                                      (shares ? "{kind: trace}}" : "{kind: zipf}}"));
    const BuiltWorkload again = build_workload(built.effective, context());
    EXPECT_TRUE(same_requests(again.workload, built.workload)) << arrivals;
    EXPECT_EQ(canonical_json(again.effective), canonical_json(built.effective)) << arrivals;
    EXPECT_EQ(again.notes, built.notes) << arrivals;
    ConfigNode noted = built.effective;
    noted.set("notes", parse_yaml("[one, two]", "notes"));  // as recorded beside them
    EXPECT_EQ(canonical_json(build_workload(noted, context()).effective),
              canonical_json(built.effective));
  }
}

TEST(WorkloadSettingsTest, UnsetRateIsOneOrTheTracesOwn) {
  const auto rate_of = [](const std::string& yaml) {
    return build(yaml).effective.find("arrivals")->find("rate")->scalar;
  };
  EXPECT_EQ(rate_of("{requests: 5}"), "1");
  EXPECT_EQ(rate_of("{requests: 5, popularity: {kind: weights, weights: [2, 0.5]}, "
                    "adapters: {count: 4}}"),
            "5");
  EXPECT_EQ(rate_of("{requests: 5, arrivals: {process: closed}}"), "0");
  EXPECT_EQ(rate_of("{requests: 5, arrivals: {process: trace-rate, trace: maf1-like}}"), "0");
  // 996,503 calls of one day, twice as fast.
  const BuiltWorkload twice = build(
      "{requests: 200000, arrivals: {process: trace-rate, trace: maf1-like, speed: 2}, "
      "lengths: {source: fixed}}");
  EXPECT_THAT(twice.notes, ElementsAre(HasSubstr("23.0672 requests/s")));
  EXPECT_NEAR(200000 / to_seconds(twice.workload.requests.back().arrival), 23.07, 7);
  EXPECT_THAT(error_of("requests: 5\narrivals: {process: trace-rate, trace: maf1-like, rate: 1, "
                       "speed: 2}"),
              AllOf(HasSubstr("spec.yaml:2:"), HasSubstr("'rate' and 'speed' exclude")));
}

TEST(WorkloadSettingsTest, ArrivalsBeyondTheEndOfTimeAreRefused) {
  EXPECT_THAT(error_of("requests: 20\narrivals: {rate: 1e-9}"),
              AllOf(HasSubstr("spec.yaml:2:12: only "), HasSubstr(" of 20 requests"),
                    HasSubstr("285 years")));
  EXPECT_THAT(error_of("requests: 20\narrivals: {rate: 1e-9, per_adapter: true}"),
              HasSubstr("285 years"));
  EXPECT_EQ(error_of("{requests: 20, duration_s: 100, arrivals: {rate: 1e-9}}"), "(no error)");
}

}  // namespace
}  // namespace servelab

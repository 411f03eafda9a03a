// Trace loaders: on small files written here, and on the real traces where SERVELAB_DATA names
// their folder (skipped otherwise).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/workload/function_models.h"
#include "engine/workload/function_trace.h"
#include "engine/workload/request_trace.h"
#include "engine/workload/workload.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

using test::error_of;

using ::testing::AllOf;
using ::testing::HasSubstr;

BuiltWorkload build(const std::string& yaml, const std::string& data_dir) {
  WorkloadContext context;
  context.seed = 1;
  context.data_dir = data_dir;
  context.max_context_tokens = 200000;
  context.adapter_bytes = [](int rank) { return Bytes{rank} * 1000; };
  return build_workload(parse_yaml(yaml, "spec.yaml"), context);
}

class TraceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("servelab_trace_" + name);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(TraceFileTest, MinuteTable) {
  const std::string path =
      write("m.csv", "fn,owner,total,1,2,3,4\n0,7,10,1,2,3,4\n1,7,5,0,0,5,0\n");
  const FunctionTrace minutes = load_minute_table(path, "fetch it", 60);
  EXPECT_EQ(minutes.functions, 2u);
  EXPECT_EQ(minutes.bins, 4u);
  EXPECT_EQ(minutes.total(0), 10);
  const FunctionTrace pairs = load_minute_table(path, "fetch it", 120);
  EXPECT_EQ(pairs.bins, 2u);
  EXPECT_EQ(pairs.of(0)[1], 7);
  EXPECT_EQ(pairs.of(1)[1], 5);
  EXPECT_THAT(error_of([&] { load_minute_table(path, "fetch it", 90); }),
              HasSubstr("must be a multiple"));
  const auto broken = [&](const std::string& text) {
    const std::string at = write("b.csv", text);
    return error_of([&] { load_minute_table(at, "fetch it", 60); });
  };
  EXPECT_THAT(broken("fn,total,1,2\n0,4,1,2\n"),
              AllOf(HasSubstr("b.csv:2: the minutes sum to 3, column 'total' says 4"),
                    HasSubstr("fetch it")));
  EXPECT_THAT(broken("fn,1,2\n0,1\n"), HasSubstr("2 columns, the header has 3"));
  EXPECT_THAT(broken("fn,1,2\n0,1,-2\n"), HasSubstr("got '-2'"));
  EXPECT_THAT(broken("fn,1,2\n0,1,1.5\n"), HasSubstr("got '1.5'"));
  EXPECT_THAT(broken("fn,owner\n0,1\n"), HasSubstr("named after a minute"));
  EXPECT_THAT(broken("fn,1,2\n"), HasSubstr("no rows"));
}

TEST_F(TraceFileTest, RequestTables) {
  const RequestTrace seconds = read_request_trace(
      write("a.csv", "t_s,input_tokens,output_tokens\n2.5,10,3\n1.5,20,4\n1.5,30,5\n"), "",
      RowsFor::kLengths);
  ASSERT_EQ(seconds.rows.size(), 3u);
  EXPECT_EQ(seconds.rows[0].prompt_tokens, 20);  // by time, ties in file order
  EXPECT_EQ(seconds.rows[1].prompt_tokens, 30);
  EXPECT_EQ(seconds.rows[2].at_s, 1);
  const RequestTrace burst = read_request_trace(
      write("b.csv",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n6,ChatGPT,10,0,10,Conversation log\n"),
      "", RowsFor::kReplay);
  EXPECT_EQ(burst.rows.size(), 1u);  // failed requests have no output
  EXPECT_EQ(burst.rows_without_output, 1);
  const RequestTrace mooncake = read_request_trace(
      write("c.jsonl",
            "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, "
            "\"hash_ids\": [0, 1]}\n"
            "{\"timestamp\": 3000, \"input_length\": 7, \"output_length\": 5, \"adapter\": 2}\n"),
      "", RowsFor::kReplay);
  ASSERT_EQ(mooncake.rows.size(), 2u);
  EXPECT_EQ(mooncake.rows[1].at_s, 3);
  EXPECT_EQ(mooncake.rows[1].adapter, 2);
  const auto broken = [&](const std::string& name, const std::string& text) {
    const std::string at = write(name, text);
    return error_of([&] { read_request_trace(at, "fetch it", RowsFor::kReplay); });
  };
  EXPECT_THAT(broken("d.csv", "t_s,input_tokens\n1,2\n"),
              HasSubstr("column 'output_tokens' is missing"));
  EXPECT_THAT(broken("d.csv", "t_s,input_tokens,output_tokens\n"), HasSubstr("no usable rows"));
  EXPECT_THAT(broken("d.csv", "t_s,input_tokens,output_tokens\n1,900000000000,1\n"),
              HasSubstr("d.csv:2: more than 100,000,000 tokens"));
  EXPECT_THAT(broken("d.jsonl", "{\"timestamp\": 1}\n"),
              HasSubstr("d.jsonl:1: 'input_length' is missing"));
  EXPECT_THAT(broken("d.jsonl", "{\"timestamp\": 1, \"input_length\": -1}\n"),
              HasSubstr("not negative"));
  EXPECT_THAT(broken("d.jsonl", "{\"input_length\": 1}\n"), HasSubstr("'timestamp'"));
  EXPECT_THAT(broken("d.jsonl", "{oops\n"), HasSubstr("d.jsonl:1: not a JSON object; fetch it"));
}

TEST_F(TraceFileTest, MooncakeSupersetKeys) {
  const RequestTrace trace = read_request_trace(
      write(
          "s.jsonl",
          "{\"timestamp\": 1500.000001, \"input_length\": 7, \"output_length\": 5, \"adapter\": "
          "\"sql\", \"rank\": 16, \"base_model\": \"llama\", \"session\": \"a\", \"max_tokens\": "
          "9, "
          "\"slo\": {\"ttft_ms\": 250, \"tpot_ms\": 0.5}, \"text\": \"x\", \"hash_ids\": []}\n"
          "{\"timestamp\": 1500.000002, \"input_length\": 8, \"output_length\": 1, \"adapter\": "
          "null, \"rank\": 0, \"session\": 4}\n"
          "{\"timestamp\": 1600, \"input_length\": 8, \"output_length\": 1, \"adapter\": \"chat\", "
          "\"session\": \"a\"}\n"),
      "", RowsFor::kReplay);
  ASSERT_EQ(trace.rows.size(), 3u);
  EXPECT_EQ(from_seconds(trace.rows[0].at_s + trace.first_s), 1'500'000'001);
  EXPECT_EQ(from_seconds(trace.rows[1].at_s), 1);
  EXPECT_EQ(trace.rows[0].adapter, 0);
  EXPECT_EQ(trace.rows[1].adapter, kRowOfBaseModel);
  EXPECT_EQ(trace.rows[2].adapter, 1);
  EXPECT_EQ(trace.adapter_ranks, std::vector<std::int32_t>{16});
  EXPECT_EQ(trace.base_models, 1);
  EXPECT_EQ(trace.rows[0].output_limit, 9);
  EXPECT_EQ(trace.rows[0].objective.ttft, 250'000'000);
  EXPECT_EQ(trace.rows[0].objective.tpot, 500'000);
  EXPECT_EQ(trace.rows[0].objective.latency, kUnset);
  EXPECT_TRUE(trace.has_objectives);
  EXPECT_EQ(trace.rows[0].session, 0);
  EXPECT_EQ(trace.rows[1].session, 1);
  EXPECT_EQ(trace.rows[2].session, 0);
  EXPECT_EQ(trace.unused_keys, (std::vector<std::string>{"hash_ids", "text"}));
}

TEST_F(TraceFileTest, BadMooncakeLinesAreToldWithTheirPlace) {
  const auto broken = [&](const std::string& first, const std::string& second) {
    const std::string head = "{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3, ";
    const std::string at = write("b.jsonl", head + first + "}\n" + head + second + "}\n");
    return error_of([&] { read_request_trace(at, "", RowsFor::kReplay); });
  };
  EXPECT_THAT(broken("\"adapter\": 1, \"rank\": 8", "\"adapter\": 1, \"rank\": 16"),
              HasSubstr("b.jsonl:2: adapter 1 has rank 16 here and 8 above"));
  EXPECT_THAT(broken("\"adapter\": 1", "\"adapter\": \"sql\""),
              HasSubstr("b.jsonl:2: 'adapter' is a name in some lines and an index in others"));
  EXPECT_THAT(broken("\"adapter\": -1", "\"a\": 1"), HasSubstr("b.jsonl:1: 'adapter' must be"));
  EXPECT_THAT(broken("\"adapter\": 10000000", "\"a\": 1"), HasSubstr("'adapter' must be"));
  EXPECT_THAT(broken("\"a\": 1", "\"rank\": 8"), HasSubstr("b.jsonl:2: 'rank' needs 'adapter'"));
  EXPECT_THAT(broken("\"adapter\": 1, \"rank\": 0", "\"a\": 1"), HasSubstr("'rank' must be 1"));
  EXPECT_THAT(broken("\"slo\": 5", "\"a\": 1"), HasSubstr("'slo' must be an object"));
  EXPECT_THAT(broken("\"slo\": {\"ttft\": 5}", "\"a\": 1"),
              HasSubstr("unknown key 'ttft' in 'slo'; known: ttft_ms"));
  EXPECT_THAT(broken("\"slo\": {\"ttft_ms\": 0}", "\"a\": 1"), HasSubstr("positive"));
  EXPECT_THAT(broken("\"session\": [1]", "\"a\": 1"), HasSubstr("b.jsonl:1: 'session' must be"));
  EXPECT_THAT(broken("\"max_tokens\": 2", "\"a\": 1"), HasSubstr("less than 'output_length'"));
}

TEST_F(TraceFileTest, ReplayTakesWhatTheTraceNames) {
  write("t.jsonl",
        "{\"timestamp\": 500, \"input_length\": 7, \"output_length\": 5, \"adapter\": 2, \"rank\": "
        "64, \"max_tokens\": 6, \"session\": 1, \"hash_ids\": [3]}\n"
        "{\"timestamp\": 750, \"input_length\": 7, \"output_length\": 5, \"adapter\": null}\n");
  const std::string rest = "lengths: {source: trace}, arrivals: {process: replay, trace: t.jsonl";
  const BuiltWorkload zero = build("{adapters: {count: 4}, " + rest + ", origin: zero}}", folder_);
  ASSERT_EQ(zero.workload.requests.size(), 2u);
  EXPECT_EQ(zero.workload.requests[0].arrival, 500'000'000);
  EXPECT_EQ(zero.workload.requests[0].adapter, AdapterId{2});
  EXPECT_EQ(zero.workload.requests[0].output_limit_tokens, 6);
  EXPECT_EQ(zero.workload.requests[1].adapter, kBaseModel);
  EXPECT_EQ(zero.workload.adapters[2].rank, 64);
  EXPECT_EQ(zero.workload.adapters[2].bytes, zero.workload.adapters[3].bytes * 8);
  EXPECT_EQ(zero.workload.sessions, (std::vector<std::int32_t>{0, -1}));
  ASSERT_EQ(zero.notes.size(), 2u);
  EXPECT_THAT(zero.notes[0], HasSubstr("not used: hash_ids"));
  const BuiltWorkload first = build("{adapters: {count: 4}, " + rest + "}}", folder_);
  EXPECT_EQ(first.workload.requests[1].arrival, 250'000'000);
  const auto refused = [&](const std::string& adapters) {
    return error_of([&] { build("{adapters: {" + adapters + "}, " + rest + "}}", folder_); });
  };
  EXPECT_THAT(refused("count: 4, ranks: [16]"),
              HasSubstr("adapter 2 has rank 16 by 'ranks' and 64 in the trace; remove 'ranks'"));
  EXPECT_THAT(refused("count: 2"), HasSubstr("adapters.count gives only 2"));
}

TEST_F(TraceFileTest, RealFileIsPreferredAndAbsentOneFallsBack) {
  const std::string yaml =
      "{requests: 100, adapters: {count: 3}, popularity: {kind: trace, trace: gentd26}, "
      "lengths: {source: fixed}}";
  EXPECT_EQ(build(yaml, folder_).sources[0].name, "gentd26-like");
  EXPECT_EQ(build(yaml, folder_).sources[0].origin, "embedded");
  write("gentd26_lora/adapter_popularity.csv", "lora_id,uses\n0,0\n1,5\n2,0\n");
  const BuiltWorkload real = build(yaml, folder_);
  EXPECT_EQ(real.sources[0].name, "gentd26");
  EXPECT_EQ(real.sources[0].origin, "gentd26_lora/adapter_popularity.csv");
  for (const Request& request : real.workload.requests) {
    EXPECT_EQ(request.adapter, AdapterId{0});  // sorted: the only used one comes first
  }
  write("gentd26_lora/adapter_popularity.csv", "lora_id,uses\n0,0\n");
  EXPECT_THAT(error_of([&] { build(yaml, folder_); }), HasSubstr("no invocation"));
  write("gentd26_lora/adapter_popularity.csv", "lora_id,uses\n0,many\n");
  EXPECT_THAT(error_of([&] { build(yaml, folder_); }),
              AllOf(HasSubstr("adapter_popularity.csv:2: column 'uses'"), HasSubstr("by hand")));
}

TEST_F(TraceFileTest, Maf2StatisticsKeepTotalsStartsAndSpans) {
  write("app_iat_stats_77.csv",
        "app,requests,start_s,end_s,span_s,iat_max_s,iat_min_s,iat_mean_s,iat_median_s,bursty\n"
        "0,1000,7200,14400,7200,1800,0,7.2,2,0\n");
  const std::string totals = write("app_totals.csv", "rank,invocations\n1,1000\n2,7\n");
  const FunctionTrace trace = load_maf2_statistics(totals, "fetch it", 3600);
  EXPECT_EQ(trace.bins, 336u);
  EXPECT_EQ(trace.functions, 7u);  // 2 apps at 424 functions per 119 apps
  double first = 0;
  double all = 0;
  for (std::size_t f = 0; f < trace.functions; ++f) {
    all += trace.total(f);
    if (trace.total(f) > 7) {
      first += trace.of(f)[2] + trace.of(f)[3] + trace.of(f)[4];
    }
  }
  EXPECT_NEAR(all, 1007, 0.01);
  EXPECT_NEAR(first, 1000, 0.01);  // active from 2 h to 4 h, the last call on the edge
  write("app_iat_stats_77.csv",
        "app,requests,start_s,span_s,iat_max_s,iat_median_s\n0,1000,7200,7200,9999,2\n");
  EXPECT_THAT(error_of([&] { load_maf2_statistics(totals, "fetch it", 3600); }),
              HasSubstr("a gap longer than the span"));
}

// ---- real traces ---------------------------------------------------------------------------

class RealTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("SERVELAB_DATA");
    if (folder == nullptr || *folder == '\0') {
      GTEST_SKIP() << "SERVELAB_DATA is not set: no real traces here";
    }
    folder_ = folder;
  }
  FunctionTrace load(const std::string& name, double bin_s, double window_s = 0) const {
    FunctionTraceRequest request;
    request.name = name;
    request.data_dir = folder_;
    request.embedded_allowed = name.find("-like") != std::string::npos;
    request.bin_s = bin_s;
    request.window_s = window_s;
    return load_function_trace(request);
  }
  static std::vector<double> sorted_shares(const FunctionTrace& trace) {
    std::vector<double> totals;
    for (std::size_t f = 0; f < trace.functions; ++f) totals.push_back(trace.total(f));
    return resample_shares(totals, totals.size());
  }
  static double top_share(const FunctionTrace& trace, double fraction) {
    const auto shares = sorted_shares(trace);
    double sum = 0;
    const auto n =
        static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(shares.size())));
    for (std::size_t i = 0; i < n; ++i) sum += shares[i];
    return sum;
  }
  // Coefficient of variation of each busier function's rate per bin, in excess of a Poisson process
  // where the trace holds whole counts; the quantile q of these over the functions.
  static double excess_cv(const FunctionTrace& trace, bool has_counts, double q) {
    std::vector<double> cvs;
    for (std::size_t f = 0; f < trace.functions; ++f) {
      const double mean = trace.total(f) / static_cast<double>(trace.bins);
      if (trace.total(f) < 200) continue;
      double sum = 0;
      for (const float count : trace.of(f)) sum += (count - mean) * (count - mean);
      const double variance = sum / static_cast<double>(trace.bins) - (has_counts ? mean : 0);
      cvs.push_back(std::sqrt(std::max(0.0, variance)) / mean);
    }
    std::sort(cvs.begin(), cvs.end());
    return cvs[static_cast<std::size_t>(q * static_cast<double>(cvs.size() - 1))];
  }
  // Calls of the busiest bin over those of the mean bin, all functions together.
  static double peak_over_mean(const FunctionTrace& trace) {
    std::vector<double> bins(trace.bins, 0.0);
    double total = 0;
    for (std::size_t f = 0; f < trace.functions; ++f) {
      for (std::size_t b = 0; b < trace.bins; ++b) {
        bins[b] += trace.of(f)[b];
        total += trace.of(f)[b];
      }
    }
    return *std::max_element(bins.begin(), bins.end()) * static_cast<double>(trace.bins) / total;
  }

  std::string folder_;
};

TEST_F(RealTraceTest, EveryCataloguedFileThatIsHereLoads) {
  for (const DataFile& file : data_files()) {
    const auto path = locate(file, folder_);
    if (!path) continue;
    if (file.kind == TraceKind::kRequests || file.kind == TraceKind::kLengths) {
      EXPECT_GT(read_request_trace(*path, "", RowsFor::kReplay).rows.size(), 1000u) << file.name;
    } else {
      EXPECT_GT(load(file.name, file.kind == TraceKind::kRate ? 1 : 3600).functions, 0u)
          << file.name;
    }
  }
}

TEST_F(RealTraceTest, TotalsAsDocumented) {
  const FunctionTrace maf1 = load("maf1", 60);
  double sum = 0;
  for (std::size_t f = 0; f < maf1.functions; ++f) sum += maf1.total(f);
  EXPECT_EQ(maf1.functions, 1350u);
  EXPECT_EQ(sum, 996503);
  EXPECT_NEAR(top_share(maf1, 0.1), 0.792, 0.001);
  const FunctionTrace maf2 = load("maf2", 3600);
  sum = 0;
  for (std::size_t f = 0; f < maf2.functions; ++f) sum += maf2.total(f);
  EXPECT_EQ(maf2.functions, 424u);
  EXPECT_NEAR(sum, 1980951, 2);
  const FunctionTrace clients = load("servegen-m-large", 600);
  EXPECT_EQ(clients.functions, 162u);
  EXPECT_EQ(clients.gap_cv.size(), clients.counts.size());
}

TEST_F(RealTraceTest, EmbeddedMaf1IsClose) {
  const FunctionTrace real = load("maf1", 3600);
  const FunctionTrace like = load("maf1-like", 3600);
  EXPECT_EQ(like.functions, real.functions);
  for (const double fraction : {0.001, 0.01, 0.05, 0.1, 0.2, 0.5}) {
    EXPECT_NEAR(top_share(like, fraction), top_share(real, fraction), 0.01) << fraction;
  }
  for (const double q : {0.25, 0.5, 0.75, 0.9}) {
    const double hours = excess_cv(real, true, q);
    EXPECT_NEAR(excess_cv(like, false, q), hours, 0.25 + 0.25 * hours) << q;
    std::printf("maf1 hourly excess CV, quantile %.2f: %.2f real, %.2f embedded\n", q, hours,
                excess_cv(like, false, q));
  }
  std::printf("maf1 busiest hour over mean: %.2f real, %.2f embedded\n", peak_over_mean(real),
              peak_over_mean(like));
  EXPECT_NEAR(peak_over_mean(like), peak_over_mean(real), 0.35);
}

TEST_F(RealTraceTest, EmbeddedMaf2IsClose) {
  const FunctionTrace real = load("maf2", 3600);
  const FunctionTrace like = load("maf2-like", 3600);
  EXPECT_EQ(like.functions, real.functions);
  for (const double fraction : {0.01, 0.05, 0.1, 0.2, 0.5}) {
    EXPECT_NEAR(top_share(like, fraction), top_share(real, fraction), 0.03) << fraction;
  }
  for (const double q : {0.25, 0.5, 0.75, 0.9}) {
    const double hours = excess_cv(real, false, q);
    EXPECT_NEAR(excess_cv(like, false, q), hours, 0.3 + 0.3 * hours) << q;
    std::printf("maf2 hourly CV, quantile %.2f: %.2f real, %.2f embedded\n", q, hours,
                excess_cv(like, false, q));
  }
  std::printf("maf2 busiest hour over mean: %.2f real, %.2f embedded\n", peak_over_mean(real),
              peak_over_mean(like));
}

TEST_F(RealTraceTest, EmbeddedLengthsAreClose) {
  const auto mean_lengths = [&](const std::string& source) {
    const BuiltWorkload built =
        build("{requests: 60000, lengths: {min_tokens: 1, source: " + source + "}}", folder_);
    double prompts = 0;
    double outputs = 0;
    for (const Request& request : built.workload.requests) {
      prompts += request.prompt_tokens;
      outputs += request.output_tokens;
    }
    return std::pair(prompts / 60000, outputs / 60000);
  };
  for (const std::string name : {"alpaca", "alpaca-template", "sharegpt-8k", "bwb", "arxiv",
                                 "azure-llm-conv", "azure-llm-code", "mooncake-conversation"}) {
    const auto [real_prompt, real_output] = mean_lengths(name);
    const auto [like_prompt, like_output] = mean_lengths(name + "-like");
    EXPECT_NEAR(like_prompt, real_prompt, 0.04 * real_prompt) << name;
    EXPECT_NEAR(like_output, real_output, 0.05 * real_output) << name;
  }
}

TEST_F(RealTraceTest, ReplayKeepsStampsAndLengths) {
  const BuiltWorkload built = build(
      "{adapters: {count: 32}, arrivals: {process: replay, trace: azure-llm-conv}, "
      "lengths: {source: trace}, popularity: {kind: zipf}}",
      folder_);
  ASSERT_EQ(built.workload.requests.size(), 19366u);
  EXPECT_EQ(built.workload.requests[1].arrival, from_seconds(4.314579));
  EXPECT_EQ(built.workload.requests[1].prompt_tokens, 396);
  EXPECT_EQ(built.workload.requests[1].output_tokens, 109);
}

TEST_F(RealTraceTest, ServeGenClientsKeepTheirBurstiness) {
  const BuiltWorkload built = build(
      "{duration_s: 7200, adapters: {count: 162}, arrivals: {process: servegen, trace: "
      "servegen-m-large, start_s: 36000, window_s: 7200}, popularity: {kind: trace}, "
      "lengths: {source: fixed}}",
      folder_);
  const FunctionTrace trace = load("servegen-m-large", 600, 7200);
  EXPECT_GT(built.workload.requests.size(), 100000u);  // about 196 requests per second
  std::vector<double> per_second(7200, 0.0);
  for (const Request& request : built.workload.requests) {
    per_second[static_cast<std::size_t>(to_seconds(request.arrival))] += 1;
  }
  double mean = 0;
  for (const double count : per_second) mean += count / 7200;
  double variance = 0;
  for (const double count : per_second) variance += (count - mean) * (count - mean) / 7200;
  EXPECT_GT(variance / mean, 1.5);  // burstier than Poisson
}

}  // namespace
}  // namespace servelab

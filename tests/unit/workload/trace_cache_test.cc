#include "engine/workload/trace_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/check.h"
#include "engine/workload/workload.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

TEST(TraceCacheTest, BuildsOnceForAllThreadsAndKeepsWhatFits) {
  TraceCache cache(100);
  std::atomic<int> built{0};
  const auto make = [&](std::size_t cells) {
    return [&built, cells] {
      ++built;
      FunctionTrace trace;
      trace.counts.assign(cells, 1.0f);
      return trace;
    };
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(cache.get("a", make(60))->counts.size(), 60u); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(built, 1);
  cache.get("b", make(30));
  cache.get("a", make(60));
  cache.get("c", make(30));  // beyond the limit with both: the least recently used goes
  EXPECT_EQ(built, 3);
  cache.get("a", make(60));
  EXPECT_EQ(built, 3);
  cache.get("b", make(30));
  EXPECT_EQ(built, 4);
  cache.get("large", make(101));
  EXPECT_EQ(cache.get("large", make(101))->counts.size(), 101u);
  EXPECT_EQ(built, 6);
  EXPECT_THROW(cache.get("bad", []() -> FunctionTrace { throw SpecError("no"); }), SpecError);
  EXPECT_EQ(cache.get("bad", make(1))->counts.size(), 1u);
}

TEST(TraceCacheTest, AChangedFileIsReadAgain) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "azure_functions_2021");
  FunctionTraceRequest request;
  request.name = "maf2";
  request.data_dir = folder.path();
  request.bin_s = 3600;
  const std::string head = "app,requests,start_s,span_s,iat_max_s,iat_median_s\n";
  folder.file("azure_functions_2021/app_totals.csv", "rank,invocations\n1,1000\n");
  folder.file("azure_functions_2021/app_iat_stats_77.csv", head + "0,1000,7200,7200,1800,2\n");
  EXPECT_GT(load_function_trace(request).of(0)[2], 0);
  folder.file("azure_functions_2021/app_iat_stats_77.csv", head + "0,1000,3600,7200,1800,2\n");
  EXPECT_GT(load_function_trace(request).of(0)[1], 0);  // the start has moved
}

// A MAF2 trace takes about 100 ms to build; every further workload on it far less.
TEST(TraceCacheTest, WorkloadsShareTheirTrace) {
  const auto seconds = [](int skewness) {
    const auto start = std::chrono::steady_clock::now();
    build_workload(parse_yaml("{requests: 40, arrivals: {process: trace-shares, trace: maf2-like, "
                              "window_s: 7200}, popularity: {kind: trace, skewness: " +
                                  std::to_string(skewness) + "}}",
                              "spec.yaml"),
                   WorkloadContext{});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(1);
  double best = 1;
  for (int skewness = 2; skewness < 12; ++skewness) best = std::min(best, seconds(skewness));
  EXPECT_LT(best, 0.02);
}

}  // namespace
}  // namespace servelab

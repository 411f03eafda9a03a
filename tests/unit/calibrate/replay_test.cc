// Process replay on small files written here; trace_test.cc replays a real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/workload/request_trace.h"
#include "engine/workload/workload.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using test::error_of;

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BuiltWorkload build(const std::string& yaml, const std::string& data_dir) {
  WorkloadContext context;
  context.seed = 1;
  context.data_dir = data_dir;
  context.max_context_tokens = 2000;
  return build_workload(parse_yaml(yaml, "spec.yaml"), context);
}

TEST(ReplayTest, OfAUsersOwnTrace) {
  const TemporaryFolder folder;
  folder.file("own.csv",
              "t_s,input_tokens,output_tokens,adapter\n0,10,3,1\n1,20,4,0\n2.5,30,5,1\n4,40,6,0\n");
  const std::string yaml =
      "{adapters: {count: 2}, arrivals: {process: replay, trace: own.csv, speed: 2}, "
      "lengths: {source: trace, output_limit: -1}}";
  const BuiltWorkload built = build(yaml, folder.path());
  const auto& requests = built.workload.requests;
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[2].arrival, from_seconds(1.25));
  EXPECT_EQ(requests[2].adapter, AdapterId{1});
  EXPECT_EQ(requests[2].prompt_tokens, 30);
  EXPECT_EQ(requests[2].output_tokens, 5);
  EXPECT_EQ(built.sources[0].origin, "own.csv");
  EXPECT_EQ(built.sources[0].sha256.size(), 64u);
  const auto scaled = build(
      "{adapters: {count: 2}, arrivals: {process: replay, trace: own.csv, "
      "rate: 10}, lengths: {source: trace}}",
      folder.path());
  EXPECT_EQ(scaled.workload.requests.back().arrival, from_seconds(0.4));
  EXPECT_THAT(error_of([&] {
                build("requests: 9\n" + std::string("arrivals: {process: replay, "
                                                    "trace: own.csv}"),
                      folder.path());
              }),
              HasSubstr("has only 4 requests"));
  EXPECT_THAT(error_of([&] {
                build(
                    "{adapters: {count: 1}, arrivals: {process: replay, trace: "
                    "own.csv}}",
                    folder.path());
              }),
              HasSubstr("adapters.count gives only 1"));
  EXPECT_THAT(error_of([&] {
                build("{arrivals: {process: replay, trace: own.csv, start_s: 99}}", folder.path());
              }),
              HasSubstr("no request in the chosen window"));
  EXPECT_THAT(
      error_of([&] { build("{arrivals: {process: replay, trace: gone.csv}}", folder.path()); }),
      HasSubstr("no such file 'gone.csv': looked for it as '" + folder / "gone.csv"));
}

TEST(ReplayTest, KeepsTheTracesOwnTimesUnlessARateIsSet) {
  const TemporaryFolder folder;
  folder.file("own.csv", "t_s,input_tokens,output_tokens\n5,10,3\n6,20,4\n9,30,5\n");
  const auto last_arrival = [&](const std::string& more) {
    return to_seconds(
        build("{arrivals: {process: replay, trace: own.csv" + more + "}}", folder.path())
            .workload.requests.back()
            .arrival);
  };
  EXPECT_EQ(last_arrival(""), 4);
  EXPECT_EQ(last_arrival(", speed: 4"), 1);
  EXPECT_EQ(last_arrival(", rate: 3"), 1);
  const BuiltWorkload built =
      build("{arrivals: {process: replay, trace: own.csv, speed: 4}, lengths: {source: trace}}",
            folder.path());
  EXPECT_THAT(built.notes, ElementsAre(HasSubstr("own rate times 'speed', 3 requests/s")));
  EXPECT_EQ(canonical_json(
                build_workload(built.effective, WorkloadContext{0, folder.path(), 2000, nullptr})
                    .effective),
            canonical_json(built.effective));
  EXPECT_THAT(error_of([&] { last_arrival(", rate: 3, speed: 2"); }),
              HasSubstr("'rate' and 'speed' exclude"));
  EXPECT_THAT(error_of([&] { last_arrival(", rate: 1e-10"); }),
              AllOf(HasSubstr("spec.yaml:1:"), HasSubstr("285 years")));
}

TEST(ReplayTest, OutOfOrderStampsAreRefused) {
  const TemporaryFolder folder;
  folder.file("own.csv", "t_s,input_tokens,output_tokens\n1,1,3\n3,1,4\n3,1,4\n2,1,5\n");
  folder.file("own.jsonl",
              "{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 5}\n"
              "{\"timestamp\": 7, \"input_length\": 1, \"output_length\": 5}\n");
  const auto error = [&](const std::string& name) {
    return error_of(
        [&] { build("{arrivals: {process: replay, trace: " + name + "}}", folder.path()); });
  };
  EXPECT_THAT(error("own.csv"), HasSubstr("own.csv:5: this request comes before"));
  EXPECT_THAT(error("own.jsonl"), HasSubstr("own.jsonl:2: this request comes before"));
  // As a set of lengths the same file is fine.
  EXPECT_EQ(build("{requests: 5, lengths: {source: own.csv, min_tokens: 1}}", folder.path())
                .workload.requests.size(),
            5u);
}

TEST(ReplayTest, RowsWithoutTokensAndLongOnesAreNoted) {
  const TemporaryFolder folder;
  folder.file("own.csv",
              "t_s,input_tokens,output_tokens\n0,10,0\n1,0,4\n2,30,5\n3,1500,1500\n4,8,0\n");
  const BuiltWorkload built = build(
      "{arrivals: {process: replay, trace: own.csv}, lengths: {source: trace}}", folder.path());
  ASSERT_EQ(built.workload.requests.size(), 3u);
  EXPECT_EQ(built.workload.requests[0].prompt_tokens, 1);
  EXPECT_THAT(built.notes,
              Contains("2 rows of trace 'own.csv' have no output tokens and are left out"));
  EXPECT_THAT(built.notes, Contains("1 of 3 requests were cut to the context of 2000 tokens"));
  EXPECT_THAT(built.notes,
              Contains("1 of 3 requests were given one prompt token, where the trace has none"));
}

}  // namespace
}  // namespace servelab

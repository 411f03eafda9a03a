// What a run got of the processor, from planted counters: who is to blame for what was lost, and
// which points are marked.
#include "engine/run/processor_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/backend/device/thread_team.h"
#include "engine/run/point.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ProcessorShare, WhatOthersRanWhileWeWaitedIsLost) {
  const ProcessorTimes began{{{1, {10, 1}}, {2, {20, 2}}}, 100, 5};
  const ProcessorTimes ended{{{1, {13, 2}}, {2, {24, 4}}, {3, {1, 0.5}}}, 120, 5};
  const ProcessorShare share = processor_share(began, ended);
  EXPECT_DOUBLE_EQ(share.ran_s, 3 + 4 + 1);
  EXPECT_DOUBLE_EQ(share.waited_s, 1 + 2 + 0.5);
  EXPECT_DOUBLE_EQ(share.stolen_s, 0);
  EXPECT_DOUBLE_EQ(share.loss(), 3.5 / 11.5);
}

TEST(ProcessorShare, WhatOurOwnThreadsWaitForEachOtherIsNotLost) {
  const ProcessorTimes ended{{{1, {8, 30}}, {2, {8, 30}}}, 17, 0};  // others ran for 1 s
  const ProcessorShare share = processor_share({}, ended);
  EXPECT_DOUBLE_EQ(share.waited_s, 1);
  EXPECT_DOUBLE_EQ(share.loss(), 1.0 / 17);
  const ProcessorTimes alone{{{1, {8, 30}}, {2, {8, 30}}}, 15.9, 0};  // within the ticks' error
  EXPECT_DOUBLE_EQ(processor_share({}, alone).loss(), 0);
}

TEST(ProcessorShare, AThiefTakesFromEachByWhatItRuns) {
  const ProcessorTimes ended{{{1, {6, 0}}}, 8, 2};  // others ran a quarter of the time
  EXPECT_DOUBLE_EQ(processor_share({}, ended).stolen_s, 1.5);
  EXPECT_DOUBLE_EQ(processor_share({}, ProcessorTimes{}).loss(), 0);
}

TEST(ProcessorShare, MoreThanIsAllowedIsAReason) {
  EXPECT_EQ(disturbance({9, 1, 0}, 0.1), "");
  EXPECT_EQ(disturbance({9, 0.6, 0.41}, 0.1),
            "others disturbed the run: it did not get 10.1 % of the processor time that it asked "
            "for, more than the 10 % of runtime.max_processor_loss: 0.60 s of waiting while others "
            "ran and 0.41 s stolen by other guests of the host, beside 9.00 s got");
  EXPECT_EQ(disturbance({0, 0.099, 0}, 0.1), "") << "within what the system counts in";
  EXPECT_NE(disturbance({0, 0.101, 0}, 0.1), "");
  EXPECT_EQ(disturbance({0, 50, 50}, 1), "");
  EXPECT_TRUE(is_of_machine("a; " + disturbance({1, 1, 1}, 0)));
}

// A /proc with two threads, a child of one of them, and counters of the processors.
class PlantedProc : public ::testing::Test {
 protected:
  PlantedProc() {
    for (const char* task : {"self/task/7", "self/task/8", "9/task/9"}) {
      fs::create_directories(folder_ / "proc" + "/" + task);
    }
    write("self/task/7/schedstat", "2000000000 500000000 12\n");
    write("self/task/7/children", "9 4000 ");  // 4000 has ended
    write("self/task/8/schedstat", "1000000000 0 3\n");
    write("self/task/8/children", "");
    write("9/task/9/schedstat", "4000000000 250000000 1\n");
    const std::string ticks = std::to_string(::sysconf(_SC_CLK_TCK));  // of a second
    std::string stat = "cpu 1 1 1 1 1 1 1 1 0 0\n";
    for (const int core : usable_cores()) {
      stat += "cpu" + std::to_string(core);
      for (int column = 0; column < 8; ++column) stat += " " + ticks;
      stat += " 0 0\n";
    }
    write("stat", stat + "cpu99999 7 7 7 7 7 7 7 7 0 0\nintr 5\n");
  }
  void write(const std::string& name, const std::string& text) {
    test::write_file(folder_ / ("proc/" + name), text);
  }
  test::TemporaryFolder folder_;
};

TEST_F(PlantedProc, IsReadWithChildrenAndForTheseProcessors) {
  const auto times = processor_times(folder_.path());
  ASSERT_TRUE(times);
  std::vector<std::pair<double, double>> threads;
  for (const auto& [id, thread] : times->threads)
    threads.push_back({thread.ran_s, thread.waited_s});
  EXPECT_THAT(threads, ElementsAre(std::pair(2.0, 0.5), std::pair(1.0, 0.0), std::pair(4.0, 0.25)));
  const auto cores = static_cast<double>(usable_cores().size());
  EXPECT_DOUBLE_EQ(times->busy_s, 5 * cores);  // of eight columns, neither idle, iowait nor steal
  EXPECT_DOUBLE_EQ(times->stolen_s, cores);
}

TEST_F(PlantedProc, WithoutCountersNothingIsClaimed) {
  write("stat", "cpu 1 1 1 1 1 1 1 1 0 0\n");
  EXPECT_FALSE(processor_times(folder_.path()));
  EXPECT_FALSE(processor_times(folder_ / "none"));
}

TEST_F(PlantedProc, WithoutCountersOfThreadsNothingIsClaimed) {
  for (const char* task : {"self/task/7", "self/task/8"}) {
    fs::remove(folder_ / "proc" + "/" + task + "/schedstat");
  }
  EXPECT_FALSE(processor_times(folder_.path()));
}

// A point of the backend whose run loses half of its time, as the planted reader has it.
PointResult run_disturbed(const std::string& backend, const std::string& more, int* reads) {
  const test::TemporaryFolder folder;
  const Spec spec = load_spec(
      folder.file("one.yaml",
                  "title: t\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: " + backend +
                      "\nengine: {memory_fraction: 0.2}\n"
                      "workload:\n  requests: 3\n  adapters: {count: 2, ranks: [4]}\n"
                      "  arrivals: {process: poisson, rate: 100}\n"
                      "  lengths: {source: fixed, prompt: 4, output: 2}\ntechniques: [slora]\n" +
                      more),
      SERVELAB_SOURCE_DIR "/experiments");
  const PointSettings point =
      resolve_point(spec, spec.positions.front(), spec.techniques.front(), 0);
  const BuiltWorkload workload = build_point_workload(point, "");
  return run_point(point, workload.workload, nullptr, [reads] {
    const double at = ++*reads;
    return ProcessorTimes{{{1, {at, at}}}, 2 * at, 0};
  });
}

TEST(ProcessorShare, ADisturbedRunIsInvalidForTheMachinesSake) {
  int reads = 0;
  const PointResult result =
      run_disturbed("cpu", "runtime: {max_arrival_lag_s: 100, threads: 1}\n", &reads);
  EXPECT_EQ(reads, 2);
  ASSERT_EQ(result.record.invalid_reasons.size(), 1u);
  EXPECT_THAT(result.record.invalid_reasons[0],
              StartsWith("others disturbed the run: it did not get 50.0 % of "));
  EXPECT_TRUE(is_of_machine(result.record.invalid_reasons[0]));
  reads = 0;
  EXPECT_THAT(
      run_disturbed(
          "cpu", "runtime: {max_arrival_lag_s: 100, threads: 1, max_processor_loss: 0.5}\n", &reads)
          .record.invalid_reasons,
      ElementsAre());
}

TEST(ProcessorShare, VirtualTimeIsNeverDisturbed) {
  for (const char* backend : {"twin", "null"}) {
    int reads = 0;
    const PointResult result = run_disturbed(backend, "", &reads);
    EXPECT_EQ(reads, 0);
    EXPECT_FALSE(result.processor);
    EXPECT_THAT(result.record.invalid_reasons, ElementsAre());
  }
}

}  // namespace
}  // namespace servelab

// LoRA workers in whole runs of the program: every way to have them, workers and runs that are
// killed, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "engine/core/rng.h"
#include "engine/record/hdf5_reader.h"
#include "tests/support/lora_workers.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using test::Program;
using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

constexpr const char* kHead =
    "title: test\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cpu\n"
    "engine: {max_batch: 8, adapter_slots: 4, memory_fraction: 0.2}\n"
    "techniques: [{technique: caraserve, with: {idle: drop}}]\n"
    "record: {steps: true}\n"
    "workload:\n"
    "  adapters: {count: 40, ranks: [4, 16]}\n"
    "  arrivals: {process: poisson, rate: 40}\n"
    "  popularity: {kind: round-robin}\n"
    "  lengths: {source: uniform, prompt_range: [20, 60], output_range: [1, 8]}\n";

class HostLoraRun : public ::testing::Test {
 protected:
  std::string spec(const std::string& runtime, int requests = 40) const {
    return folder_.file(
        "workers.yaml",
        std::string(kHead) + "  requests: " + std::to_string(requests) +
            "\nruntime: {max_arrival_lag_s: 30, max_processor_loss: 1, threads: 1, " + runtime +
            "}\n");
  }
  std::vector<std::string> run(const std::string& file) const {
    return {"run", file, "--out", folder_ / "out"};
  }
  // What one of the points of a run has in a dataset, summed.
  std::int64_t sum(const std::string& dataset) const {
    std::int64_t total = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "out/workers/points")) {
      if (entry.path().extension() != ".h5") continue;
      const Hdf5Reader file(entry.path());
      if (!file.has(dataset)) continue;
      for (const std::int64_t value : file.integers(dataset)) total += value;
    }
    return total;
  }
  int lost() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "out/workers/points")) {
      if (entry.path().extension() != ".h5") continue;
      const Hdf5Reader file(entry.path());
      for (const std::int64_t code : file.integers("/events/code")) count += code == 7 ? 1 : 0;
    }
    return count;
  }

  test::TemporaryFolder folder_;
};

TEST_F(HostLoraRun, EveryWayServesEveryRequest) {
  const ProgramResult result = run_program(run(folder_.file(
      "workers.yaml", std::string(kHead) +
                          "  requests: 40\n"
                          "runtime: {max_arrival_lag_s: 30, max_processor_loss: 1, threads: 1, "
                          "host_lora_workers: 2, "
                          "host_lora_shares_cores: true}\n"
                          "sweep:\n"
                          "  runtime.host_lora: [inline, threads, processes]\n"
                          "  runtime.host_lora_rows: [8, 64]\n")));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("6 VALID"));
  EXPECT_GT(sum("/steps/host_layers"), 0);
  EXPECT_GT(sum("/steps/host_compute"), 0);
  EXPECT_EQ(lost(), 0);
}

// All through the run, so that many are killed within steps however long it takes to begin; one of
// them stops.
TEST_F(HostLoraRun, WorkersKilledAtRandomMomentsCostNoRequest) {
  Program program(
      run(spec("host_lora: processes, host_lora_workers: 2, "
               "host_lora_shares_cores: true",
               240)));
  RngStream moments(1, "kills");
  int kills = 0;
  while (test::lives(program.pid())) {
    const std::set<int> workers = test::lora_workers_of(program.pid());
    if (!workers.empty()) {
      const auto which = static_cast<std::ptrdiff_t>(moments.below(workers.size()));
      ::kill(*std::next(workers.begin(), which), kills == 10 ? SIGSTOP : SIGKILL);
      ++kills;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(40 + moments.below(120)));
  }
  const ProgramResult result = program.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(kills, 20) << "the run was over too soon";
  EXPECT_THAT(result.out, HasSubstr("1 VALID"));
  EXPECT_EQ(sum("/requests/status"), 240);  // all completed
  EXPECT_GT(lost(), 0);
}

TEST_F(HostLoraRun, WorkersEndWithARunThatIsKilled) {
  for (const int number : {SIGKILL, SIGTERM}) {
    std::set<int> workers;
    {
      Program program(
          run(spec("host_lora: processes, host_lora_workers: 3, "
                   "host_lora_shares_cores: true",
                   2000)));
      for (int i = 0; i < 3000 && workers.size() < 3; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        workers = test::lora_workers_of(program.pid());
      }
      ASSERT_EQ(workers.size(), 3u);
      ::kill(*workers.begin(), SIGSTOP);  // one of them could not end by itself
      program.signal(number);
      if (number == SIGTERM) {  // once more: to stop now
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        program.signal(number);
      }
      program.wait();
    }
    for (const int worker : workers) EXPECT_TRUE(test::ends_soon(worker));
  }
}

TEST_F(HostLoraRun, WhatIsRefusedIsRefusedInOneLine) {
  const auto refused = [this](const std::string& runtime, const std::string& text) {
    const ProgramResult result = run_program(run(spec(runtime)));
    EXPECT_NE(result.code, 0) << runtime;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    const std::string points = folder_ / "out/workers/points";
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(points, none)) {
      EXPECT_NE(entry.path().extension(), ".h5") << entry.path();
    }
  };
  refused("host_lora: process", "did you mean 'processes'");
  refused("host_lora: processes, host_lora_transport: pipes", "shared");
  refused("host_lora: processes, host_lora_workers: 200",
          "runtime.host_lora_workers: the run's threads and LoRA workers are 201, and there are ");
}

// A limit of the shell's is one on memory that processes share, too.
TEST_F(HostLoraRun, TooLittleSharedMemoryIsToldAndNothingIsWritten) {
  const ProgramResult result = run_program(
      run(spec("host_lora: processes, host_lora_workers: 1, host_lora_shares_cores: true")),
      1 << 20);
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("shared memory: no "));
  EXPECT_THAT(result.err, HasSubstr("File too large"));
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_ / "out/workers/points", none)) {
    EXPECT_NE(entry.path().extension(), ".h5") << entry.path();
  }
}

}  // namespace
}  // namespace servelab

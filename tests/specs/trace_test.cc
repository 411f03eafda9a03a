// `run --trace`: what is in the file, checked as a viewer reads it; and `record.steps`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "engine/record/hdf5_reader.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using nlohmann::json;
using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

constexpr const char* kReplicas =
    "title: test\nmodel: llama-2-7b\nhardware: a800-80g\n"
    "cluster: {replicas: 4}\n"
    "engine: {max_batch: 8}\n"
    "workload:\n"
    "  requests: 200\n"
    "  adapters: {count: 16, ranks: [8]}\n"
    "  arrivals: {process: poisson, rate: 60}\n"
    "  popularity: {kind: zipf, exponent: 1}\n"
    "  lengths: {source: lognormal, prompt: 200, output: 100}\n"
    "sweep: {workload.popularity.exponent: [1, 2]}\n"
    "techniques:\n"
    "  - {technique: dlora-artifact, label: moves, route_with: {interval_s: 0.5, "
    "request_threshold: 2}}\n"
    "  - {technique: slora}\n"
    "seeds: 2\n";

// Events of a trace, by phase, in the order of the file.
class Trace {
 public:
  explicit Trace(const std::string& path) {
    const json file = json::parse(test::read_file(path));
    for (const json& event : file.at("traceEvents")) {
      by_phase_[event.at("ph").get<std::string>()].push_back(event);
    }
  }
  const std::vector<json>& of(const std::string& phase) { return by_phase_[phase]; }
  std::size_t count(const std::string& phase, const std::string& start) {
    const auto& events = of(phase);
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(), [&](const json& event) {
          return event.at("name").get<std::string>().rfind(start, 0) == 0;
        }));
  }

 private:
  std::map<std::string, std::vector<json>> by_phase_;
};

// Nanoseconds, which a double of microseconds holds exactly for a few days.
long long ns(const json& event, const char* key) {
  return std::llround(event.at(key).get<double>() * 1e3);
}

// Slices of one thread are inside one another or apart.
void expect_nested(Trace* trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<long long, long long>>> threads;
  for (const json& event : trace->of("X")) {
    const long long from = ns(event, "ts");
    threads[{event.at("pid"), event.at("tid")}].emplace_back(from, -(from + ns(event, "dur")));
  }
  for (auto& [thread, slices] : threads) {
    std::sort(slices.begin(), slices.end());  // by start, the longest first
    std::vector<long long> open;
    for (const auto& [from, minus_to] : slices) {
      while (!open.empty() && open.back() <= from) open.pop_back();
      ASSERT_TRUE(open.empty() || -minus_to <= open.back())
          << "process " << thread.first << " thread " << thread.second << " at " << from;
      open.push_back(-minus_to);
    }
  }
}

// Every asynchronous slice that begins ends, not before; inner ones lie within the first of an id.
void expect_paired(Trace* trace) {
  std::map<std::string, std::pair<long long, long long>> outer;
  ASSERT_EQ(trace->of("b").size(), trace->of("e").size());
  for (std::size_t i = 0; i < trace->of("b").size(); ++i) {
    const json& begin = trace->of("b")[i];
    const json& end = trace->of("e")[i];
    ASSERT_EQ(begin.at("id"), end.at("id"));
    ASSERT_EQ(begin.at("pid"), end.at("pid"));
    ASSERT_EQ(begin.at("name"), end.at("name"));
    const std::pair span{ns(begin, "ts"), ns(end, "ts")};
    ASSERT_LE(span.first, span.second);
    const auto& [first, is_new] = outer.emplace(begin.at("id").get<std::string>(), span);
    ASSERT_LE(first->second.first, span.first);
    ASSERT_GE(first->second.second, span.second);
  }
}

class TraceRun : public ::testing::Test {
 protected:
  ProgramResult trace(const std::string& spec, const std::string& name,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {
        "run",           folder_.file("traced.yaml", spec),
        "--out",         folder_ / "out",
        "--experiments", std::string(SERVELAB_SOURCE_DIR) + "/experiments",
        "--trace",       folder_ / name};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  }
  test::TemporaryFolder folder_;
};

TEST_F(TraceRun, ShowsEveryStepRequestLoadSwitchAndMigration) {
  const ProgramResult result = trace(kReplicas, "t.json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("t.json: 2 points, "));
  Trace found(folder_ / "t.json");
  expect_nested(&found);
  expect_paired(&found);
  const std::size_t steps = found.count("X", "step") + found.count("X", "merged step");
  EXPECT_THAT(result.out, HasSubstr(" " + std::to_string(steps) + " steps"));
  EXPECT_EQ(found.count("b", "request"), 2u * 200);
  EXPECT_EQ(found.count("b", "decode"), 2u * 200);
  EXPECT_GT(found.count("b", "load"), 0u);
  EXPECT_GT(found.count("X", "switch weights"), 0u);
  EXPECT_GT(found.count("C", "waiting"), 0u);
  EXPECT_GT(found.count("X", "rebalance"), 0u);
  const std::size_t migrations = found.count("b", "migrate");
  EXPECT_GT(migrations, 0u);
  EXPECT_EQ(found.of("s").size(), migrations);
  EXPECT_EQ(found.of("f").size(), migrations);
  std::set<std::string> processes;
  for (const json& event : found.of("M")) {
    if (event.at("name") == "process_name") processes.insert(event.at("args").at("name"));
  }
  EXPECT_EQ(processes.size(), 2u * 5);
  EXPECT_THAT(processes, ::testing::Contains("moves exponent=1 seed=0: replica 3"));

  ASSERT_EQ(trace(kReplicas, "again.json").code, 0);
  EXPECT_EQ(test::read_file(folder_ / "t.json"), test::read_file(folder_ / "again.json"));
}

TEST_F(TraceRun, ChoosesPointsAndAWindow) {
  ASSERT_EQ(trace(kReplicas, "all.json", {"--trace-only", "technique=slora"}).code, 0);
  const ProgramResult result = trace(
      kReplicas, "part.json", {"--trace-only", "technique=slora", "--trace-window", "1", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  Trace all(folder_ / "all.json");
  Trace part(folder_ / "part.json");
  expect_nested(&part);
  expect_paired(&part);
  EXPECT_GT(part.of("X").size(), 10u);
  EXPECT_LT(part.of("X").size(), all.of("X").size() / 2);
  for (const json& event : part.of("X")) {
    EXPECT_LE(ns(event, "ts"), 2'000'000'000);
    EXPECT_GE(ns(event, "ts") + ns(event, "dur"), 1'000'000'000);
  }
  ASSERT_EQ(
      trace(kReplicas, "other.json", {"--trace-only", "exponent=2", "--trace-only", "seed=1"}).code,
      0);
  EXPECT_THAT(test::read_file(folder_ / "other.json"), HasSubstr("slora exponent=2 seed=1: "));
}

TEST_F(TraceRun, ReplaysARealRun) {
  const ProgramResult result = trace(
      "title: test\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cpu\n"
      "runtime: {max_arrival_lag_s: 10, max_processor_loss: 1}\nengine: {max_batch: 8, "
      "adapter_slots: 4}\n"
      "workload:\n  requests: 30\n  adapters: {count: 8, ranks: [4, 8]}\n"
      "  arrivals: {process: poisson, rate: 60}\n"
      "  lengths: {source: uniform, prompt_range: [1, 40], output_range: [1, 8]}\n"
      "techniques: [dlora]\n",
      "cpu.json");
  ASSERT_EQ(result.code, 0) << result.err;
  Trace found(folder_ / "cpu.json");
  expect_nested(&found);
  expect_paired(&found);
  EXPECT_EQ(found.count("b", "request"), 30u);
}

std::int64_t sum_of(const Hdf5Reader& file, const std::string& name) {
  const std::vector<std::int64_t> values = file.integers(name);
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

TEST_F(TraceRun, StepsInResultsAddUpToTheTotals) {
  const std::string spec = folder_.file("steps.yaml", std::string(test::kSmallSpec) +
                                                          "  requests: 100\ntechniques: [dlora]\n"
                                                          "record: {steps: true}\n");
  ASSERT_EQ(run_program({"run", spec, "--out", folder_ / "out"}).code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out/steps/points")) {
    const Hdf5Reader file(entry.path());
    EXPECT_EQ(file.integers("/steps/end").size(),
              static_cast<std::size_t>(sum_of(file, "/replicas/steps")));
    EXPECT_EQ(sum_of(file, "/steps/exec"), sum_of(file, "/replicas/merged_steps"));
    EXPECT_EQ(sum_of(file, "/steps/prompt_tokens"), sum_of(file, "/requests/prompt_tokens"));
    EXPECT_EQ(sum_of(file, "/steps/output_tokens"), sum_of(file, "/requests/output_tokens"));
    for (const char* part : {"attention", "dense", "host", "load_wait", "lora", "switching"}) {
      EXPECT_EQ(sum_of(file, std::string("/steps/parts/") + part),
                sum_of(file, std::string("/replicas/") + part))
          << part;
    }
  }
}

TEST_F(TraceRun, MistakesAreOneLineBeforeAnythingRuns) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--trace-only", "technique=slor"},
           {"--trace-only", "technique=slora", "--trace-only", "seed=9"},
           {"--trace-window", "2", "1"}}) {
    const ProgramResult result = trace(kReplicas, "t.json", more);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("servelab: error: --trace", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  const ProgramResult nowhere = trace(kReplicas, "absent/t.json");
  EXPECT_EQ(nowhere.code, 2) << nowhere.err;
  EXPECT_THAT(nowhere.err, HasSubstr("--trace: "));
}

}  // namespace
}  // namespace servelab

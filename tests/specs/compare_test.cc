// Comparisons by the program, from specs to sentences. tests/analysis has the statistics, and what
// becomes of points that fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using test::Program;
using test::ProgramResult;
using test::run_program;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CompareRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(std::string(SERVELAB_SOURCE_DIR) + "/.venv/bin/python")) {
      GTEST_SKIP() << "no .venv: .ci/setup --only-python makes it";
    }
  }
  // Adapters get equal shares, so that batches of one adapter are small: merging costs most.
  std::string spec(const std::string& more = "", const std::string& name = "spec.yaml") const {
    return folder_.file(name, std::string(test::kSmallSpec) +
                                  "  requests: 150\n"
                                  "engine: {max_batch: 16}\n"
                                  "techniques: [peft]\n" +
                                  more);
  }
  ProgramResult compare(const std::string& techniques, const std::string& spec,
                        std::vector<std::string> more = {}) const {
    std::vector<std::string> command = {"compare", "--techniques", techniques, "--spec",
                                        spec,      "--out",        out_};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  }
  // The text on one line, with single spaces: sentences are broken to fit a terminal.
  static std::string unbroken(const std::string& text) {
    std::istringstream words(text);
    std::string joined, word;
    while (words >> word) joined += (joined.empty() ? "" : " ") + word;
    return joined;
  }
  // The cells of the row of a metric and technique in compare.csv; empty when there is none. None
  // of the cells that tests read is quoted.
  std::vector<std::string> row(const std::string& source, const std::string& technique) const {
    std::istringstream lines(test::read_file(out_ + "/compare.csv"));
    for (std::string line; std::getline(lines, line);) {
      std::vector<std::string> cells;
      std::istringstream fields(line);
      for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
      if (cells.size() > 4 && cells[2] == source && cells[4] == technique) return cells;
    }
    return {};
  }

  test::TemporaryFolder folder_;
  const std::string out_ = folder_ / "out";
};

// Columns of compare.csv without a sweep.
constexpr std::size_t kDifference = 10, kPercentLow = 14, kPercentHigh = 15, kVerdict = 18;

TEST_F(CompareRun, ARealDifferenceIsFoundAndQuantified) {
  const ProgramResult result = compare("slora,merged-only", spec("seeds: 5\n"));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<std::string> mean = row("latency_per_token_mean_s", "slora");
  ASSERT_GT(mean.size(), kVerdict);
  EXPECT_EQ(mean[kVerdict], "better");
  EXPECT_LT(std::stod(mean[kDifference]), 0);
  EXPECT_LT(std::stod(mean[kPercentHigh]), -20);
  EXPECT_GT(std::stod(mean[kPercentLow]), -100);
  EXPECT_THAT(unbroken(result.out),
              HasSubstr("Over 5 seeds, slora is better than merged-only with "));
  EXPECT_THAT(unbroken(result.out), HasSubstr(" lower latency per token"));
  // Everything in it is the same when it is done again, from the cache.
  const std::string page = test::read_file(out_ + "/compare.html");
  const ProgramResult again = compare("slora,merged-only", spec("seeds: 5\n"), {"-q"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(test::read_file(out_ + "/compare.html"), page);
  EXPECT_EQ(again.err, "");
  // The effective spec runs as it is.
  const ProgramResult run =
      run_program({"run", out_ + "/runs.yaml", "--out", folder_ / "again", "-q"});
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(CompareRun, ATechniqueIsTheSameAsItself) {
  const ProgramResult result = compare("a=slora,b=slora", spec(), {"--seeds", "3", "-q"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(unbroken(result.out), HasSubstr("a and b are the same in every metric and seed."));
  EXPECT_EQ(row("ttft_p99_s", "a").at(kVerdict), "equal");
}

TEST_F(CompareRun, ParametersAndSettingsReachTheRun) {
  const ProgramResult result =
      compare("small=slora(engine.max_batch=2),slora(min_prefill_tokens=64),slora", spec(),
              {"--seeds", "2", "--set", "sweep={workload.arrivals.rate: [4, 16]}", "-q"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("small rate=16"));
  EXPECT_THAT(result.out, HasSubstr("At rate=4: "));
}

TEST_F(CompareRun, TheHighestRateIsFoundAndItsPointsAreKept) {
  const std::vector<std::string> options = {"--find-rate",  "attainment>=0.9",
                                            "--slo",        "ttft=1,latency_per_token=0.1",
                                            "--set",        "workload.requests=0",
                                            "--set",        "workload.requests_per_rate=15",
                                            "--seeds",      "2",
                                            "--resolution", "0.1"};
  const ProgramResult result = compare("slora,merged-only", spec(), options);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(unbroken(result.out), HasSubstr("slora holds attainment>=0.9 up to "));
  EXPECT_THAT(result.err, HasSubstr("round 2: "));
  const std::string table = test::read_file(out_ + "/rates.csv");
  const auto points = test::digests(out_ + "/rates-seed1/points");
  EXPECT_GT(points.size(), 10u);

  const ProgramResult again = compare("slora,merged-only", spec(), options);
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(test::read_file(out_ + "/rates.csv"), table);
  EXPECT_EQ(test::digests(out_ + "/rates-seed1/points"), points);
  EXPECT_THAT(again.err, HasSubstr(": 0 run, "));
  EXPECT_THAT(again.err, Not(ContainsRegex(": [1-9][0-9]* run, ")));
}

TEST_F(CompareRun, InterruptedItGoesOn) {
  const std::string path = spec("seeds: 100\n");
  Program program({"compare", "--techniques", "slora,dlora", "--spec", path, "--out", out_});
  while (!fs::exists(out_ + "/runs/points")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  program.signal(SIGINT);
  const ProgramResult stopped = program.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("servelab: error: interrupted: finished points are kept"));
  EXPECT_FALSE(fs::exists(out_ + "/compare.csv"));
  const ProgramResult result = compare("slora,dlora", path, {"-q"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(unbroken(result.out), HasSubstr("Over 100 seeds, slora is "));
}

TEST_F(CompareRun, MistakesAreOneLineInTheUsersWordsAndLeaveNothing) {
  const std::string path = spec(), wrong = spec("seeds: many\n", "wrong.yaml");
  struct Case {
    std::vector<std::string> options;
    std::string said;
  };
  for (const auto& [options, said] : std::vector<Case>{
           {{"--techniques", "slra,dlora", "--spec", path},
            "--techniques slra: unknown technique 'slra'; did you mean 'slora'?"},
           {{"--techniques", "slora(foo=1),dlora", "--spec", path},
            "--techniques slora(foo=1): unknown key 'foo' in technique 'slora'"},
           {{"--techniques", "slora,dlora", "--spec", "smoke/dlra"},
            "smoke/dlra: no such spec; did you mean 'smoke/dlora'?"},
           {{"--techniques", "slora,dlora", "--spec", path, "--set", "engine.max_bach=4"},
            "--set engine.max_bach=4: unknown key 'max_bach' in engine; did you mean 'max_batch'?"},
           {{"--techniques", "slora,dlora", "--spec", path, "--model", "llama-2-7"},
            "--model llama-2-7: unknown model 'llama-2-7'; did you mean 'llama-2-7b'?"},
           {{"--techniques", "slora,dlora", "--spec", path, "--workload", "shargpt"},
            "--workload shargpt: unknown lengths.source 'shargpt'; did you mean 'sharegpt'?"},
           {{"--techniques", "slora,dlora", "--spec", wrong},
            wrong + ":11:1: 'seeds' must be a whole number"}}) {
    std::vector<std::string> command = {"compare", "--out", out_};
    command.insert(command.end(), options.begin(), options.end());
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.code, 2) << said;
    EXPECT_THAT(result.err, HasSubstr("servelab: error: " + said));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(out_)) << said;
  }
}

}  // namespace
}  // namespace servelab

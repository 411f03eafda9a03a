// The CPU engine from the command line: runs, replays, token ids in and out, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/backend/cost/hardware.h"
#include "engine/record/hdf5_reader.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr const char* kHead =
    "title: test\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cpu\n"
    "runtime: {max_arrival_lag_s: 10, max_processor_loss: 1}\n"
    "engine: {max_batch: 8, adapter_slots: 4}\n"
    "workload:\n"
    "  requests: 30\n"
    "  adapters: {count: 8, ranks: [4, 8]}\n"
    "  arrivals: {process: poisson, rate: 60}\n"
    "  lengths: {source: uniform, prompt_range: [1, 40], output_range: [1, 8]}\n";

class CpuEngine : public ::testing::Test {
 protected:
  std::string spec(const std::string& more) const {
    return folder_.file("cpu.yaml", std::string(kHead) + more);
  }
  ProgramResult run(const std::string& command, const std::string& file) const {
    return run_program({command, file, "--out", folder_ / "out"});
  }
  test::TemporaryFolder folder_;
};

TEST_F(CpuEngine, RunsAndReplaysToTheSameDecisions) {
  const std::string file = spec("techniques: [slora, dlora, merged-only]\n");
  const ProgramResult first = run("run", file);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("3 points: 3 run, 0 cached; 3 VALID"));
  EXPECT_THAT(run("run", file).out, HasSubstr("0 run, 3 cached"));
  const ProgramResult replay = run("replay", file);
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("slora  seed=0: "));
  EXPECT_THAT(replay.out, HasSubstr("decisions identical"));
}

// What computed a point is in its context; "auto" is what the cache folder says, for every process.
TEST_F(CpuEngine, AResultSaysWhatMultiplied) {
  const std::string file = spec("techniques: [slora]\nsweep:\n  runtime.gemm: [auto, native]\n");
  const test::ProgramSettings settings{SERVELAB_BINARY, {{"XDG_CACHE_HOME", folder_ / "cache"}}};
  std::string kept;
  for (const char* out : {"first", "second"}) {
    const ProgramResult result =
        test::Program(settings, {"run", file, "--out", folder_ / out}).wait();
    ASSERT_EQ(result.code, 0) << result.err;
    const std::string now = test::read_file(folder_ / "cache/servelab/kernels/bf16");
    EXPECT_TRUE(kept.empty() || now == kept) << now;
    kept = now;
    const std::size_t line = kept.rfind('\n', kept.size() - 2) + 1;
    const std::string choice = kept.substr(line, kept.size() - 1 - line);
    std::vector<std::string> said;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / out)) {
      const std::filesystem::path& path = entry.path();
      if (path.extension() != ".h5" || path.filename() == "collected.h5") continue;
      said.push_back(Hdf5Reader(path.string()).texts("/context").at(0));
    }
    EXPECT_EQ(said.size(), 2u);
    EXPECT_THAT(said, Contains(HasSubstr("\"kernels\":\"" + choice + "\"")));
    EXPECT_THAT(said, Contains(HasSubstr("\"kernels\":\"native ")));
  }
}

TEST_F(CpuEngine, AdaptersLoadFromDisk) {
  const ProgramResult result =
      run("run", folder_.file("disk.yaml", std::string(kHead) +
                                               "techniques: [slora]\nsweep:\n"
                                               "  runtime.adapter_store: [host, disk]\n"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 VALID"));
}

// Of a model whose head is its embedding, too.
TEST_F(CpuEngine, TheTwinTakesACalibratedProfile) {
  const ProgramResult calibrated =
      run_program({"calibrate", "--backend", "cpu", "--quick", "--model", "tiny-15m", "--out",
                   folder_ / "profile.yaml"});
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  std::string twin = std::string(kHead) + "techniques: [slora, dlora]\n";
  twin.replace(twin.find("backend: cpu"), 12, "backend: twin");
  const ProgramResult result = run_program({"run", folder_.file("twin.yaml", twin), "--profile",
                                            folder_ / "profile.yaml", "--out", folder_ / "out"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 VALID"));
  // One core was measured for LoRA on the host, which the twin of this profile does not compute.
  const int chunk = load_hardware_profile(folder_ / "profile.yaml").host_lora.chunk_rows;
  EXPECT_GE(chunk, 1);
  EXPECT_LE(chunk, 2048);
  EXPECT_THAT(calibrated.out, HasSubstr("one core has " + std::to_string(chunk) + " rows"));
  EXPECT_THAT(test::read_file(folder_ / "profile.csv"), HasSubstr("\ncore,,,,,,,,2048,"));
}

TEST_F(CpuEngine, ReplayNeedsARealRun) {
  const std::string file = spec("techniques: [slora]\n");
  const ProgramResult before = run("replay", file);
  EXPECT_EQ(before.code, 1);
  EXPECT_THAT(before.err, HasSubstr("1 were not run"));
}

TEST_F(CpuEngine, RefusesWhatItCannotDo) {
  const ProgramResult parallel =
      run("run", spec("techniques: [slora]\ncluster: {tensor_parallel: 2}\n"));
  EXPECT_NE(parallel.code, 0);
  EXPECT_THAT(parallel.err, HasSubstr("cluster.tensor_parallel"));
}

std::vector<std::string> generate(const std::string& tokens) {
  return {"generate", "--experiments", std::string(SERVELAB_SOURCE_DIR) + "/experiments",
          "--model",  "tiny-15m",      "--tokens",
          tokens,     "--max-tokens",  "5"};
}

TEST_F(CpuEngine, GeneratesTokenIds) {
  const ProgramResult first = run_program(generate("1,2,3"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, MatchesRegex("[0-9]+(,[0-9]+){4}\n"));
  EXPECT_EQ(run_program(generate("1,2,3")).out, first.out);
  const ProgramResult bad = run_program(generate("1,x,3"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--tokens: entry 2 of '1,x,3' is not a token id"));
}

}  // namespace
}  // namespace servelab

// Whole runs of the program: caching, resuming, locking, signals, full disks and damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/record/hdf5_reader.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using test::kSmallSpec;
using test::Program;
using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;
using ::testing::Not;

class SpecRun : public ::testing::Test {
 protected:
  // Points that take a while, one after the other: time to interfere.
  std::string long_spec() const {
    return folder_.file("long.yaml", std::string(kSmallSpec) +
                                         "  requests: 4000\n"
                                         "techniques: [slora, unmerged-only]\nseeds: 12\n");
  }
  std::string short_spec(const std::string& more = "",
                         const std::string& name = "short.yaml") const {
    return folder_.file(name, std::string(kSmallSpec) +
                                  "  requests: 50\n"
                                  "techniques: [slora, dlora]\nseeds: 2\n" +
                                  more);
  }
  std::vector<std::string> run(const std::string& spec, const std::string& out) const {
    return {"run", spec, "--out", folder_ / out, "-j", "1"};
  }
  std::string points(const std::string& out, const std::string& id) const {
    return folder_ / (out + "/" + id + "/points");
  }

  test::TemporaryFolder folder_;
};

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void expect_one_error(const ProgramResult& result, int code, const std::string& part) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_THAT(result.err, HasSubstr("servelab: error: "));
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_THAT(result.err, Not(HasSubstr("terminate")));
}

TEST_F(SpecRun, SecondRunIsServedFromTheCache) {
  const std::string spec = short_spec();
  const ProgramResult first = run_program(run(spec, "out"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("short: 4 points: 4 run, 0 cached; 4 VALID"));
  EXPECT_THAT(first.out, HasSubstr(" s; slowest "));
  EXPECT_EQ(lines_of(first.err), 4u) << first.err;
  const auto before = test::digests(folder_ / "out");
  EXPECT_EQ(before.size(), 4u);
  const ProgramResult second = run_program(run(spec, "out"));
  EXPECT_THAT(second.out, HasSubstr("0 run, 4 cached"));
  EXPECT_THAT(second.out, Not(HasSubstr("slowest")));
  EXPECT_EQ(second.code, 0);
  // One more seed: only its points are computed.
  const ProgramResult more = run_program(
      run(folder_.file("short.yaml", test::read_file(spec).replace(
                                         test::read_file(spec).find("seeds: 2"), 8, "seeds: 3")),
          "out"));
  EXPECT_THAT(more.out, HasSubstr("2 run, 4 cached"));
  const ProgramResult forced =
      run_program({"run", short_spec(), "--out", folder_ / "out", "--force", "-q"});
  EXPECT_EQ(forced.code, 0);
  EXPECT_EQ(forced.out + forced.err, "");
  for (const auto& [name, digest] : before) {
    EXPECT_EQ(test::digests(folder_ / "out").at(name), digest);
  }
}

TEST_F(SpecRun, ResultsDoNotDependOnTheNumberOfJobs) {
  const std::string spec = short_spec("sweep: {workload.arrivals.rate: [5, 10, 20]}\n");
  ASSERT_EQ(run_program(run(spec, "one")).code, 0);
  ASSERT_EQ(run_program({"run", spec, "--out", folder_ / "four", "-j", "4"}).code, 0);
  EXPECT_EQ(test::digests(folder_ / "one").size(), 12u);
  EXPECT_EQ(test::digests(folder_ / "one"), test::digests(folder_ / "four"));
  EXPECT_EQ(test::read_file(folder_ / "one/short/collected.h5"),
            test::read_file(folder_ / "four/short/collected.h5"));
}

// A variant's results and `check --effective` have a text that needs no other spec.
TEST_F(SpecRun, VariantIsKeptWithWhatItExtends) {
  short_spec();
  const std::string spec =
      folder_.file("variant.yaml", "extends: short\ntitle: few\nworkload: {requests: 5}\n");
  ASSERT_EQ(run_program(run(spec, "out")).code, 0);
  const Hdf5Reader collected(folder_ / "out/variant/collected.h5");
  const std::string kept = collected.text_attribute("/", "spec");
  EXPECT_THAT(kept, HasSubstr("techniques: [slora, dlora]\n"));
  EXPECT_THAT(kept, Not(HasSubstr("extends: short")));
  EXPECT_EQ(run_program({"check", "--effective", spec}).out, kept);
  const ProgramResult checked = run_program({"check", folder_.file("kept.yaml", kept)});
  EXPECT_THAT(checked.out, HasSubstr("kept: ok, points: 4 ")) << checked.err;
  const std::string own = test::read_file(folder_ / "short.yaml");
  EXPECT_EQ(run_program({"check", "--effective", folder_ / "short.yaml"}).out, own);
}

TEST_F(SpecRun, EqualPointsAreComputedOnce) {
  // slora has no beta: its points at both positions are one.
  const std::string spec = short_spec("sweep: {with.beta: [0.4, 0.5]}\n");
  const ProgramResult result = run_program(run(spec, "out"));
  EXPECT_THAT(result.out, HasSubstr("8 points: 6 run, 2 cached; 8 VALID")) << result.err;
  EXPECT_EQ(test::digests(folder_ / "out").size(), 6u);
  const Hdf5Reader collected(folder_ / "out/short/collected.h5");
  const std::vector<double> finished = collected.numbers("/columns/summary.requests_finished");
  EXPECT_EQ(finished, std::vector<double>(8, 50.0));
}

TEST_F(SpecRun, KilledRunResumes) {
  const std::string spec = long_spec();
  ASSERT_EQ(run_program(run(spec, "whole")).code, 0);
  for (const std::size_t after : {1u, 5u, 11u}) {
    Program killed(run(spec, "cut"));
    ASSERT_TRUE(test::wait_for_files(points("cut", "long"), after, ".h5"));
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.wait().code, 128 + SIGKILL);
    EXPECT_FALSE(fs::exists(folder_ / "cut/long/collected.h5"));
  }
  folder_.file("cut/long/points/0123.h5.1.servelab-tmp", "half");  // as a kill during a write
  const ProgramResult resumed = run_program(run(spec, "cut"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr(", 0 cached")));
  EXPECT_FALSE(fs::exists(folder_ / "cut/long/points/0123.h5.1.servelab-tmp"));
  EXPECT_EQ(test::digests(folder_ / "whole"), test::digests(folder_ / "cut"));
  EXPECT_EQ(test::read_file(folder_ / "whole/long/collected.h5"),
            test::read_file(folder_ / "cut/long/collected.h5"));
}

TEST_F(SpecRun, InterruptKeepsWhatIsFinished) {
  const std::string spec = long_spec();
  Program program(run(spec, "out"));
  ASSERT_TRUE(test::wait_for_files(points("out", "long"), 2, ".h5"));
  program.signal(SIGINT);
  const ProgramResult stopped = program.wait();
  expect_one_error(stopped, 130, "interrupted: finished points are kept");
  const ProgramResult rest = run_program(run(spec, "out"));
  EXPECT_EQ(rest.code, 0);
  EXPECT_THAT(rest.out, Not(HasSubstr(", 0 cached")));
}

TEST_F(SpecRun, TimeLimitEndsEarlyAndTheSameCommandGoesOn) {
  const std::string spec = long_spec();
  std::vector<std::string> limited = run(spec, "out");
  limited.insert(limited.end(), {"--time-limit", "0.2"});
  ProgramResult slice = run_program(limited);
  expect_one_error(slice, 75, "--time-limit: finished points are kept; run the same command");
  EXPECT_THAT(slice.out, HasSubstr("not run"));
  EXPECT_FALSE(fs::exists(folder_ / "out/long/collected.h5"));
  const ProgramResult rest = run_program(run(spec, "out"));
  EXPECT_EQ(rest.code, 0);
  EXPECT_THAT(rest.out, Not(HasSubstr(", 0 cached")));
  EXPECT_EQ(run_program(limited).code, 0);  // nothing is left to compute
}

TEST_F(SpecRun, QuickFormHasAFolderOfItsOwn) {
  const std::string spec = folder_.file(
      "figure.yaml", std::string(kSmallSpec) + "  requests: 500\ntechniques: [slora]\n" +
                         "seeds: 3\nquick: {workload.requests: 7, seeds: 1}\n");
  std::vector<std::string> quick = run(spec, "out");
  quick.push_back("--quick");
  const ProgramResult result = run_program(quick);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("figure-quick: 1 points: 1 run"));
  EXPECT_TRUE(fs::exists(folder_ / "out/figure-quick/collected.h5"));
  EXPECT_FALSE(fs::exists(folder_ / "out/figure"));
  std::vector<std::string> none = run(short_spec(), "out");
  none.push_back("--quick");
  expect_one_error(run_program(none), 2, "this spec has no 'quick' section");
}

TEST_F(SpecRun, TwoRunsShareOneOutput) {
  const std::string spec = long_spec();
  ASSERT_EQ(run_program(run(spec, "alone")).code, 0);
  Program first(run(spec, "out"));
  ASSERT_TRUE(test::wait_for_files(points("out", "long"), 1, ".h5"));
  const ProgramResult second = run_program(run(spec, "out"));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.wait().code, 0);
  EXPECT_EQ(test::digests(folder_ / "out"), test::digests(folder_ / "alone"));
  EXPECT_TRUE(fs::exists(folder_ / "out/long/collected.h5"));
}

TEST_F(SpecRun, AnotherFormOfASpecWaitsForTheFirst) {
  const std::string spec = long_spec();
  Program first(run(spec, "out"));
  ASSERT_TRUE(test::wait_for_files(points("out", "long"), 1, ".h5"));
  std::ofstream(spec, std::ios::app) << "# another form\n";
  const ProgramResult second = run_program(run(spec, "out"));
  expect_one_error(second, 1,
                   "is in use by another servelab run (pid " + std::to_string(first.pid()) +
                       ") of another form of the spec, or of another build; wait for it or choose "
                       "another folder with --out");
  EXPECT_EQ(run_program(run(short_spec(), "out")).code, 0);  // another spec may run
  EXPECT_EQ(first.wait().code, 0);
}

TEST_F(SpecRun, DamagedPointIsComputedAgain) {
  const std::string spec = short_spec();
  ASSERT_EQ(run_program(run(spec, "out")).code, 0);
  const auto before = test::digests(folder_ / "out");
  const std::string victim = points("out", "short") + "/" + before.begin()->first;
  fs::resize_file(victim, fs::file_size(victim) / 2);
  const ProgramResult again = run_program(run(spec, "out"));
  EXPECT_THAT(again.out, HasSubstr("1 run, 3 cached"));
  EXPECT_THAT(again.err,
              HasSubstr(victim + " is damaged (its checksum does not match): the point is "));
  EXPECT_EQ(test::digests(folder_ / "out"), before);
  std::string bytes = test::read_file(victim);
  const std::int64_t stamp = Hdf5Reader(victim).integers("/requests/last_token")[7];
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&stamp), 8));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  test::write_file(victim, bytes);
  const ProgramResult flipped = run_program(run(spec, "out"));
  EXPECT_THAT(flipped.out, HasSubstr("1 run, 3 cached"));
  EXPECT_THAT(flipped.err, HasSubstr("is damaged (its checksum does not match)"));
  EXPECT_EQ(Hdf5Reader(victim).integers("/requests/last_token")[7], stamp);
}

TEST_F(SpecRun, OldCollectionDoesNotOutliveItsSpec) {
  const std::string collected = folder_ / "out/long/collected.h5";
  ASSERT_EQ(run_program(run(folder_.file("long.yaml", std::string(kSmallSpec) +
                                                          "  requests: 20\ntechniques: [slora]\n"),
                            "out"))
                .code,
            0);
  ASSERT_TRUE(fs::exists(collected));
  // Edited, then killed before its first point, interrupted or failed: nothing old to be drawn.
  Program killed(run(long_spec(), "out"));
  ASSERT_TRUE(test::wait_for_files(points("out", "long"), 2, ".h5"));
  killed.signal(SIGKILL);
  killed.wait();
  EXPECT_FALSE(fs::exists(collected));
}

TEST_F(SpecRun, FailedRunLeavesNoOldCollection) {
  const std::string text = std::string(kSmallSpec) + "  requests: 20\ntechniques: [slora]\n" +
                           "sweep: {workload.adapters.ranks: [[8], [16]]}\n";
  ASSERT_EQ(run_program(run(folder_.file("some.yaml", text), "out")).code, 0);
  ASSERT_TRUE(fs::exists(folder_ / "out/some/collected.h5"));
  std::string edited = text;
  edited.replace(edited.find("[16]"), 4, "[8.5]");
  ASSERT_EQ(run_program(run(folder_.file("some.yaml", edited), "out")).code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "out/some/collected.h5"));
}

TEST_F(SpecRun, FileThatASpecNamesChangesItsCollectionToo) {
  const auto shared = [&](const std::string& requests) {
    folder_.file("shared.yaml", "requests: " + requests +
                                    "\nadapters: {count: 8, ranks: [8]}\n"
                                    "arrivals: {process: poisson, rate: 10}\n"
                                    "lengths: {source: lognormal, prompt: 60, output: 30}\n");
  };
  const std::string spec =
      folder_.file("named.yaml",
                   "title: t\nmodel: llama-2-7b\nhardware: a800-80g\nworkload: ./shared.yaml\n"
                   "techniques: [slora, unmerged-only]\nseeds: 12\n");
  shared("20");
  ASSERT_EQ(run_program(run(spec, "out")).code, 0);
  shared("4000");
  Program killed(run(spec, "out"));
  ASSERT_TRUE(test::wait_for_files(points("out", "named"), 25, ".h5"));
  killed.signal(SIGKILL);
  killed.wait();
  EXPECT_FALSE(fs::exists(folder_ / "out/named/collected.h5"));
}

TEST_F(SpecRun, NothingValidIsAFailure) {
  const std::string spec = short_spec("engine: {memory_fraction: 0.05}\n");
  for (int i = 0; i < 2; ++i) {  // computed, then cached
    const ProgramResult result = run_program({"run", spec, "--out", folder_ / "out", "-q"});
    expect_one_error(result, 1, "short: no point is VALID; the first one: does not fit");
    EXPECT_EQ(lines_of(result.err), 1u) << result.err;
  }
}

TEST_F(SpecRun, FullStdoutIsOneErrorAndCode1) {
  for (const char* arguments : {"list", "--help", "spec --schema"}) {
    const std::string command =
        std::string(SERVELAB_BINARY " ") + arguments + " >/dev/full 2>" + (folder_ / "err");
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    const std::string err = test::read_file(folder_ / "err");
    EXPECT_EQ(lines_of(err), 1u) << err;
    EXPECT_THAT(err, HasSubstr("servelab: error: stdout cannot be written"));
  }
}

TEST_F(SpecRun, FileThatCannotGrowIsOneError) {
  const ProgramResult result = run_program(run(short_spec(), "out"), 4096);
  expect_one_error(result, 1, "File too large; free some space or choose another folder");
  EXPECT_EQ(lines_of(result.err), 1u) << result.err;
  EXPECT_TRUE(fs::is_empty(points("out", "short")));
}

TEST_F(SpecRun, FullDiskIsOneError) {
  const std::string disk = folder_ / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "needs the right to mount; FileThatCannotGrowIsOneError covers the same path";
  }
  const ProgramResult result =
      run_program(run(short_spec("record: {token_times: true}\n"), "disk"));
  expect_one_error(result, 1, "No space left on device; free some space or choose another folder");
  EXPECT_EQ(lines_of(result.err) - lines_of(result.err.substr(0, result.err.find("error:"))), 1u);
  for (const auto& entry : fs::directory_iterator(points("disk", "short"))) {
    EXPECT_EQ(entry.path().extension(), ".h5") << "a temporary file was left";
  }
  ::umount(disk.c_str());
}

TEST_F(SpecRun, OutputThatIsNoFolder) {
  folder_.file("file", "");
  expect_one_error(run_program(run(short_spec(), "file")), 1, "Not a directory");
}

TEST_F(SpecRun, FailedPointLeavesTheOthers) {
  const std::string spec =
      folder_.file("some.yaml", std::string(kSmallSpec) + "  requests: 20\ntechniques: [slora]\n" +
                                    "sweep: {workload.adapters.ranks: [[8], [8.5]]}\n");
  const ProgramResult result = run_program(run(spec, "out"));
  expect_one_error(result, 2, "error: some [slora ranks=[8.5] seed=0]: " + spec + ":10:");
  EXPECT_THAT(result.out, HasSubstr("1 FAILED"));
  EXPECT_FALSE(fs::exists(folder_ / "out/some/collected.h5"));
  EXPECT_EQ(test::digests(folder_ / "out").size(), 1u);
}

TEST_F(SpecRun, PointThatDoesNotFitIsInvalidAndRecorded) {
  const std::string spec = short_spec("sweep: {engine.memory_fraction: [0.05, 0.9]}\n");
  const ProgramResult result = run_program(run(spec, "out"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 VALID, 4 INVALID"));
  EXPECT_THAT(result.err, HasSubstr("is INVALID: does not fit"));
  const Hdf5Reader collected(folder_ / "out/short/collected.h5");
  EXPECT_EQ(collected.texts("/columns/status").front(), "INVALID");
}

TEST_F(SpecRun, BadInputIsOneLineAndCode2) {
  const struct {
    std::vector<std::string> arguments;
    std::string part;
  } cases[] = {
      {{"rnu"}, "unknown command 'rnu'; did you mean 'run'?"},
      {{}, "a command is missing"},
      {{"run"}, "SPEC"},
      {{"run", "smoke/dlroa"}, "did you mean 'smoke/dlora'?"},
      {{"run", "smoke/dlora", "--froce"}, "unknown option '--froce'; did you mean '--force'?"},
      {{"run", "smoke/dlora", "-j", "0"}, "-"},
      {{"run", "smoke/dlora", "-j", "many"}, "many"},
      {{"run", "smoke/dlora", "-j"}, "option '--jobs' needs a value"},
      {{"run", "smoke/dlora", "--out", ""}, "--out needs a folder"},
      {{"list", "--experiments", "/nope"}, "/nope: no such folder; mend --experiments"},
      {{"run", "smoke/dlora", "--experiments", "/nope"}, "/nope: no such folder"},
      {{"check", "/dev/null"}, "/dev/null is not a regular file"},
      {{std::string(300, 'x')}, "unknown command '" + std::string(60, 'x') + "...'"},
      {{"run", "smoke/dlora", "--data", "/nonexistent"}, "the data folder does not exist"},
      {{"show", "slroa"}, "did you mean 'slora'?"},
      {{"show", "slora", "dlora"}, "unexpected 'dlora'"},
      {{"show", "vllm-08"}, "did you mean 'vllm-0.8'?"},
      {{"check", "experiments"}, "is a folder"},
      {{"check", "--effective", "smoke/dlora", "smoke/slora"}, "--effective is of one spec"},
      {{"check", folder_.file("v.yaml", "extends: shrt\ntitle: t\n")}, "v.yaml:1:1: no spec"},
      {{"check", short_spec("engine: {max_bach: 1}\n", "a.yaml")}, "did you mean 'max_batch'?"},
      {{"run", short_spec("sweep: {workload.arrivals.rate: [-1]}\n", "b.yaml"), "--out",
        folder_ / "out"},
       "'rate' must be a number"},
  };
  for (const auto& c : cases) {
    const ProgramResult result = run_program(c.arguments);
    expect_one_error(result, 2, c.part);
    EXPECT_EQ(lines_of(result.err), 1u) << result.err;
  }
}

TEST_F(SpecRun, AdaptersFindTheirModelInTheFolderOfExperiments) {
  const std::string models = folder_ / "mine/base/model";
  std::filesystem::create_directories(models);
  std::filesystem::copy_file(SERVELAB_SOURCE_DIR "/experiments/base/model/llama-134m.yaml",
                             models + "/only-here.yaml");
  const std::string adapter = SERVELAB_SOURCE_DIR "/tests/golden/models/llama/r16";
  expect_one_error(run_program({"adapters", "add", "a", adapter, "--model", "only-here",
                                "--experiments", folder_ / "mine", "--db", folder_ / "db"}),
                   2, "but the model needs");
}

TEST_F(SpecRun, ListingsSayWhatThereIs) {
  EXPECT_THAT(run_program({"list"}).out, HasSubstr("slora "));
  EXPECT_THAT(run_program({"list"}).out, HasSubstr("llama-2-7b"));
  EXPECT_THAT(run_program({"list"}).out, AllOf(HasSubstr("\n  cpu "), HasSubstr("\n  cuda "),
                                               HasSubstr("\n  null "), HasSubstr("\n  twin ")));
  EXPECT_THAT(run_program({"show", "null"}).out, HasSubstr("a measuring tool"));
  EXPECT_THAT(run_program({"list"}).out, HasSubstr("vLLM 0.8.5, V1 engine"));
  EXPECT_THAT(run_program({"show", "engines"}).out,
              AllOf(HasSubstr("vllm-0.5"), HasSubstr("2048, 2048 in one step"),
                    HasSubstr("rank 16 of q, k, v, o, gate, up, down, vocabulary"),
                    HasSubstr("adapter_us 10.4, token_us 1.5"), HasSubstr("GPULLMAdapter")));
  EXPECT_THAT(run_program({"show", "vllm-0.8"}).out,
              AllOf(HasSubstr("slot_targets"), HasSubstr("sequence_us"), HasSubstr("waiting_us"),
                    Not(HasSubstr("pair_us"))));
  const std::string shown = run_program({"show", "dlora"}).out;
  EXPECT_THAT(shown, HasSubstr("gamma_mul"));
  EXPECT_THAT(shown, HasSubstr("capabilities"));
  EXPECT_THAT(run_program({"spec"}).out, HasSubstr("workload.popularity"));
  EXPECT_THAT(run_program({"spec", "--schema"}).out, HasSubstr("\"max_batch_tokens\""));
  EXPECT_THAT(run_program({"spec", "--schema"}).out, HasSubstr("\"extends\""));
  EXPECT_THAT(run_program({"version"}).out, HasSubstr("build id"));
  EXPECT_EQ(run_program({"--help"}).code, 0);
  EXPECT_EQ(run_program({"run", "--help"}).code, 0);
  const ProgramResult checked = run_program({"check", "smoke/dlora", "smoke/slora"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("smoke/dlora: ok, points: 12"));
}

}  // namespace
}  // namespace servelab

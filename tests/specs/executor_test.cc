// Points handed out as commands: `servelab run --emit-jobs` and `servelab work`, alone, together,
// killed, and beside a run of the same spec. Slurm itself is met in tests/executors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

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

class Executors : public ::testing::Test {
 protected:
  // `points` of about `requests` / 50 ms each.
  std::string spec(int points, int requests, const std::string& name = "sweep.yaml") const {
    return folder_.file(name, std::string(kSmallSpec) + "  requests: " + std::to_string(requests) +
                                  "\nsweep: {workload.arrivals.rate: [5, 10]}\n"
                                  "techniques: [slora, unmerged-only]\nseeds: " +
                                  std::to_string(points / 4) + "\n");
  }
  std::vector<std::string> run(const std::string& spec, const std::string& out) const {
    return {"run", spec, "--out", folder_ / out, "-j", "2"};
  }
  // Hands out all that is missing; the job's folder.
  std::string emit(const std::string& spec, const std::string& out, int per_task) const {
    const ProgramResult result =
        run_program({"run", spec, "--out", folder_ / out, "--emit-jobs", folder_ / "commands",
                     "--points-per-task", std::to_string(per_task)});
    EXPECT_EQ(result.code, 0) << result.err;
    std::string newest;
    for (const auto& job : fs::directory_iterator(folder_ / (out + "/sweep/jobs"))) {
      newest = std::max(newest, job.path().string());
    }
    return newest;
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    EXPECT_EQ(test::digests(folder_ / a), test::digests(folder_ / b));
    EXPECT_EQ(test::read_file(folder_ / (a + "/sweep/collected.h5")),
              test::read_file(folder_ / (b + "/sweep/collected.h5")));
    for (const auto& entry : fs::directory_iterator(folder_ / (b + "/sweep/points"))) {
      EXPECT_EQ(entry.path().extension(), ".h5") << entry.path() << " was left";
    }
  }

  test::TemporaryFolder folder_;
};

// Keys of the points that a program computed, by its progress lines.
std::vector<std::string> computed(const std::string& err) {
  std::vector<std::string> keys;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string spec, count, key;
    if (words >> spec >> count >> key && spec == "sweep" && key.size() == 16) keys.push_back(key);
  }
  return keys;
}

void expect_distinct(std::vector<std::string> keys, std::size_t count) {
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end()) << "a point twice";
  EXPECT_EQ(keys.size(), count);
}

ProgramResult work(const std::string& job, int task) {
  return run_program({"work", job, std::to_string(task)});
}

TEST_F(Executors, TasksComputeWhatARunDoesDigestForDigest) {
  const std::string spec = this->spec(16, 60);
  ASSERT_EQ(run_program(run(spec, "local")).code, 0);
  const std::string job = emit(spec, "tasks", 5);
  const std::string commands = test::read_file(folder_ / "commands");
  EXPECT_EQ(std::count(commands.begin(), commands.end(), '\n'), 4);
  ASSERT_EQ(std::system(("sh " + (folder_ / "commands") + " 2>" + (folder_ / "log")).c_str()), 0);
  EXPECT_FALSE(fs::exists(folder_ / "tasks/sweep/collected.h5"));
  expect_distinct(computed(test::read_file(folder_ / "log")), 16);
  const ProgramResult collected = run_program(run(spec, "tasks"));
  EXPECT_THAT(collected.out, HasSubstr("0 run, 16 cached"));
  expect_equal("local", "tasks");
  EXPECT_THAT(work(job, 0).err, HasSubstr("0 run, 5 there"));
  EXPECT_THAT(run_program({"run", spec, "--out", folder_ / "tasks", "--emit-jobs", "-"}).out, "");
}

TEST_F(Executors, OnlyWhatIsMissingIsHandedOut) {
  const std::string spec = this->spec(8, 60);
  const std::string first = emit(spec, "out", 3);
  ASSERT_EQ(work(first, 1).code, 0);
  const std::string second = emit(spec, "out", 100);
  EXPECT_THAT(work(second, 0).err, HasSubstr("task 0: 5 points: 5 run"));
  EXPECT_THAT(run_program(run(spec, "out")).out, HasSubstr("0 run, 8 cached"));
}

TEST_F(Executors, EditsAfterwardsChangeNothing) {
  folder_.file("shared.yaml",
               "requests: 60\nadapters: {count: 8, ranks: [8]}\n"
               "arrivals: {process: poisson, rate: 10}\n"
               "lengths: {source: lognormal, prompt: 60, output: 30}\n");
  folder_.file("whole.yaml",
               "title: t\nmodel: llama-2-7b\nhardware: ./gpu.yaml\n"
               "workload: ./shared.yaml\ntechniques: [slora, dlora]\n");
  const auto write = [&](const std::string& seeds) {
    return folder_.file("sweep.yaml", "extends: whole\ntitle: t\nseeds: " + seeds + "\n");
  };
  folder_.file("gpu.yaml", "extends: wider\nname: mine\n");
  folder_.file("wider.yaml", "extends: a800-80g\nname: wider\nmemory_bytes: 9e10\n");
  const std::string spec = write("2");
  ASSERT_EQ(run_program(run(spec, "local")).code, 0);
  const std::string job = emit(spec, "tasks", 4);
  write("1");
  folder_.file("whole.yaml", "nonsense");
  folder_.file("shared.yaml", "requests: 6\n");
  folder_.file("gpu.yaml", "nonsense");
  folder_.file("wider.yaml", "nonsense");
  EXPECT_THAT(work(job, 0).err, HasSubstr("4 run, 0 there, 0 failed"));
  EXPECT_EQ(test::digests(folder_ / "local"), test::digests(folder_ / "tasks"));
}

TEST_F(Executors, AnotherBuildAndOtherPointsAreRefused) {
  const std::string spec = this->spec(4, 60);
  const std::string job = emit(spec, "out", 2);
  const std::string saved = test::read_file(job + "/job.json");
  const auto with = [&](const std::string& name, const std::string& value) {
    std::string text = saved;
    const std::size_t at = text.find("\"", text.find("\"" + name + "\":") + name.size() + 3) + 1;
    text.replace(at, text.find('"', at) - at, value);
    test::write_file(job + "/job.json", text);
    return work(job, 0);
  };
  const ProgramResult other_build = with("build_id", "0123");
  EXPECT_EQ(other_build.code, 2);
  EXPECT_THAT(other_build.err, HasSubstr("was made by the build 0123, and this is "));
  const ProgramResult other_point = with("key", "00112233445566ff");
  EXPECT_EQ(other_point.code, 2);
  EXPECT_THAT(other_point.err, HasSubstr("its key was 00112233445566ff and is "));
  EXPECT_THAT(other_point.err, HasSubstr("1 run, 0 there, 1 failed"));
  test::write_file(job + "/job.json", saved.substr(0, 100));
  EXPECT_THAT(work(job, 0).err, HasSubstr("job.json: is damaged"));
  test::write_file(job + "/job.json", saved);
  EXPECT_THAT(work(job, 9).err, HasSubstr("has no task 9; it has 0 to 1"));
  EXPECT_THAT(work(folder_.path(), 0).err, HasSubstr("is no job, as it has no job.json"));
}

TEST_F(Executors, RunsAndTasksAtOnceShareThePoints) {
  const std::string spec = this->spec(60, 1000);
  ASSERT_EQ(run_program(run(spec, "alone")).code, 0);
  const std::string first = emit(spec, "shared", 60);
  const std::string second = emit(spec, "shared", 60);
  std::vector<std::unique_ptr<Program>> programs;
  for (const std::string& job : {first, second, first}) {
    programs.push_back(
        std::make_unique<Program>(std::vector<std::string>{"work", job, "0", "-j", "2"}));
  }
  std::vector<std::string> whole = run(spec, "shared");
  programs.push_back(std::make_unique<Program>(whole));
  std::vector<std::string> keys;
  std::string out;
  std::size_t busy = 0;
  for (const auto& program : programs) {
    const ProgramResult result = program->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    const std::vector<std::string> its = computed(result.err);
    keys.insert(keys.end(), its.begin(), its.end());
    busy += its.empty() ? 0 : 1;
    out += result.out;
  }
  expect_distinct(keys, 60);
  EXPECT_GT(busy, 1u);
  EXPECT_THAT(out, HasSubstr("60 VALID"));  // the run waited for the tasks' points, and collected
  expect_equal("alone", "shared");
}

TEST_F(Executors, RunWaitsForAPointThatATaskComputes) {
  const std::string spec = this->spec(4, 60000);
  const std::string job = emit(spec, "out", 1);
  Program task({"work", job, "0"});
  ASSERT_TRUE(test::wait_for_files(folder_ / "out/sweep/points", 1, ".lock"));
  const ProgramResult whole = run_program(run(spec, "out"));
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("3 run, 1 cached"));
  EXPECT_THAT(whole.err, HasSubstr("waiting for 1 points that others compute, such as pid " +
                                   std::to_string(task.pid())));
  EXPECT_EQ(task.wait().code, 0);
}

TEST_F(Executors, TaskThatIsTerminatedKeepsWhatIsFinished) {
  const std::string spec = this->spec(40, 4000);
  const std::string job = emit(spec, "out", 40);
  Program task({"work", job, "0"});
  ASSERT_TRUE(test::wait_for_files(folder_ / "out/sweep/points", 2, ".h5"));
  task.signal(SIGTERM);
  EXPECT_EQ(task.wait().code, 128 + SIGTERM);
  for (const auto& entry : fs::directory_iterator(folder_ / "out/sweep/points")) {
    EXPECT_EQ(entry.path().extension(), ".h5");
  }
  const ProgramResult rest = work(job, 0);
  EXPECT_EQ(rest.code, 0);
  EXPECT_THAT(rest.err, Not(HasSubstr(", 0 there")));
}

TEST_F(Executors, FailedPointIsTold) {
  const std::string spec =
      folder_.file("sweep.yaml", std::string(kSmallSpec) +
                                     "  requests: 20\ntechniques: [slora]\n"
                                     "sweep: {workload.adapters.count: [8]}\n");
  const std::string job = emit(spec, "out", 1);
  std::string text = test::read_file(job + "/spec.yaml");
  text.replace(text.find("requests: 20"), 12, "requests: 21");
  test::write_file(job + "/spec.yaml", text);
  const ProgramResult result = work(job, 0);
  EXPECT_EQ(result.code, 2);
  EXPECT_FALSE(fs::is_empty(job + "/failed"));
}

TEST_F(Executors, WhatDoesNotGoTogetherIsOneLine) {
  const std::string spec = this->spec(4, 20);
  const std::string site = folder_.file("site.yaml", "partitoin: main\n");
  const std::string words = folder_.file("words.yaml", "partition: a b\n");
  const std::string options = folder_.file("options.yaml", "sbatch: [qos=low]\n");
  const struct {
    std::vector<std::string> more;
    std::string part;
  } cases[] = {
      {{"--wait"}, "--wait goes with --executor slurm"},
      {{"--points-per-task", "3"}, "--points-per-task goes with --executor slurm"},
      {{"--executor", "slrum"}, "slrum"},
      {{"--executor", "slurm", "--emit-jobs", "f"}, "in place of --executor slurm"},
      {{"--emit-jobs", "f", "--force"}, "--force goes with --executor local"},
      {{"--emit-jobs", "f", "--site", site}, "did you mean 'partition'?"},
      {{"--emit-jobs", "f", "--site", words}, "words.yaml:1:1: 'partition' must be one word"},
      {{"--emit-jobs", "f", "--site", options}, "expected an option of sbatch such as --qos=low"},
      {{"--emit-jobs", "f", "--site", folder_ / "none.yaml"}, "none.yaml: cannot be read"},
      {{"--emit-jobs", folder_ / "none/f"}, "cannot be written"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> arguments = run(spec, "out");
    arguments.insert(arguments.end(), c.more.begin(), c.more.end());
    const ProgramResult result = run_program(arguments);
    EXPECT_THAT(result.code, ::testing::AnyOf(1, 2)) << c.part;
    EXPECT_THAT(result.err, HasSubstr(c.part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/sweep/collected.h5"));
}

TEST_F(Executors, WithoutSlurmOneLineSaysSo) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", folder_.path().c_str(), 1);
  const ProgramResult result =
      run_program({"run", spec(4, 20), "--out", folder_ / "out", "--executor", "slurm"});
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "servelab: error: --executor slurm: sbatch was not found on PATH; run this where "
            "Slurm's commands are, or write the commands for another scheduler with --emit-jobs "
            "FILE\n");
}

}  // namespace
}  // namespace servelab

// What `servelab doctor` says of the user's folders: data, .venv and results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/data_sums.h"
#include "engine/core/digest.h"
#include "engine/run/point_locks.h"
#include "tests/support/fake_machine.h"
#include "tests/support/program.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DoctorOfPython : public Doctor {
 protected:
  DoctorOfPython() {
    subject.tree = folder / "tree";
    const std::string pins = "numpy==2.2.6\n";
    folder.file("tree/analysis/requirements.txt", pins);
    folder.file("tree/.venv/bin/python", "");
    folder.file("tree/.venv/.servelab-requirements", sha256_hex(pins) + "\n");
  }
};

TEST_F(DoctorOfPython, AsPinned) {
  EXPECT_THAT(notes_of(check_python(subject)), IsEmpty());
  EXPECT_EQ(named(check_python(subject), "packages").found, "Python 3.11.2, as pinned");
}

TEST_F(DoctorOfPython, NotMadeOrOfOldRequirements) {
  folder.file("tree/analysis/requirements.txt", "numpy==2.3.0\n");
  Finding venv = named(check_python(subject), "venv");
  EXPECT_EQ(venv.level, Level::kProblem);
  EXPECT_EQ(venv.mend, ".ci/setup --only-python");
  fs::remove_all(folder / "tree/.venv");
  venv = named(check_python(subject), "venv");
  EXPECT_EQ(venv.found, "not made yet");
  machine.remove("usr/bin/python3");
  EXPECT_THAT(named(check_python(subject), "venv").mend, HasSubstr("install python3"));
}

TEST_F(DoctorOfPython, PackagesThatDifferOrDoNotImport) {
  machine.python.text = "numpy 1.0 for 2.2.6\nh5py does not import: no\ndone 3.11.2\n";
  Finding packages = named(check_python(subject), "packages");
  EXPECT_EQ(packages.level, Level::kProblem);
  EXPECT_EQ(packages.found, "numpy 1.0 for 2.2.6, and 1 more");
  machine.python = {1, false, ""};
  EXPECT_EQ(named(check_python(subject), "packages").found, "its Python does not run");
  machine.python = {-1, true, ""};
  EXPECT_EQ(named(check_python(subject), "packages").level, Level::kNote);
}

class DoctorOfData : public Doctor {
 protected:
  void spec(const std::string& name, const std::string& workload) const {
    folder.file("experiments/paper/" + name + ".yaml",
                "title: test\nmodel: m\nhardware: h\ntechniques: [slora]\nworkload:\n" + workload);
  }
};

TEST_F(DoctorOfData, MissingTracesNameTheSpecsThatTheyTouch) {
  spec("fig1", "  arrivals: {process: trace-shares, trace: maf1, rate: 1}\n");
  spec("fig2", "  arrivals: {process: poisson, rate: 1}\n  lengths: {source: alpaca}\n");
  subject.data = folder / "data";
  folder.file("data/alpaca/alpaca_5000_llama2tok.csv", "input_tokens,output_tokens\n");
  const Findings findings = check_data(subject);
  EXPECT_EQ(named(findings, "traces").found, "2 of 29 there");  // alpaca and its template
  const Finding maf1 = named(findings, "maf1");
  EXPECT_EQ(maf1.level, Level::kNote);
  EXPECT_THAT(maf1.cost, HasSubstr("paper/fig1"));
  EXPECT_EQ(maf1.mend, "data/fetch maf1");
  EXPECT_EQ(named(findings, "alpaca").found, "");
  EXPECT_THAT(named(findings, "unused").found, HasSubstr("maf2"));
}

TEST_F(DoctorOfData, WhatNothingStandsInForIsAProblem) {
  spec("replayed", "  arrivals: {process: replay, trace: azure-llm-conv}\n");
  spec("strict", "  fallback: error\n  lengths: {source: bwb}\n");
  spec("clients", "  arrivals: {process: servegen, trace: servegen-m-mid}\n");
  spec("lengths", "  lengths: {source: azure-llm-code}\n");
  const Findings findings = check_data(subject);
  EXPECT_EQ(named(findings, "folder").level, Level::kNote);
  for (const char* name : {"azure-llm-conv", "bwb", "servegen-m-mid"}) {
    EXPECT_EQ(named(findings, name).level, Level::kProblem) << name;
  }
  EXPECT_EQ(named(findings, "azure-llm-code").level, Level::kNote);
  spec("bad", "  arrival: {}\n  - x\n");
  EXPECT_EQ(named(check_data(subject), "specs").level, Level::kProblem);
}

TEST_F(DoctorOfData, FullReadsEveryFile) {
  subject.data = folder / "data";
  subject.full = true;
  folder.file("data/length_sets/bwb_llama2tok.csv.gz", "\x1f\x8b\x08 cut short");
  folder.file("data/azure_functions_2021/app_totals.csv", "not,the,fitted\n");
  const Findings findings = check_data(subject);
  EXPECT_EQ(named(findings, "content_bwb").level, Level::kProblem);
  EXPECT_THAT(named(findings, "content_bwb").mend, HasSubstr("data/fetch bwb"));
  EXPECT_THAT(named(findings, "sums").found, HasSubstr("maf2"));
}

// The embedded statistics say in comments what they were fitted to.
TEST(DoctorSums, AreThoseOfTheEmbeddedStatistics) {
  const std::string text =
      std::regex_replace(test::read_file(SERVELAB_SOURCE_DIR "/engine/workload/embedded_stats.cc"),
                         std::regex(R"(\n//\s*)"), " ");
  const std::regex pattern(R"((\w+/[\w.]+\.csv(?:\.gz)?)[^\n]*?SHA-256 ([0-9a-f]{64}))");
  int sums = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it, ++sums) {
    const std::string* sum = known_sum((*it)[1]);
    ASSERT_NE(sum, nullptr) << (*it)[1];
    EXPECT_EQ(*sum, (*it)[2]) << (*it)[1];
  }
  EXPECT_GE(sums, 12);
}

// The id of a process that has been.
long dead_process() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

using DoctorOfResults = Doctor;

TEST_F(DoctorOfResults, WhatKilledRunsLeft) {
  LockOwner dead = LockOwner::this_process();
  dead.pid = dead_process();
  const std::string points = "results/paper/fig/points/";
  folder.file(points + "aaaa.1.lock", dead.text());
  folder.file(points + "bbbb.1.lock", LockOwner::this_process().text());
  folder.file(points + "cccc.1.lock", dead.text());
  folder.file(points + "cccc.h5", "");
  folder.file(points + "dddd.h5.7.servelab-tmp", "");
  const Findings findings = check_results(subject);
  EXPECT_THAT(named(findings, "locks").found, HasSubstr("1 points"));
  EXPECT_THAT(named(findings, "dead_locks").found, HasSubstr("1 points"));
  EXPECT_THAT(named(findings, "leftovers").found, HasSubstr("2 files"));
  EXPECT_TRUE(fs::exists(folder / (points + "dddd.h5.7.servelab-tmp")));  // it only looks
}

TEST_F(DoctorOfResults, ResultsThatCannotBeWritten) {
  machine.closed = subject.results;
  EXPECT_EQ(named(check_results(subject), "folder").level, Level::kProblem);
  folder.file("results/paper/fig/points/aaaa.h5", "");
  machine.closed = folder / "results/paper/fig";
  EXPECT_THAT(named(check_results(subject), "folder").found, HasSubstr("paper/fig cannot"));
}

}  // namespace
}  // namespace servelab::doctor

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

TEST_F(DoctorOfPython, NotMadeOrOfOldRequirements) {
  EXPECT_THAT(notes_of(check_python(subject)), IsEmpty());
  folder.file("tree/analysis/requirements.txt", "numpy==2.3.0\n");
  Finding venv = named(check_python(subject), "venv");
  EXPECT_EQ(venv.level, Level::kProblem);
  EXPECT_EQ(venv.mend, ".ci/setup --only-python");
  fs::remove_all(folder / "tree/.venv");
  venv = named(check_python(subject), "venv");
  EXPECT_EQ(venv.found, "not made yet");
}

TEST_F(DoctorOfPython, PackagesThatDoNotImport) {
  machine.python = {1, false, ""};
  EXPECT_EQ(named(check_python(subject), "venv").level, Level::kProblem);
  machine.python = {-1, true, ""};
  EXPECT_EQ(named(check_python(subject), "venv").level, Level::kNote);
}

using DoctorOfData = Doctor;

TEST_F(DoctorOfData, MissingTracesAreNamed) {
  Findings findings = check_data(subject);
  EXPECT_EQ(named(findings, "folder").level, Level::kNote);
  EXPECT_THAT(named(findings, "traces").found, HasSubstr("0 of 29 there, not maf1, "));
  subject.data = folder / "data";
  EXPECT_EQ(named(check_data(subject), "folder").level, Level::kProblem);  // does not exist
  folder.file("data/alpaca/alpaca_5000_llama2tok.csv", "input_tokens,output_tokens\n");
  findings = check_data(subject);
  EXPECT_EQ(named(findings, "folder").level, Level::kOk);
  EXPECT_THAT(named(findings, "traces").found, HasSubstr("2 of 29 there"));  // and its template
  EXPECT_EQ(named(findings, "traces").level, Level::kNote);
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
      std::regex_replace(test::read_file(SERVELAB_SOURCE_DIR "/data/embedded_stats.cc"),
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
  EXPECT_THAT(named(findings, "dead_locks").found, HasSubstr("1 points"));
  EXPECT_THAT(named(findings, "leftovers").found, HasSubstr("2 files"));
  EXPECT_TRUE(fs::exists(folder / (points + "dddd.h5.7.servelab-tmp")));  // it only looks
}

TEST_F(DoctorOfResults, ResultsThatCannotBeWritten) {
  machine.closed = subject.results;
  EXPECT_EQ(named(check_results(subject), "folder").level, Level::kProblem);
  machine.closed = folder.path();
  subject.results = folder / "not/made/yet";  // the nearest folder counts
  EXPECT_EQ(named(check_results(subject), "folder").found, folder.path() + " cannot be written");
}

TEST_F(DoctorOfResults, AFullDiskIsAProblem) {
  EXPECT_THAT(notes_of(check_results(subject)), IsEmpty());
  machine.disk.free = 10 * kMiB;
  const Finding space = named(check_results(subject), "space");
  EXPECT_EQ(space.level, Level::kProblem);
  EXPECT_THAT(space.mend, HasSubstr("--out"));
  machine.disk.free = 1 * kGiB;
  EXPECT_EQ(named(check_results(subject), "space").level, Level::kNote);
}

TEST_F(DoctorOfResults, FileSystemsThatLoseOrShareThem) {
  const auto found = [&](std::uint32_t magic) {
    machine.disk.file_system = magic;
    return named(check_results(subject), "file_system").found;
  };
  EXPECT_EQ(found(0xef53), "of a disk");
  EXPECT_EQ(found(0x6969), "of a network");
  EXPECT_EQ(found(0x01021994), "memory");
  EXPECT_THAT(found(0x794c7630), HasSubstr("container"));
}

}  // namespace
}  // namespace servelab::doctor

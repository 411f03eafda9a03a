// A machine in a folder, for tests of `servelab doctor`.
#ifndef SERVELAB_TESTS_SUPPORT_FAKE_MACHINE_H_
#define SERVELAB_TESTS_SUPPORT_FAKE_MACHINE_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/cli/doctor/checks.h"
#include "tests/support/program.h"

namespace servelab::doctor {

// A healthy two-core machine, in a folder; tests spoil it.
class FakeMachine : public Machine {
 public:
  FakeMachine() : FakeMachine(std::make_unique<test::TemporaryFolder>()) {}

  void file(const std::string& path, const std::string& text) const { root_->file(path, text); }
  void program(const std::string& path) const {
    ::chmod(root_->file(path, "#!/bin/sh\n").c_str(), 0755);
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(*root_ / path); }

  std::string variable(const std::string& name) const override {
    return name == "PATH" ? "/usr/bin:/opt/bin" : "";
  }
  int usable_cores() const override { return cores; }
  bool can_write(const std::string& folder) const override { return folder != closed; }
  std::optional<DiskSpace> space(const std::string&) const override { return disk; }
  Output run(const std::vector<std::string>& command, std::chrono::milliseconds) const override {
    return command.front().ends_with("/nvidia-smi") ? nvidia_smi : python;
  }

  int cores = 2;
  std::string closed = "none";
  DiskSpace disk{100 * kGiB, 200 * kGiB, 0xef53};  // ext4
  Output python{0, false, ""};
  Output nvidia_smi{0, false, "NVIDIA H100, 9.0, 580.1, 0 MiB\n"};

 private:
  explicit FakeMachine(std::unique_ptr<test::TemporaryFolder> root)
      : Machine(root->path()), root_(std::move(root)) {
    for (const char* name : {"g++", "make", "cmake"}) {
      program(std::string("usr/bin/") + name);
    }
    file("proc/loadavg", "0.05 0.10 0.20 1/200 4242\n");
    file("proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n");
    file("proc/self/cgroup", "0::/user/task\n");
    file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  }
  std::unique_ptr<test::TemporaryFolder> root_;
};

class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    subject.build.optimised = true;
    subject.results = folder / "results";
    std::filesystem::create_directories(subject.results);
  }

  FakeMachine machine;
  Subject subject{machine};
  test::TemporaryFolder folder;
};

// The finding of that name; its text is empty when there is none.
inline Finding named(const Findings& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding;
  }
  return {name, Level::kOk, "", "", ""};
}

// The names of notes and problems.
inline std::vector<std::string> notes_of(const Findings& findings) {
  std::vector<std::string> names;
  for (const Finding& finding : findings) {
    if (finding.level != Level::kOk) names.push_back(finding.name);
  }
  return names;
}

}  // namespace servelab::doctor

#endif  // SERVELAB_TESTS_SUPPORT_FAKE_MACHINE_H_

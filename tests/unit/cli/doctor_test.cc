// What `servelab doctor` says of machines that are not this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "tests/support/fake_machine.h"
#include "tests/support/program.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Doctor, AHealthyMachineHasNothingToSay) {
  EXPECT_THAT(notes_of(check_machine(subject)), IsEmpty());
  EXPECT_EQ(named(check_machine(subject), "cores").found, "2 can be used");
}

TEST_F(Doctor, ABusyMachineWithASavingGovernor) {
  machine.file("proc/loadavg", "1.50 0.10 0.20 1/200 4242\n");
  machine.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  const Findings findings = check_machine(subject);
  EXPECT_THAT(notes_of(findings), ::testing::ElementsAre("governor", "load"));
  EXPECT_THAT(named(findings, "load").found, HasSubstr("1.50"));
  EXPECT_THAT(named(findings, "load").cost, HasSubstr("noise"));
  EXPECT_EQ(named(findings, "governor").mend, "sudo cpupower frequency-set -g performance");
}

TEST_F(Doctor, LimitsOfControlGroupsUpToTheRoot) {
  machine.cores = 8;
  machine.file("sys/fs/cgroup/user/task/cpu.max", "max 100000\n");
  machine.file("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  machine.file("sys/fs/cgroup/user/task/memory.max", "536870912\n");
  machine.file("sys/fs/cgroup/user/memory.max", "1073741824\n");
  const Finding cores = named(check_machine(subject), "cores");
  EXPECT_EQ(cores.level, Level::kNote);
  EXPECT_EQ(cores.found, "8 can be used, and the control group allows the time of 1.5");
  EXPECT_THAT(cores.mend, HasSubstr("`runtime.threads: 1`"));
  const Finding size = named(check_machine(subject), "memory");
  EXPECT_EQ(size.found, "16.0 GiB, 0.5 GiB of it available; the control group's limit is 0.5 GiB");
  // A group around it has less left, and file cache gives way.
  machine.file("sys/fs/cgroup/user/memory.current", "1073741824\n");
  machine.file("sys/fs/cgroup/user/memory.stat", "anon 805306368\ninactive_file 268435456\n");
  EXPECT_THAT(named(check_machine(subject), "memory").found, HasSubstr("0.2 GiB of it available"));
}

TEST_F(Doctor, LimitsOfControlGroupsOfVersionOneInAContainer) {
  machine.cores = 8;
  // The path is the host's; from inside only the root can be seen.
  machine.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_THAT(named(check_machine(subject), "cores").found, HasSubstr("the time of 2"));
  EXPECT_EQ(named(check_machine(subject), "memory").found, "16.0 GiB, 8.0 GiB of it available");
}

TEST_F(Doctor, LittleMemory) {
  machine.file("proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  204800 kB\n");
  EXPECT_THAT(named(check_machine(subject), "memory").cost, HasSubstr("million"));
}

TEST_F(Doctor, WithoutCompilersNothingCanBeBuilt) {
  for (const char* name : {"g++", "make"}) machine.remove(std::string("usr/bin/") + name);
  Findings findings = check_tools(subject);
  EXPECT_EQ(named(findings, "compiler").level, Level::kProblem);
  EXPECT_EQ(named(findings, "compiler").found, "no g++, clang++, c++");
  EXPECT_EQ(named(findings, "make").level, Level::kProblem);
  EXPECT_EQ(named(findings, "cmake").level, Level::kOk);
  EXPECT_EQ(named(findings, "clang-format").mend, ".ci/setup --format");
  EXPECT_EQ(named(findings, "slurm").level, Level::kNote);
  EXPECT_EQ(named(findings, "nvcc").level, Level::kNote);
  machine.program("opt/bin/clang++");
  machine.program("usr/local/cuda/bin/nvcc");  // not in PATH
  machine.program("usr/sbin/slurmctld");
  findings = check_tools(subject);
  EXPECT_EQ(named(findings, "compiler").found, "/opt/bin/clang++");
  EXPECT_EQ(named(findings, "nvcc").level, Level::kOk);
  EXPECT_EQ(named(findings, "slurm").level, Level::kOk);
}

TEST_F(Doctor, SourcesNewerThanTheProgram) {
  subject.tree = folder / "tree";
  subject.program = folder.file("tree/build/servelab", "");
  const std::string source = folder.file("tree/engine/run/a.cc", "");
  folder.file("tree/kernels/bench/b.cc", "");  // no part of the program
  folder.file("tree/engine/notes.txt", "");
  const auto built = fs::last_write_time(source) + std::chrono::seconds(5);
  fs::last_write_time(subject.program, built);
  fs::last_write_time(folder / "tree/kernels/bench/b.cc", built + std::chrono::seconds(9));
  EXPECT_EQ(named(check_build(subject), "source").level, Level::kOk);
  fs::last_write_time(source, built + std::chrono::seconds(1));
  const Finding newer = named(check_build(subject), "source");
  EXPECT_EQ(newer.level, Level::kNote);
  EXPECT_THAT(newer.found, HasSubstr("newer than this program"));
  EXPECT_THAT(newer.found, HasSubstr("engine/run/a.cc"));
  EXPECT_EQ(newer.mend, "make build");
}

TEST_F(Doctor, ADebugOrSanitizedBuildIsNoneToMeasure) {
  subject.build.type = "Sanitize";
  subject.build.sanitized = true;
  EXPECT_THAT(named(check_build(subject), "type").found, HasSubstr("with sanitizers"));
  EXPECT_EQ(named(check_build(subject), "type").level, Level::kNote);
}

TEST_F(Doctor, GpusThatCannotBeUsed) {
  EXPECT_EQ(named(check_gpu(subject), "driver").found, "no NVIDIA driver and no device");
  machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  EXPECT_THAT(named(check_gpu(subject), "driver").mend, HasSubstr("--gpus all"));
  machine.program("usr/bin/nvidia-smi");
  machine.nvidia_smi = {9, false, "NVIDIA-SMI has failed\nmore\n"};
  EXPECT_EQ(named(check_gpu(subject), "driver").found, "nvidia-smi fails: NVIDIA-SMI has failed");
  machine.nvidia_smi = {0, false, ""};
  EXPECT_EQ(named(check_gpu(subject), "driver").found, "nvidia-smi knows no device");
  machine.nvidia_smi = {-1, true, "NVIDIA H1"};
  EXPECT_THAT(named(check_gpu(subject), "driver").found, HasSubstr("no answer in 1500 ms"));
  machine.nvidia_smi = {0, false, "[N/A]\n"};
  EXPECT_THAT(named(check_gpu(subject), "device0").found, HasSubstr("not understood"));
}

TEST_F(Doctor, GpusAgainstWhatWasCompiled) {
  machine.program("usr/bin/nvidia-smi");
  EXPECT_THAT(named(check_gpu(subject), "device0").found, HasSubstr("without CUDA"));
  const auto level = [&](const std::string& capability, const std::vector<std::string>& targets) {
    machine.nvidia_smi.text = "NVIDIA H100, 9.0, 580.1, 0 MiB\nx, " + capability + ", 580.1, 1 MiB";
    subject.build.cuda_targets = targets;
    return named(check_gpu(subject), "device1").level;
  };
  EXPECT_EQ(level("9.0", {"80-real", "90a-real"}), Level::kOk);
  EXPECT_EQ(level("8.6", {"80-real", "90a-real"}), Level::kOk);
  EXPECT_EQ(level("10.0", {"80-real", "90a-real"}), Level::kNote);
  EXPECT_EQ(named(check_gpu(subject), "device1").mend,
            "make build CMAKE_FLAGS=-DCMAKE_CUDA_ARCHITECTURES=100-real");
  EXPECT_EQ(level("8.0", {"86-real"}), Level::kNote);
  EXPECT_EQ(level("7.5", {"80-real"}), Level::kNote);
  EXPECT_EQ(level("10.0", {"80"}), Level::kOk);  // carries PTX
}

// Of a real child process, which the doctor stops.
TEST(DoctorMachine, RunsProgramsForALimitedTime) {
  const Machine machine;
  const Output said = machine.run({"sh", "-c", "echo this; echo not >&2; exit 3"}, 10s);
  EXPECT_EQ(said.text, "this\n");
  EXPECT_EQ(said.code, 3);
  EXPECT_EQ(machine.run({"/no/such/program"}, 10s).code, -1);
  const auto begin = std::chrono::steady_clock::now();
  const Output stopped = machine.run({"sh", "-c", "echo begun; sleep 60"}, 100ms);
  EXPECT_TRUE(stopped.timed_out);
  EXPECT_EQ(stopped.code, -1);
  EXPECT_EQ(machine.run({"sh", "-c", "kill -6 $$"}, 10s).code, -1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST_F(Doctor, ReportsForPeopleAndPrograms) {
  const std::vector<Section> sections = {
      {"one", {ok("a", "fine"), note("long_name", "so so", "a little")}},
      {"two", {problem("b", "\xff gone", "a lot", "make it")}}};
  EXPECT_EQ(count(sections, Level::kProblem), 1);
  const std::string text = text_of(sections);
  EXPECT_THAT(text, HasSubstr("one\n  ok       a         fine\n  note     long_name so so\n"));
  EXPECT_THAT(text, HasSubstr("costs: a lot\n"));
  EXPECT_THAT(text, HasSubstr("mend:  make it\n"));
  EXPECT_THAT(text, HasSubstr("doctor: 1 ok, 1 note, 1 problem: "));
  EXPECT_THAT(json_of(sections), HasSubstr(R"("name": "one.long_name")"));
  EXPECT_THAT(json_of(sections), HasSubstr(R"("ready": false)"));
  EXPECT_THAT(json_of({}), HasSubstr(R"("ready": true)"));
}

}  // namespace
}  // namespace servelab::doctor

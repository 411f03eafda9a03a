// What `servelab doctor` says of machines that are not this one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "tests/support/fake_machine.h"
#include "tests/support/program.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Doctor, AHealthyMachineHasNothingToSay) {
  EXPECT_THAT(notes_of(check_processor(subject)), IsEmpty());
  EXPECT_THAT(notes_of(check_memory(subject)), IsEmpty());
  EXPECT_THAT(notes_of(check_disk(subject)), IsEmpty());
  EXPECT_THAT(notes_of(check_results(subject)), IsEmpty());
  EXPECT_EQ(named(check_processor(subject), "model").found, "Frugal 2000");
  EXPECT_EQ(named(check_processor(subject), "huge_pages").found, "transparent, madvise");
}

TEST_F(Doctor, ABusyMachineWithASavingGovernor) {
  machine.file("proc/loadavg", "1.50 0.10 0.20 1/200 4242\n");
  machine.file("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n");
  machine.file("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n");
  machine.file("sys/devices/system/cpu/smt/active", "1\n");
  machine.file("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n");
  machine.file("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n");
  machine.file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  machine.file("sys/devices/system/node/node0/cpulist", "0\n");
  machine.file("sys/devices/system/node/node1/cpulist", "1\n");
  machine.file("proc/stat", "cpu  5000 0 1000 90000 10 0 0 4000 0 0\n");
  const Findings findings = check_processor(subject);
  EXPECT_THAT(notes_of(findings), ::testing::ElementsAre("governor", "turbo", "smt", "load",
                                                         "steal", "huge_pages", "numa"));
  EXPECT_THAT(named(findings, "load").found, HasSubstr("1.50"));
  EXPECT_THAT(named(findings, "load").cost, HasSubstr("noise"));
  EXPECT_EQ(named(findings, "governor").found, "performance, powersave");
  EXPECT_EQ(named(findings, "governor").mend, "sudo cpupower frequency-set -g performance");
  EXPECT_EQ(named(findings, "smt").found, "on, 1 physical cores");
  EXPECT_THAT(named(findings, "steal").found, HasSubstr("4.0 %"));
}

TEST_F(Doctor, InstructionSetsThatTheKernelsNeed) {
  machine.file("proc/cpuinfo", "processor : 0\nflags : sse2 avx2 fma f16c avx512f\n");
  EXPECT_THAT(named(check_processor(subject), "instructions").found, HasSubstr("AVX2, but not"));
  machine.file("proc/cpuinfo", "processor : 0\nflags : sse2 avx2 fma\n");
  EXPECT_THAT(named(check_processor(subject), "instructions").found, HasSubstr("no AVX2"));
  machine.file("proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n");
  EXPECT_THAT(named(check_processor(subject), "instructions").cost, HasSubstr("reference loops"));
}

TEST_F(Doctor, LimitsOfControlGroupsUpToTheRoot) {
  machine.cores = 8;
  machine.file("sys/fs/cgroup/user/task/cpu.max", "max 100000\n");
  machine.file("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  machine.file("sys/fs/cgroup/user/task/memory.max", "536870912\n");
  machine.file("sys/fs/cgroup/user/memory.max", "1073741824\n");
  const Finding cores = named(check_processor(subject), "cores");
  EXPECT_EQ(cores.level, Level::kNote);
  EXPECT_EQ(cores.found, "8 of 8 can be used, and the control group allows the time of 1.5");
  EXPECT_THAT(cores.mend, HasSubstr("`runtime.threads: 1`"));
  const Finding size = named(check_memory(subject), "size");
  EXPECT_EQ(size.found, "16.0 GiB, 0.5 GiB of it available; the control group's limit is 0.5 GiB");
}

TEST_F(Doctor, LimitsOfControlGroupsOfVersionOneInAContainer) {
  machine.cores = 8;
  // The path is the host's; from inside only the root can be seen.
  machine.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  machine.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_THAT(named(check_processor(subject), "cores").found, HasSubstr("the time of 2"));
  EXPECT_EQ(named(check_memory(subject), "size").found, "16.0 GiB, 8.0 GiB of it available");
}

TEST_F(Doctor, ModelsThatDoNotFit) {
  subject.experiments = SERVELAB_SOURCE_DIR "/experiments";
  const Finding models = named(check_memory(subject), "models");
  EXPECT_EQ(models.level, Level::kNote);
  EXPECT_THAT(models.found, HasSubstr("holds tiny-15m, llama-134m, llama-1b; not qwen2.5-7b"));
  machine.file("proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  204800 kB\n");
  EXPECT_THAT(named(check_memory(subject), "size").cost, HasSubstr("million"));
}

TEST_F(Doctor, AFullDiskIsAProblem) {
  machine.disk.free = 10 * kMiB;
  const Finding space = named(check_disk(subject), "space");
  EXPECT_EQ(space.level, Level::kProblem);
  EXPECT_THAT(space.mend, HasSubstr("--out"));
  machine.disk.free = 1 * kGiB;
  EXPECT_EQ(named(check_disk(subject), "space").level, Level::kNote);
}

TEST_F(Doctor, TheFileSystemOfTheLongestPath) {
  const std::string results = fs::canonical(subject.results).string();
  machine.file("proc/self/mountinfo",
               "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
               "23 22 0:30 / " +
                   results.substr(0, results.rfind('/')) +
                   " rw shared:3 master:1 - nfs4 host:/export rw\n"
                   "24 22 0:31 / " +
                   results + "-other rw - tmpfs tmpfs rw\n");
  const Finding nfs = named(check_disk(subject), "file_system");
  EXPECT_EQ(nfs.found, "nfs4: of a network");
  EXPECT_THAT(nfs.cost, HasSubstr("hard links"));
  subject.results = results + " of old/new";  // not there: its nearest folder counts
  machine.file("proc/self/mountinfo",
               "22 1 8:1 / / rw - overlay overlay rw\n"
               "23 22 0:30 / " +
                   results + "\\040of\\040old rw - tmpfs tmpfs rw\n");
  fs::create_directories(results + " of old");
  EXPECT_EQ(named(check_disk(subject), "file_system").found, "tmpfs: memory");
}

TEST_F(Doctor, WithoutCompilersNothingCanBeBuilt) {
  for (const char* name : {"g++", "make"}) machine.remove(std::string("usr/bin/") + name);
  Findings findings = check_tools(subject);
  EXPECT_EQ(named(findings, "compiler").level, Level::kProblem);
  EXPECT_EQ(named(findings, "compiler").found, "no g++, clang++, c++");
  EXPECT_EQ(named(findings, "make").level, Level::kProblem);
  EXPECT_EQ(named(findings, "ninja").level, Level::kNote);
  EXPECT_EQ(named(findings, "nvcc").level, Level::kNote);
  machine.program("opt/bin/clang++");
  machine.program("usr/local/cuda/bin/nvcc");  // not in PATH
  findings = check_tools(subject);
  EXPECT_EQ(named(findings, "compiler").found, "/opt/bin/clang++");
  EXPECT_EQ(named(findings, "nvcc").level, Level::kOk);
  EXPECT_EQ(named(check_build(subject), "cuda").mend, "make build");
}

TEST_F(Doctor, CMakeIsNewEnough) {
  EXPECT_EQ(named(check_tools(subject), "cmake").level, Level::kOk);
  machine.cmake.text = "cmake version 3.18.4\n";
  EXPECT_EQ(named(check_tools(subject), "cmake").level, Level::kProblem);
  machine.cmake = {-1, true, ""};
  EXPECT_THAT(named(check_tools(subject), "cmake").found, HasSubstr("does not say"));
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
  EXPECT_THAT(newer.found, HasSubstr("1 file is newer"));
  EXPECT_THAT(newer.found, HasSubstr("engine/run/a.cc"));
  EXPECT_EQ(newer.mend, "make build");
}

TEST_F(Doctor, ADebugOrSanitizedBuildIsNoneToMeasure) {
  subject.build.type = "Sanitize";
  subject.build.sanitizers = "address";
  EXPECT_THAT(named(check_build(subject), "type").found, HasSubstr("address sanitizer"));
  EXPECT_EQ(named(check_build(subject), "type").level, Level::kNote);
}

GpuFacts one_gpu() {
  GpuFacts facts;
  facts.has_driver = facts.has_nccl = true;
  facts.driver = "580.1";
  facts.cuda_driver = 13000;
  facts.usable = 1;
  GpuDevice device;
  device.name = "H100";
  device.major = 9;
  device.memory = 80 * kGiB;
  device.mig = device.processes = 0;
  device.persistence = 1;
  device.clock_mhz = device.max_clock_mhz = 1980;
  facts.devices = {device};
  return facts;
}

TEST_F(Doctor, GpusThatCannotBeUsed) {
  EXPECT_EQ(named(check_gpu(subject), "driver").found, "no NVIDIA driver and no device");
  machine.file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  machine.file("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  EXPECT_EQ(named(check_gpu(subject), "driver").found, "an NVIDIA device without a driver");
  machine.file("proc/driver/nvidia/version", "NVRM version\n");
  EXPECT_THAT(named(check_gpu(subject), "driver").mend, HasSubstr("--gpus all"));
  machine.gpu = one_gpu();
  machine.gpu.usable = 0;
  EXPECT_THAT(named(check_gpu(subject), "driver").mend, HasSubstr("CUDA_VISIBLE_DEVICES"));
  machine.gpu.cuda_error = 802;
  EXPECT_THAT(named(check_gpu(subject), "driver").found, HasSubstr("error 802"));
}

TEST_F(Doctor, GpusAgainstWhatWasCompiled) {
  machine.gpu = one_gpu();
  EXPECT_THAT(named(check_gpu(subject), "kernels0").found, HasSubstr("without CUDA"));
  const auto level = [&](int major, int minor, const std::vector<std::string>& targets) {
    machine.gpu.devices[0].major = major;
    machine.gpu.devices[0].minor = minor;
    subject.build.cuda_targets = targets;
    return named(check_gpu(subject), "kernels0").level;
  };
  EXPECT_EQ(level(9, 0, {"80-real", "90a-real"}), Level::kOk);
  EXPECT_EQ(level(8, 6, {"80-real", "90a-real"}), Level::kOk);
  EXPECT_EQ(level(10, 0, {"80-real", "90a-real"}), Level::kNote);
  EXPECT_EQ(named(check_gpu(subject), "kernels0").mend,
            "make build CMAKE_FLAGS=-DCMAKE_CUDA_ARCHITECTURES=100-real");
  EXPECT_EQ(level(8, 0, {"86-real"}), Level::kNote);
  EXPECT_EQ(level(7, 5, {"80-real"}), Level::kNote);
  EXPECT_EQ(level(10, 0, {"80"}), Level::kOk);  // carries PTX
}

TEST_F(Doctor, WhatDisturbsMeasurementsOnAGpu) {
  machine.gpu = one_gpu();
  EXPECT_EQ(named(check_gpu(subject), "state0").level, Level::kOk);
  machine.gpu.devices[0].throttled = 1;  // idle
  EXPECT_EQ(named(check_gpu(subject), "state0").level, Level::kOk);
  machine.gpu.devices[0].throttled = 0x20;  // too hot
  machine.gpu.devices[0].persistence = 0;
  machine.gpu.devices[0].mig = 1;
  machine.gpu.devices[0].processes = 2;
  EXPECT_THAT(named(check_gpu(subject), "state0").found,
              HasSubstr("split by MIG, persistence off, clocks held down, in use by others"));
  machine.gpu.has_nccl = false;
  EXPECT_THAT(named(check_gpu(subject), "nccl").cost, HasSubstr("tensor_parallel"));
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

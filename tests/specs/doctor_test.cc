// servelab doctor as a program, on this machine and with stand-ins for a GPU's driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/core/config_node.h"
#include "tests/support/program.h"

namespace servelab::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// A variable of the environment, as it was before at the end.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    const char* before = std::getenv(name);
    had_ = before != nullptr;
    if (had_) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { had_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_;
  std::string before_;
};

ProgramResult doctor_with_driver(const std::string& mode) {
  const Variable libraries("LD_LIBRARY_PATH", SERVELAB_FAKE_DRIVER_DIR);
  const Variable behaviour("SERVELAB_FAKE_DRIVER", mode);
  return run_program({"doctor"});
}

TEST(DoctorProgram, SaysTheSameForProgramsUnderStableNames) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program({"doctor", "--json", "--out", folder / "results"});
  EXPECT_EQ(result.err, "");
  const ConfigNode json = parse_yaml(result.out, "doctor");  // JSON is YAML
  ASSERT_NE(json.find("findings"), nullptr) << result.out;
  std::set<std::string> names;
  int problems = 0;
  for (const ConfigNode& finding : json.find("findings")->items) {
    EXPECT_TRUE(names.insert(finding.find("name")->scalar).second);
    if (finding.find("level")->scalar == "problem") ++problems;
    EXPECT_EQ(finding.find("level")->scalar == "ok", finding.find("cost")->scalar.empty());
  }
  EXPECT_THAT(names, IsSupersetOf({"build.compiler", "build.source", "tools.cmake", "python.venv",
                                   "processor.governor", "memory.size", "disk.space",
                                   "results.folder", "data.traces", "gpu.driver", "tests.slurm"}));
  EXPECT_EQ(result.code, problems == 0 ? 0 : 1);
  EXPECT_EQ(json.find("problems")->scalar, std::to_string(problems));
  EXPECT_FALSE(fs::exists(folder / "results"));  // it changes nothing
}

TEST(DoctorProgram, ResultsBelowAFileAreAProblem) {
  const TemporaryFolder folder;
  folder.file("file", "");
  const ProgramResult result = run_program({"doctor", "--out", folder / "file/results"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("cannot be written"));
}

TEST(DoctorProgram, BadInputIsAnError) {
  EXPECT_EQ(run_program({"doctor", "--jsn"}).code, 2);
  EXPECT_THAT(run_program({"doctor", "--jsn"}).err, HasSubstr("did you mean '--json'"));
}

TEST(DoctorProgram, AsksTheDriverForItsDevices) {
  const ProgramResult result = doctor_with_driver("works");
  EXPECT_THAT(result.out, HasSubstr("NVIDIA 999.01, for CUDA 13.1; 2 devices can be used"));
  EXPECT_THAT(result.out, HasSubstr("NVIDIA H100, 79.0 GiB of 80.0 GiB free"));
  EXPECT_THAT(result.out, HasSubstr("compute capability 8.6"));
  EXPECT_THAT(result.out, HasSubstr("persistence off, in use by others; 345 of 1980 MHz"));
}

TEST(DoctorProgram, SurvivesADriverThatHangsCrashesOrFails) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(doctor_with_driver("hangs").out, HasSubstr("gives no answer in 1200 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(doctor_with_driver("crashes").out, HasSubstr("its libraries crash (signal 6)"));
  EXPECT_THAT(doctor_with_driver("fails").out, HasSubstr("cuInit() fails with error 999"));
  EXPECT_THAT(doctor_with_driver("hides").out, HasSubstr("no device that may be used"));
}

}  // namespace
}  // namespace servelab::test

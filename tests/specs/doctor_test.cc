// servelab doctor as a program, on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "engine/core/config_node.h"
#include "tests/support/program.h"

namespace servelab::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

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
  EXPECT_THAT(names, IsSupersetOf({"build.type", "build.source", "tools.cmake", "python.venv",
                                   "machine.governor", "machine.memory", "results.folder",
                                   "results.space", "data.traces"}));
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

}  // namespace
}  // namespace servelab::test

// Where a launcher's variables do not make a rank of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/program.h"

namespace servelab {
namespace {

using test::Program;
using test::ProgramResult;
using ::testing::HasSubstr;

class RanksCli : public ::testing::Test {
 protected:
  ProgramResult run(const std::map<std::string, std::string>& environment,
                    const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"run", spec_, "--out", folder_ / "out"};
    words.insert(words.end(), more.begin(), more.end());
    return Program({SERVELAB_BINARY, environment}, words).wait();
  }
  const test::TemporaryFolder folder_;
  const std::string spec_ =
      folder_.file("small.yaml",
                   std::string(test::kSmallSpec) + "  requests: 20\ntechniques: [slora, punica]\n");
};

// A process whose points take no ranks runs by itself, whatever a launcher set.
TEST_F(RanksCli, PointsInVirtualTimeTakeNone) {
  const ProgramResult second = run({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, {});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("2 points: 2 run"));
  const ProgramResult half = run({{"RANK", "1"}}, {});
  EXPECT_EQ(half.code, 0) << half.err;
  EXPECT_THAT(half.out, HasSubstr("2 cached"));
}

TEST_F(RanksCli, AskedForWhereThereAreNone) {
  const ProgramResult none = run({}, {"--ranks", "processes"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no launcher has started this process"));
  const ProgramResult idle = run({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "1"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", "29500"}},
                                 {"--ranks", "processes"});
  EXPECT_EQ(idle.code, 2);
  EXPECT_THAT(idle.err, HasSubstr("no point takes several devices"));
  EXPECT_EQ(std::count(idle.err.begin(), idle.err.end(), '\n'), 1) << idle.err;
  const ProgramResult unknown = run({}, {"--ranks", "process"});
  EXPECT_EQ(unknown.code, 2);
}

}  // namespace
}  // namespace servelab

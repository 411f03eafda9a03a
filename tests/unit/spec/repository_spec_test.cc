// cluster.repository_copies in specs: what it is refused for, in one line with its place, and that
// points without it are the points that they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHead =
    "title: test\n"
    "model: llama-2-7b\n"
    "hardware: a800-80g\n"
    "workload: {requests: 30, adapters: {count: 8, ranks: [8]}, arrivals: {rate: 5},\n"
    "           lengths: {source: fixed, prompt: 16, output: 4}}\n";

class RepositorySpec : public ::testing::Test {
 protected:
  Spec load(const std::string& tail) {
    return load_spec(folder_.file("case.yaml", kHead + tail), SERVELAB_SOURCE_DIR "/experiments");
  }
  PointSettings point(const std::string& tail, std::int64_t seed = 0) {
    const Spec spec = load(tail);
    return resolve_point(spec, spec.positions.at(0), spec.techniques.at(0), seed);
  }
  std::string error_of(const std::string& tail) {
    try {
      check_spec(load(tail), "", true);
      return "(no error)";
    } catch (const SpecError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
  }
  std::string effective(const std::string& tail) {
    const PointSettings settings = point(tail);
    return canonical_json(effective_settings(settings, build_point_workload(settings, "")));
  }
  static RunRecord run(const PointSettings& settings) {
    return run_point(settings, build_point_workload(settings, "").workload).record;
  }

  test::TemporaryFolder folder_;
};

TEST_F(RepositorySpec, RefusesWhatCannotBeWithThePlaceAndARemedy) {
  EXPECT_THAT(error_of("cluster: {replicas: 2, repository_copies: 3}\ntechniques: [slora]\n"),
              AllOf(HasSubstr("case.yaml:6:"), HasSubstr("is 3, but there are 2 replicas"),
                    HasSubstr("raise cluster.replicas")));
  EXPECT_THAT(error_of("cluster: {replicas: 2}\ntechniques: [slora]\n"
                       "sweep: {cluster.repository_copies: [1, 4]}\n"),
              AllOf(HasSubstr("case.yaml:8:"), HasSubstr("is 4, but")));
  EXPECT_THAT(error_of("cluster: {replicas: 2, repository_copies: -1}\ntechniques: [slora]\n"),
              HasSubstr("'repository_copies'"));
  for (const char* technique : {"dlora", "dlora-artifact"}) {
    EXPECT_THAT(
        error_of(std::string("cluster: {replicas: 2, repository_copies: 1}\ntechniques: [") +
                 technique + "]\n"),
        AllOf(HasSubstr("case.yaml:7:"), HasSubstr("places and moves them itself"),
              HasSubstr("take another route")));
  }
  EXPECT_EQ(error_of("cluster: {replicas: 2, repository_copies: 1, route: random}\n"
                     "techniques: [dlora]\n"),
            "(no error)");
  EXPECT_THAT(
      error_of("cluster: {replicas: 2, repository_copies: 1}\ntechniques: [vllm-uniform]\n"),
      HasSubstr("each is served as a whole model; leave it out"));
}

TEST_F(RepositorySpec, OnlyPointsWithItSayAnythingOfIt) {
  const std::string without = "cluster: {replicas: 3}\ntechniques: [slora]\n";
  EXPECT_THAT(effective(without), Not(HasSubstr("repository")));
  EXPECT_THAT(effective("cluster: {replicas: 3, repository_copies: 2}\ntechniques: [slora]\n"),
              HasSubstr("\"repository_copies\":2"));
}

// One draw for all techniques of a seed, another for another seed.
TEST_F(RepositorySpec, GroupsAreOfTheSeed) {
  const std::string tail = "cluster: {replicas: 4, repository_copies: 1}\ntechniques: [";
  const auto groups = [](const RunRecord& record) {
    std::vector<std::vector<AdapterId>> found;
    for (const Unit& unit : record.deployment.units) found.push_back(unit.repository.value());
    return found;
  };
  const RunRecord slora = run(point(tail + "slora]\n"));
  EXPECT_EQ(groups(slora), groups(run(point(tail + "punica]\n"))));
  EXPECT_NE(groups(slora), groups(run(point(tail + "slora]\n", 1))));
  EXPECT_EQ(slora.invalid_reasons, std::vector<std::string>{});
}

}  // namespace
}  // namespace servelab

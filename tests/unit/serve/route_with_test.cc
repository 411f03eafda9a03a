// Parameters of cluster policies in specs: `route_with` of an entry, and `cluster.route_with` for
// all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab {

// Has parameters, which no policy without them can stand for.
class TunedRoute final : public ClusterPolicy {
 public:
  std::string summary() const override { return "for the tests of route_with"; }
  void fields(ParamFields& f) override {
    f.add("threshold", &threshold_, "a number").range(0, 10);
    f.add("patience", &patience_, "a whole number").range(1, 100);
  }
  // Shows its parameters: no replica is chosen.
  ReplicaId route(const RoutedRequest&, const ClusterView&) override {
    return static_cast<ReplicaId>(static_cast<int>(threshold_ * 100) + patience_);
  }

 private:
  double threshold_ = 1.5;
  int patience_ = 7;
};

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kExperiments = SERVELAB_SOURCE_DIR "/experiments";
constexpr const char* kHead =
    "title: test\n"
    "model: llama-2-7b\n"
    "hardware: a800-80g\n"
    "workload: {requests: 20, adapters: {count: 4, ranks: [8]}, arrivals: {rate: 5},\n"
    "           lengths: {source: fixed, prompt: 16, output: 4}}\n";  // 5 lines

class RouteWith : public ::testing::Test {
 protected:
  Spec load(const std::string& tail) {
    return load_spec(folder_.file("case.yaml", kHead + tail), kExperiments);
  }
  PointSettings point(const std::string& tail, std::size_t entry = 0, std::size_t position = 0) {
    const Spec spec = load(tail);
    return resolve_point(spec, spec.positions.at(position), spec.techniques.at(entry), 0);
  }
  // "threshold patience" of the policy that a run of the point would get.
  static std::string params_of(const PointSettings& point) {
    const auto policy = point_cluster_policy(point);
    const int shown = static_cast<int>(index(policy->route({}, ClusterView())));
    return std::to_string(shown / 100) + " " + std::to_string(shown % 100);
  }
  std::string key_of(const std::string& tail) {
    const PointSettings settings = point(tail);
    const BuiltWorkload workload = build_point_workload(settings, "");
    return point_key(effective_settings(settings, workload), workload);
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

  test::TemporaryFolder folder_;
};

TEST_F(RouteWith, AnEntryAndTheClusterSetParameters) {
  const std::string tuned = "techniques: [{technique: slora, route: test-tuned";
  EXPECT_EQ(params_of(point(tuned + "}]\n")), "1 57");  // 1.5 and 7
  EXPECT_EQ(params_of(point(tuned + ", route_with: {threshold: 3}}]\n")), "3 7");
  const std::string all = "cluster: {route_with: {threshold: 2, patience: 9}}\n";
  EXPECT_EQ(params_of(point(tuned + "}]\n" + all)), "2 9");
  EXPECT_EQ(params_of(point(tuned + ", route_with: {threshold: 4}}]\n" + all)), "4 9")
      << "the entry's own counts, parameter by parameter";
  EXPECT_EQ(params_of(point(
                "cluster: {route: test-tuned, route_with: {patience: 3}}\ntechniques: [slora]\n")),
            "1 53");
}

TEST_F(RouteWith, PoliciesWithoutAParameterAreLeftAlone) {
  const std::string tail =
      "cluster: {route_with: {patience: 3}}\n"
      "techniques: [{technique: slora, label: a, route: test-tuned},\n"
      "             {technique: slora, label: b, route: round-robin}]\n";
  EXPECT_EQ(params_of(point(tail, 0)), "1 53");
  const PointSettings other = point(tail, 1);
  EXPECT_EQ(other.route, "round-robin");
  EXPECT_TRUE(other.route_params.members.empty());
  EXPECT_EQ(error_of(tail), "(no error)");
}

TEST_F(RouteWith, CanBeSwept) {
  const std::string tail =
      "techniques: [{technique: slora, route: test-tuned}]\n"
      "sweep: {cluster.route_with.threshold: [2, 5]}\n";
  EXPECT_EQ(load(tail).positions.size(), 2u);
  EXPECT_EQ(params_of(point(tail, 0, 0)), "2 7");
  EXPECT_EQ(params_of(point(tail, 0, 1)), "5 7");
  EXPECT_EQ(error_of(tail), "(no error)");
}

TEST_F(RouteWith, IsRecordedAndDecidesTheKey) {
  const std::string tuned = "techniques: [{technique: slora, route: test-tuned";
  const PointSettings settings = point(tuned + ", route_with: {threshold: 3}}]\n");
  const BuiltWorkload workload = build_point_workload(settings, "");
  const ConfigNode effective = effective_settings(settings, workload);
  const ConfigNode* recorded = effective.find("cluster")->find("route_with");
  ASSERT_NE(recorded, nullptr);
  EXPECT_EQ(recorded->find("threshold")->scalar, "3");
  EXPECT_EQ(recorded->find("patience")->scalar, "7") << "a default is recorded too";
  const ConfigNode* asked = settings.requested.find("technique")->find("route_with");
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->members.size(), 1u) << "what was asked for, and no more";

  const std::string key = key_of(tuned + "}]\n");
  EXPECT_EQ(key, key_of(tuned + ", route_with: {threshold: 1.5}}]\n")) << "the default";
  EXPECT_EQ(key, key_of(tuned + "}]\ncluster: {route_with: {patience: 7}}\n"));
  EXPECT_NE(key, key_of(tuned + ", route_with: {threshold: 3}}]\n"));
  EXPECT_NE(key, key_of(tuned + "}]\ncluster: {route_with: {patience: 8}}\n"));
  EXPECT_EQ(key_of(tuned + ", route_with: {patience: 8}}]\n"),
            key_of(tuned + "}]\ncluster: {route_with: {patience: 8}}\n"));
}

TEST_F(RouteWith, MistakesAreToldWithPlaceAndRemedy) {
  const std::string tuned = "techniques: [{technique: slora, route: test-tuned";
  EXPECT_THAT(error_of(tuned + ", route_with: {treshold: 3}}]\n"),
              testing::AllOf(HasSubstr("case.yaml:6:"), HasSubstr("'test-tuned'"),
                             HasSubstr("'treshold'"), HasSubstr("did you mean 'threshold'?")));
  EXPECT_THAT(error_of(tuned + ", route_with: {threshold: 11}}]\n"),
              testing::AllOf(HasSubstr("case.yaml:6:"), HasSubstr("'threshold'"),
                             HasSubstr("<= 10"), HasSubstr("got '11'")));
  EXPECT_THAT(error_of(tuned + ", route_with: {patience: often}}]\n"),
              testing::AllOf(HasSubstr("'patience'"), HasSubstr("got 'often'")));
  EXPECT_THAT(error_of(tuned + ", route_with: [3]}]\n"),
              testing::AllOf(HasSubstr("case.yaml:6:"), HasSubstr("'route_with' must be a map")));
  EXPECT_THAT(error_of(tuned + "}]\ncluster: {route_with: 3}\n"),
              testing::AllOf(HasSubstr("case.yaml:7:"), HasSubstr("'route_with' must be a map")));
  EXPECT_THAT(error_of(tuned + "}]\ncluster: {route_with: {patiense: 3}}\n"),
              testing::AllOf(HasSubstr("case.yaml:7:"),
                             HasSubstr("no cluster policy of this spec has a parameter 'patiense'"),
                             HasSubstr("did you mean 'patience'?")));
  EXPECT_THAT(error_of(tuned + "}]\ncluster: {route_with: {patience: 0}}\n"),
              testing::AllOf(HasSubstr("case.yaml:7:"), HasSubstr("'patience'")));
  EXPECT_THAT(error_of(tuned + "}]\nsweep: {cluster.route_with.patiense: [3]}\n"),
              testing::AllOf(HasSubstr("case.yaml:7:"), HasSubstr("did you mean 'patience'?")));
  EXPECT_THAT(error_of("techniques: [{technique: slora, route_with: {patience: 3}}]\n"),
              testing::AllOf(HasSubstr("case.yaml:6:"), HasSubstr("'patience'")))
      << "the technique's own policy has no parameters";
}

}  // namespace
}  // namespace servelab

SERVELAB_CLUSTER_POLICY("test-tuned", TunedRoute)

// The decision log of a small run of every technique, as text in tests/golden: a change of
// behaviour shows in the diff. To accept one: SERVELAB_UPDATE_GOLDEN=1 build/tests/servelab_tests
// --gtest_filter='*Golden*', then review the diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, DecisionLogIsAsReviewed) {
  test::WorkloadShape shape;
  shape.requests = 12;
  shape.adapters = 4;
  shape.rate_per_s = 400;
  shape.max_prompt = 60;
  shape.max_output = 8;
  test::RunOptions options;
  options.technique = GetParam();
  options.engine.limits = {.max_batch = 4, .max_batch_tokens = 128};
  options.engine.adapter_slots = 3;
  options.kv_blocks = 14;
  options.record.decision_text = true;
  const RunRecord record = test::run(test::make_workload(shape, 11), options);

  const std::string path =
      std::string(SERVELAB_SOURCE_DIR) + "/tests/golden/" + GetParam() + ".log";
  if (std::getenv("SERVELAB_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << record.decisions;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path << " is missing; SERVELAB_UPDATE_GOLDEN=1 makes it";
  std::ostringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(record.decisions, expected.str());
}

INSTANTIATE_TEST_SUITE_P(Techniques, Golden,
                         ::testing::Values("caraserve", "dlora", "dlora-artifact", "merged-only",
                                           "null", "peft", "peft-2023", "punica", "slora",
                                           "template", "unmerged-only", "vllm-lora",
                                           "vllm-uniform"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace servelab

// The operators' times as data/fit_hardware.py asks for them.
#include "engine/calibrate/op_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "engine/backend/cost/op_cost.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kProfile = SERVELAB_SOURCE_DIR "/experiments/base/hardware/h100-80g.yaml";

// The lines that are answered.
std::vector<std::string> answers(const std::string& op, const std::string& text) {
  std::istringstream in(text);
  std::ostringstream out;
  answer_op_times({op, kProfile}, in, out);
  std::vector<std::string> lines;
  std::istringstream said(out.str());
  for (std::string line; std::getline(said, line);) lines.push_back(line);
  return lines;
}

double only(const std::string& op, const std::string& shape) {
  const std::vector<std::string> lines = answers(op, shape + "\n\n{}\n");
  EXPECT_EQ(lines.size(), 1u);
  return lines.empty() ? 0 : std::stod(lines[0]);
}

TEST(OpTimes, AreThoseOfTheCostModel) {
  const HardwareProfile hw = load_hardware_profile(kProfile);
  EXPECT_EQ(only("gemm", "33,4096,11008"), gemm_us(hw, 33, 4096, 11008));
  // Three requests with 100 new tokens each behind 7000.
  EXPECT_EQ(only("prefill", "3,100,7000,32,8,128"),
            PrefillAttention(hw, 32, 8, 128).us(3, 300, 3 * (700'000 + 5050), 21'300));
  EXPECT_EQ(only("decode", "4,1000,32,8,128"),
            DecodeAttention(hw, 32, 8, 128).us(4, 4000, KvResidency::kMaybeL2));
  EXPECT_EQ(only("all_reduce", "8,1048576"), all_reduce_us(hw, 8, 1048576));
  EXPECT_EQ(only("elementwise", "1e6"), elementwise_us(hw, 1e6));
}

TEST(OpTimes, ConstantsAreSetOneLineAfterTheOther) {
  HardwareProfile hw = load_hardware_profile(kProfile);
  const std::vector<std::string> lines =
      answers("elementwise",
              "1e6\n2e9\n\n{launch_us: 100}\n{bandwidth_fraction: 0.25}\n{x: 1}\n"
              "{bandwidth_fraction: 2}\n{}\n");
  ASSERT_EQ(lines.size(), 5u);
  hw.elementwise.launch_us = 100;
  std::istringstream first(lines[0]);
  double small = 0, large = 0;
  first >> small >> large;
  EXPECT_EQ(small, elementwise_us(hw, 1e6));
  EXPECT_EQ(large, elementwise_us(hw, 2e9));
  hw.elementwise.bandwidth_fraction = 0.25;
  EXPECT_EQ(std::stod(lines[1]), elementwise_us(hw, 1e6));
  EXPECT_THAT(lines[2], StartsWith("refused: "));
  EXPECT_THAT(lines[3], StartsWith("refused: "));
  EXPECT_EQ(lines[4], lines[1]);
}

TEST(OpTimes, BadQuestionsAreErrors) {
  EXPECT_THAT(error_of([] { answers("gem", ""); }), HasSubstr("did you mean 'gemm'"));
  EXPECT_THAT(error_of([] { answers("gemm", "1,2\n"); }), HasSubstr("shape 1: '1,2' is not 3"));
  EXPECT_THAT(error_of([] { answers("gemm", "1,2,3\n1,2,x\n"); }), HasSubstr("shape 2"));
  EXPECT_THAT(error_of([] { answers("gemm", "1,2,3,\n"); }), HasSubstr("shape 1"));
  EXPECT_THAT(error_of([] { answers("gemm", "1,2,3x\n"); }), HasSubstr("shape 1"));
}

}  // namespace
}  // namespace servelab

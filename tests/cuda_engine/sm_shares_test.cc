// Steps on a part of the device's SMs, and several models on one device.
#include "engine/backend/cuda/sm_shares.h"

#include "engine/backend/device/accelerator.h"
#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

// Ten groups of eight SMs and four beyond, as an H100 with fewer.
class TenGroups final : public cuda::SmGroups {
 public:
  int groups() const override { return 10; }
  int sms_per_group() const override { return 8; }
  int sms() const override { return 84; }
  cudaStream_t stream(int begin, int count) override {
    places.emplace_back(begin, count);
    return nullptr;
  }
  std::vector<std::pair<int, int>> places;
};

TEST(SmShares, AShareIsTheNearestNumberOfGroups) {
  cuda::SmShares shares(std::make_unique<TenGroups>());
  const auto sms = [&](double share) { return shares.take(share, 0)->sms(); };
  EXPECT_EQ(sms(0.01), 8);
  EXPECT_EQ(sms(0.3), 24);  // 25.2 asked
  EXPECT_EQ(sms(0.5), 40);  // 42
  EXPECT_EQ(sms(0.53), 48);
  EXPECT_EQ(sms(1), 80);
}

TEST(SmShares, GrantsAreApartWhileThereIsRoomAndThenOverlapLeast) {
  cuda::SmShares shares(std::make_unique<TenGroups>());
  const auto first = shares.take(0.38, 0);  // 4 groups
  const auto second = shares.take(0.38, 0);
  EXPECT_EQ(first->begin(), 0);
  EXPECT_EQ(second->begin(), 4);
  const auto third = shares.take(0.38, 0);  // two groups are left
  EXPECT_EQ(third->begin(), 6);
  const auto fourth = shares.take(0.19, 0);
  EXPECT_EQ(fourth->begin(), 0);
}

TEST(SmShares, AGrantComesBackToWhereItWasUnlessThatIsTaken) {
  cuda::SmShares shares(std::make_unique<TenGroups>());
  auto low = shares.take(0.38, 0);
  auto high = shares.take(0.38, 0);
  low.reset();
  high.reset();
  high = shares.take(0.38, 4);
  EXPECT_EQ(high->begin(), 4);
  low = shares.take(0.38, 4);
  EXPECT_EQ(low->begin(), 0);
}

class CudaShares : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
    plan_ = small_plan(DType::kBf16);
    plan_.partitions = {find_accelerator("cuda")->partition(0)};
  }
  DevicePlan plan_;
};

TEST_F(CudaShares, AStepComputesTheSameOnAPartOfTheDevice) {
  Engines engines(plan_);
  const auto whole = generate(engines.cuda.get(), nth(2), {1});
  for (const auto& shares : std::vector<std::vector<double>>{{0.5}, {0.25, 1, 0.75}}) {
    const auto part = generate(engines.cuda.get(), nth(2), shares);
    for (std::size_t step = 0; step < whole.size(); ++step) {
      EXPECT_LT(difference(part[step], whole[step]), tolerance(DType::kBf16)) << "step " << step;
    }
  }
}

TEST_F(CudaShares, ADeviceThatWasNotSetUpForSharesRefusesThem) {
  const DevicePlan alone = small_plan(DType::kBf16);
  const Engines engines(alone);
  StepPlan step;
  EXPECT_EQ(engines.cuda->unsupported(step), nullptr);
  step.device_share = 0.5;
  EXPECT_STREQ(engines.cuda->unsupported(step),
               "this device was not set up for shares of its SMs: set engine.device_share");
  const Engines sharing(plan_);
  EXPECT_EQ(sharing.cuda->unsupported(step), nullptr);
}

}  // namespace
}  // namespace servelab

// Steps on a part of the device's SMs, and several models on one device.
#include "engine/backend/cuda/sm_shares.h"

#include <map>
#include <set>

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
  cudaStream_t take_stream(int begin, int count) override {
    std::vector<cudaStream_t>& free = free_[{begin, count}];
    if (free.empty()) return reinterpret_cast<cudaStream_t>(++made_);
    cudaStream_t stream = free.back();
    free.pop_back();
    return stream;
  }
  void give_back(int begin, int count, cudaStream_t stream) override {
    free_[{begin, count}].push_back(stream);
  }
  void in_context(int begin, int count, const std::function<void()>& make) override {
    entered.emplace_back(begin, count);
    make();
  }
  std::vector<std::pair<int, int>> entered;

 private:
  std::uintptr_t made_ = 0;
  std::map<std::pair<int, int>, std::vector<cudaStream_t>> free_;
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

// MuxServe lets steps overlap: on one stream the second would wait for the first.
TEST(SmShares, OverlappingGrantsHaveStreamsOfTheirOwnWhichAreUsedAgain) {
  cuda::SmShares shares(std::make_unique<TenGroups>());
  auto first = shares.take(1, 0);
  auto second = shares.take(1, 0);
  EXPECT_EQ(first->begin(), second->begin());
  EXPECT_EQ(first->count(), second->count());
  const cudaStream_t a = first->stream();
  const cudaStream_t b = second->stream();
  EXPECT_NE(a, b);
  first.reset();
  second.reset();
  first = shares.take(1, 0);
  second = shares.take(1, 0);
  EXPECT_EQ((std::set{first->stream(), second->stream()}), (std::set{a, b}));
}

TEST(SmShares, EventsAreMadeInTheContextOfTheirGroups) {
  auto groups = std::make_unique<TenGroups>();
  TenGroups* const seen = groups.get();
  cuda::SmShares shares(std::move(groups));
  const auto low = shares.take(0.38, 0);
  const auto high = shares.take(0.38, 0);
  int made = 0;
  high->in_context([&] { ++made; });
  low->in_context([&] { ++made; });
  EXPECT_EQ(made, 2);
  EXPECT_EQ(seen->entered, (std::vector<std::pair<int, int>>{{4, 4}, {0, 4}}));
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

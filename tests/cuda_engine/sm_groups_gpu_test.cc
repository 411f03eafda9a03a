// Green contexts on a real device: blocks of a confined stream stay on its SMs.
#include <set>

#include "engine/backend/cuda/sm_groups.h"
#include "engine/backend/cuda/step_timer.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/sm_ids.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

std::set<int> used_sms(cudaStream_t stream, int blocks) {
  cuda::Arena arena(static_cast<std::size_t>(blocks) * sizeof(int));
  int* const ids = arena.take_array<int>(static_cast<std::size_t>(blocks));
  cuda::check(sm_ids(ids, blocks, stream), "asking blocks where they are");
  std::vector<int> host(static_cast<std::size_t>(blocks));
  cuda::check(
      cudaMemcpyAsync(host.data(), ids, host.size() * sizeof(int), cudaMemcpyDeviceToHost, stream),
      "copying");
  cuda::check(cudaStreamSynchronize(stream), "waiting");
  return {host.begin(), host.end()};
}

TEST(SmGroups, BlocksStayOnTheirGroupsAndGroupsAreApart) {
  const std::string reason = no_device();
  if (!reason.empty()) GTEST_SKIP() << reason;
  cuda::check(cudaSetDevice(0), "choosing the device");
  const auto groups = cuda::make_sm_groups(0);
  ASSERT_GE(groups->groups(), 2);
  const int half = groups->groups() / 2;
  const int blocks = 8 * groups->sms();
  const auto lower = used_sms(groups->take_stream(0, half), blocks);
  const auto upper = used_sms(groups->take_stream(half, half), blocks);
  const auto single = used_sms(groups->take_stream(0, 1), blocks);
  EXPECT_EQ(static_cast<int>(lower.size()), half * groups->sms_per_group());
  EXPECT_EQ(static_cast<int>(upper.size()), half * groups->sms_per_group());
  EXPECT_EQ(static_cast<int>(single.size()), groups->sms_per_group());
  for (const int id : upper) EXPECT_EQ(lower.count(id), 0u) << "SM " << id;
  for (const int id : single) EXPECT_EQ(lower.count(id), 1u) << "SM " << id;
  EXPECT_NE(groups->take_stream(0, half), groups->take_stream(0, half));
}

TEST(SmGroups, EventsOfAContextTimeItsStreams) {
  const std::string reason = no_device();
  if (!reason.empty()) GTEST_SKIP() << reason;
  cuda::check(cudaSetDevice(0), "choosing the device");
  cuda::SmShares shares(cuda::make_sm_groups(0));
  cuda::StepStream stream(shares.sms(), std::shared_ptr<cuda::SmShares>(&shares, [](auto*) {}));
  cuda::StepTimer timer;
  for (const double share : {1.0, 0.5, 0.25, 1.0, 0.5}) {
    const auto confined = stream.confine(share);
    timer.begin(stream, true);
    used_sms(stream.get(), 1024);
    timer.lap(cuda::StepTimer::Part::kLora);
    timer.end();
    stream.synchronize();
    EXPECT_GT(timer.read().lora, 0) << share;
  }
}

}  // namespace
}  // namespace servelab

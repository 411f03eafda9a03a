// Several models on one device, each with its share of the SMs, led by threads of their own.
#include <thread>

#include "engine/backend/device/accelerator.h"
#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

TEST(CudaModels, SeveralComputeAtOnceOnOneDevice) {
  const std::string reason = no_device();
  if (!reason.empty()) GTEST_SKIP() << reason;
  DevicePlan plan = small_plan(DType::kBf16);
  plan.partitions = {find_accelerator("cuda")->partition(0)};
  Engines first(plan);
  ModelConfig other = small_model();
  other.name = "other";
  other.layers = 2;
  other.ffn = 256;
  const auto weights = random_weights(other, 8);
  cuda::CudaDevice second(other, *weights, plan);
  const auto alone = generate(first.cuda.get(), nth(1), {0.5});
  const auto alone_too = generate(&second, kBaseModel, {0.25});
  std::vector<std::vector<float>> together, together_too;
  std::thread beside([&] {
    for (int i = 0; i < 3; ++i) together_too = generate(&second, kBaseModel, {0.25});
  });
  for (int i = 0; i < 3; ++i) {
    together = generate(first.cuda.get(), nth(1), {0.5});
  }
  beside.join();
  EXPECT_EQ(together, alone);
  EXPECT_EQ(together_too, alone_too);
}

}  // namespace
}  // namespace servelab

#include "kernels/cuda/elementwise.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

class RmsNormTest : public DeviceTypeTest {};

TEST_P(RmsNormTest, AgreesWithTheReference) {
  Random random(1);
  constexpr float kEps = 1e-5f;
  for (const auto& [rows, n] : {std::pair{1, 16}, {3, 64}, {5, 260}, {2, 4096}, {7, 1028}}) {
    const auto count = static_cast<std::size_t>(rows * n);
    const std::vector<float> x = random.reals(count, 3);
    const std::vector<float> weight = random.reals(static_cast<std::size_t>(n), 2);
    const DeviceVector<float> device_x(x);
    const DeviceVector<float> device_weight(weight);
    const DeviceTensor out(type(), count);
    ASSERT_EQ(
        rms_norm(device_x.get(), device_weight.get(), kEps, n, type(), out.data(), rows, stream),
        cudaSuccess);
    std::vector<float> expected(count);
    ref::rms_norm(x.data(), n, weight.data(), kEps, n, DType::kF32, expected.data(), n, rows);
    const std::vector<float> got = out.values();
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(close(got[i], expected[i], type()));
    EXPECT_TRUE(out.intact());
  }
}

TEST_P(RmsNormTest, NothingToDoAndWhatItCannotDo) {
  const DeviceVector<float> x(std::size_t{16});
  EXPECT_EQ(rms_norm(x.get(), x.get(), 0, 16, type(), x.data(), 0, stream), cudaSuccess);
  EXPECT_EQ(rms_norm(x.get(), x.get(), 0, 15, type(), x.data(), 1, stream), cudaErrorNotSupported);
  EXPECT_EQ(rms_norm(x.get(), x.get(), 0, 16, DType::kF32, x.data(), 1, stream),
            cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(RmsNormTest);

}  // namespace
}  // namespace servelab::kernels::cuda

#include <tuple>

#include "tests/gpu/lora_adapter.h"

namespace servelab::kernels::cuda {
namespace {

class LoraMergeTest : public DeviceTypeTest {};

TEST_P(LoraMergeTest, AddsTheProduct) {
  Random random(25);
  for (const auto& [rank, width, out, in] : {std::tuple{1, 8, 64, 64},
                                             {8, 8, 128, 192},
                                             {13, 16, 64, 320},
                                             {100, 128, 64, 128},
                                             {20, 24, 24, 104},
                                             {3, 8, 67, 136}}) {
    const LoraAdapter adapter(type(), in, out, rank, width, random);
    std::vector<float> w = random.reals(static_cast<std::size_t>(out * in));
    const DeviceTensor device_w(type(), w);
    const DeviceTensor merged(type(), w.size());
    ASSERT_EQ(lora_merge(type(), adapter.pair(), out, in, device_w.data(), merged.data(), stream),
              cudaSuccess);
    const std::vector<float> got = merged.values();
    EXPECT_TRUE(merged.intact());
    EXPECT_EQ(device_w.values(), w) << "the base weights changed";
    for (int o = 0; o < out; ++o) {
      for (int k = 0; k < in; ++k) {
        double sum = 0;
        for (int r = 0; r < rank; ++r) {
          sum += double{adapter.b[static_cast<std::size_t>(o * width + r)]} *
                 adapter.a[static_cast<std::size_t>(r * in + k)];
        }
        const auto i = static_cast<std::size_t>(o * in + k);
        ASSERT_TRUE(close(got[i], static_cast<float>(w[i] + kLoraScale * sum), type(), rank));
      }
    }
    ASSERT_EQ(lora_merge(type(), adapter.pair(), out, in, device_w.data(), device_w.data(), stream),
              cudaSuccess);
    EXPECT_EQ(device_w.values(), got) << "in place";
  }
}

TEST_P(LoraMergeTest, CopiesWithoutARankAndChecksShapes) {
  Random random(26);
  std::vector<float> w = random.reals(64 * 64);
  const DeviceTensor device_w(type(), w);
  const DeviceTensor merged(type(), w.size());
  ASSERT_EQ(lora_merge(type(), {}, 64, 64, device_w.data(), merged.data(), stream), cudaSuccess);
  EXPECT_EQ(merged.values(), w);
  EXPECT_EQ(lora_merge(type(), {}, 64, 60, device_w.data(), merged.data(), stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(lora_merge(DType::kF32, {}, 64, 64, device_w.data(), merged.data(), stream),
            cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(LoraMergeTest);

}  // namespace
}  // namespace servelab::kernels::cuda

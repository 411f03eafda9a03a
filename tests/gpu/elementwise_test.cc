#include "kernels/cuda/elementwise.h"

#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

class ElementwiseTest : public DeviceTypeTest {};

TEST_P(ElementwiseTest, EmbedCopiesRowsAndZeroesPadding) {
  Random random(1);
  for (const int hidden : {8, 72, 1024}) {
    std::vector<float> table = random.reals(static_cast<std::size_t>(11 * hidden));
    const DeviceTensor device_table(type(), table);
    const std::vector<std::int32_t> ids = {3, -1, 10, 0, 3, -1};
    const DeviceVector<std::int32_t> device_ids(ids);
    const DeviceVector<float> out(ids.size() * static_cast<std::size_t>(hidden));
    ASSERT_EQ(embed(type(), device_table.data(), device_ids.get(), static_cast<int>(ids.size()),
                    hidden, out.get(), stream),
              cudaSuccess);
    const std::vector<float> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto row = i / static_cast<std::size_t>(hidden);
      const auto column = i % static_cast<std::size_t>(hidden);
      const std::int32_t id = ids[row];
      const auto from = static_cast<std::size_t>(id) * static_cast<std::size_t>(hidden) + column;
      ASSERT_EQ(got[i], id < 0 ? 0.0f : table[from]);
    }
    EXPECT_TRUE(out.intact());
  }
}

TEST_P(ElementwiseTest, SwigluAgreesWithTheReference) {
  Random random(2);
  for (const auto& [rows, n] : {std::pair{1, 8}, {3, 176}, {5, 1368}}) {
    std::vector<float> gate_up = random.reals(static_cast<std::size_t>(2 * rows * n), 6);
    const DeviceTensor device(type(), gate_up);
    const DeviceTensor out(type(), static_cast<std::size_t>(rows * n));
    ASSERT_EQ(swiglu(type(), device.data(), n, out.data(), rows, stream), cudaSuccess);
    std::vector<float> expected(static_cast<std::size_t>(rows * n));
    ref::swiglu(gate_up.data(), gate_up.data() + n, 2 * n, n, DType::kF32, expected.data(), n,
                rows);
    const std::vector<float> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(close(got[i], expected[i], type()));
    EXPECT_TRUE(out.intact());
  }
}

TEST_P(ElementwiseTest, RefusesWidthsThatAreNotWholeVectors) {
  const DeviceVector<float> any(std::size_t{64});
  EXPECT_EQ(embed(type(), any.data(), nullptr, 1, 12, any.get(), stream), cudaErrorNotSupported);
  EXPECT_EQ(swiglu(type(), any.data(), 12, any.data(), 1, stream), cudaErrorNotSupported);
  EXPECT_EQ(gather_rows(any.get(), nullptr, 1, 6, any.get(), stream), cudaErrorNotSupported);
  EXPECT_EQ(swiglu(DType::kF32, any.data(), 8, any.data(), 1, stream), cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(ElementwiseTest);

class GatherRowsTest : public DeviceTest {};

TEST_F(GatherRowsTest, CopiesRowsAndZeroesPadding) {
  Random random(3);
  constexpr int kWidth = 36;
  const std::vector<float> x = random.reals(std::size_t{7 * kWidth});
  const std::vector<std::int32_t> rows = {6, 0, -1, 3, 3};
  const DeviceVector<float> device_x(x);
  const DeviceVector<std::int32_t> device_rows(rows);
  const DeviceVector<float> out(rows.size() * kWidth);
  ASSERT_EQ(gather_rows(device_x.get(), device_rows.get(), static_cast<int>(rows.size()), kWidth,
                        out.get(), stream),
            cudaSuccess);
  const std::vector<float> got = out.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::int32_t row = rows[i / kWidth];
    const auto from = static_cast<std::size_t>(row) * kWidth + i % kWidth;
    ASSERT_EQ(got[i], row < 0 ? 0.0f : x[from]);
  }
  EXPECT_TRUE(out.intact());
}

class FillRandomTest : public DeviceTest {};

TEST_F(FillRandomTest, IsTheTensorOfTheFormula) {
  constexpr std::uint64_t kKey = 0x1234567890abcdefull;
  constexpr std::int64_t kFirst = 5'000'000'000;
  constexpr std::size_t kCount = 1001;
  for (const RandomKind kind : {RandomKind::kBell, RandomKind::kUniform}) {
    const float step = random_step(kind, 0.02);
    for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
      const DeviceTensor out(type, kCount);
      ASSERT_EQ(fill_random(kind, type, kKey, step, kFirst, out.data(), kCount, stream),
                cudaSuccess);
      const std::vector<float> got = out.values();
      for (std::size_t i = 0; i < kCount; ++i) {
        float expected = to_float(
            to_bf16(random_value(kind, kKey, static_cast<std::uint64_t>(kFirst) + i, step)));
        if (type == DType::kF16) expected = to_float(to_f16(expected));
        ASSERT_TRUE(same_bits(got[i], expected)) << i << ": " << got[i] << " " << expected;
      }
      EXPECT_TRUE(out.intact());
    }
  }
}

}  // namespace
}  // namespace servelab::kernels::cuda

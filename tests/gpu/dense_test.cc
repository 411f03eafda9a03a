#include "kernels/cuda/dense.h"

#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

struct Shape {
  int m;
  int n;
  int k;
};

class DenseTest : public DeviceTypeTest {
 protected:
  // One product with gaps between rows; y's previous content is added to when `add`.
  void check(Dense& dense, const Shape& shape, DType y_type, bool add, Random& random) const {
    const auto [m, n, k] = shape;
    const std::int64_t ldx = k + 8;
    const std::int64_t ldy = n + 8;
    std::vector<float> x = random.reals(static_cast<std::size_t>(m * ldx));
    std::vector<float> w = random.reals(static_cast<std::size_t>(n) * static_cast<std::size_t>(k));
    std::vector<float> y = random.reals(static_cast<std::size_t>(m * ldy));
    const DeviceTensor device_x(type(), x);
    const DeviceTensor device_w(type(), w);
    const DeviceTensor device_y(y_type, y);
    for (int repeat = 0; repeat < 2; ++repeat) {  // chosen, then remembered
      ASSERT_EQ(dense.multiply(type(), device_x.data(), ldx, device_w.data(), m, n, k, y_type,
                               device_y.data(), ldy, add, stream),
                cudaSuccess);
    }
    const std::vector<float> got = device_y.values();
    EXPECT_TRUE(device_y.intact());
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < ldy; ++j) {
        const auto at = static_cast<std::size_t>(i * ldy + j);
        float expected = 0;
        for (int l = 0; l < k && j < n; ++l) {
          expected += x[static_cast<std::size_t>(i * ldx + l)] *
                      w[static_cast<std::size_t>(j) * static_cast<std::size_t>(k) +
                        static_cast<std::size_t>(l)];
        }
        if (add) expected = y[at] + 2 * expected;
        if (j >= n) expected = y[at];  // a gap
        // y is rounded between the two sums.
        ASSERT_TRUE(close(got[at], expected, y_type, std::sqrt(static_cast<float>(k)),
                          add && j < n ? 1e-5f + rounding(y_type) : 1e-5f))
            << i << " " << j;
      }
    }
  }
};

TEST_P(DenseTest, AgreesWithTheDefinition) {
  Random random(13);
  const DeviceMemory workspace(std::size_t{32} << 20);
  for (const DenseChoice choice : {DenseChoice::kTimed, DenseChoice::kHeuristic}) {
    const std::unique_ptr<Dense> dense = make_dense(workspace.data(), workspace.bytes(), choice);
    ASSERT_NE(dense, nullptr);
    for (const Shape& shape : {Shape{1, 64, 64}, Shape{3, 136, 256}, Shape{4, 136, 256},
                               Shape{65, 72, 128}, Shape{130, 256, 512}}) {
      for (const bool add : {false, true}) {
        check(*dense, shape, DType::kF32, add, random);
        check(*dense, shape, type(), add, random);
      }
    }
    EXPECT_TRUE(workspace.intact());
  }
}

TEST_P(DenseTest, TheReferenceAgreesWithTheDefinition) {
  Random random(14);
  const std::unique_ptr<Dense> dense = make_reference_dense();
  for (const bool add : {false, true}) {
    check(*dense, {5, 131, 70}, DType::kF32, add, random);
    check(*dense, {5, 131, 70}, type(), add, random);
  }
}

TEST_P(DenseTest, NothingToDoAndWhatItCannotDo) {
  const DeviceMemory workspace(1 << 20);
  const std::unique_ptr<Dense> dense = make_dense(workspace.data(), workspace.bytes());
  ASSERT_NE(dense, nullptr);
  const auto multiply = [&](DType x_type, int m, DType y_type) {
    return dense->multiply(x_type, nullptr, 8, nullptr, m, 8, 8, y_type, nullptr, 8, false, stream);
  };
  EXPECT_EQ(multiply(type(), 0, type()), cudaSuccess);
  EXPECT_EQ(multiply(DType::kF32, 1, DType::kF32), cudaErrorNotSupported);
  const DType other = type() == DType::kBf16 ? DType::kF16 : DType::kBf16;
  EXPECT_EQ(multiply(type(), 1, other), cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(DenseTest);

}  // namespace
}  // namespace servelab::kernels::cuda

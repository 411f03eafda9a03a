#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

class ElementwiseTest : public KernelTest {
 protected:
  // Within a rounding of the output type, and `relative` before it.
  void expect_near(const void* got, const std::vector<float>& expected, std::int64_t ld, int width,
                   float relative) const {
    const float unit = type() == DType::kBf16 ? 1.0f / 128 : 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (static_cast<std::int64_t>(i) % ld >= width) continue;
      const float value = ref::load(type(), got, static_cast<std::int64_t>(i));
      ASSERT_NEAR(value, expected[i], std::fabs(expected[i]) * (relative + unit) + 1e-6f) << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest, every_isa_and_type(), parameter_name);

TEST_P(ElementwiseTest, RmsNorm) {
  Random random(5);
  for (const int n : {1, 15, 16, 33, 768}) {
    const int rows = random.whole(0, 9);
    const std::int64_t ldx = n + 3;
    const std::int64_t ldo = n + 5;
    Guarded x(static_cast<std::size_t>(rows * ldx) * 4);
    fill(x, DType::kF32, rows, n, ldx, random, 3);
    const std::vector<float> weight = random.reals(static_cast<std::size_t>(n));
    Guarded out(static_cast<std::size_t>(rows * ldo) * bytes_of(type()));
    std::vector<float> expected(static_cast<std::size_t>(rows * ldo));
    ref::rms_norm(x.floats(), ldx, weight.data(), 1e-5f, n, DType::kF32, expected.data(), ldo,
                  rows);
    ops().rms_norm(x.floats(), ldx, weight.data(), 1e-5f, n, type(), out.data(), ldo, rows);
    EXPECT_TRUE(out.intact());
    expect_near(out.data(), expected, ldo, n, 2e-6f);
  }
}

TEST_P(ElementwiseTest, Rope) {
  Random random(6);
  for (const int head_dim : {16, 32, 48, 64, 128}) {
    const int heads = random.whole(1, 4);
    const int rows = random.whole(1, 5);
    const int half = head_dim / 2;
    const std::int64_t ldx = heads * head_dim + 7;
    Guarded x(static_cast<std::size_t>(rows * ldx) * 4);
    fill(x, DType::kF32, rows, heads * head_dim, ldx, random);
    std::vector<float> expected(x.floats(), x.floats() + rows * ldx);
    std::vector<std::int32_t> positions;
    for (int i = 0; i < rows; ++i) positions.push_back(random.whole(0, 9));
    const std::vector<float> cos = random.reals(static_cast<std::size_t>(10 * half));
    const std::vector<float> sin = random.reals(static_cast<std::size_t>(10 * half));
    ref::rope(expected.data(), ldx, positions.data(), cos.data(), sin.data(), heads, head_dim,
              rows);
    ops().rope(x.floats(), ldx, positions.data(), cos.data(), sin.data(), heads, head_dim, rows);
    EXPECT_TRUE(x.intact());
    for (std::int64_t i = 0; i < rows * ldx; ++i) {
      const float want = expected[static_cast<std::size_t>(i)];
      if (i % ldx < heads * head_dim) {
        ASSERT_NEAR(x.floats()[i], want, 1e-6f);
      } else {
        ASSERT_TRUE(same_bits(x.floats()[i], want));
      }
    }
  }
}

TEST_P(ElementwiseTest, Swiglu) {
  Random random(7);
  for (const int n : {1, 16, 50, 2048}) {
    const int rows = random.whole(1, 6);
    const std::int64_t ld = 2 * n + 1;
    Guarded gate(static_cast<std::size_t>(rows * ld) * 4);
    Guarded up(static_cast<std::size_t>(rows * ld) * 4);
    fill(gate, DType::kF32, rows, n, ld, random, 20);
    fill(up, DType::kF32, rows, n, ld, random);
    gate.floats()[0] = n % 2 == 0 ? -200.0f : 200.0f;  // far past where exp overflows
    Guarded out(static_cast<std::size_t>(rows * ld) * bytes_of(type()));
    std::vector<float> expected(static_cast<std::size_t>(rows * ld));
    ref::swiglu(gate.floats(), up.floats(), ld, n, DType::kF32, expected.data(), ld, rows);
    ops().swiglu(gate.floats(), up.floats(), ld, n, type(), out.data(), ld, rows);
    EXPECT_TRUE(out.intact());
    expect_near(out.data(), expected, ld, n, 5e-6f);
  }
}

TEST_P(ElementwiseTest, SwigluKeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate(16, nan);
  const std::vector<float> up(16, 1);
  std::vector<float> out(16);
  ops().swiglu(gate.data(), up.data(), 16, 16, DType::kF32, out.data(), 16, 1);
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
}

// Conversions agree with the reference in every bit, whatever the float; a NaN only has to be one.
TEST_P(ElementwiseTest, WidenAndNarrow) {
  Random random(8);
  for (const DType other : {type(), DType::kF16}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    if (other != DType::kF32) {
      std::vector<float> wide(halves.size());
      ops().widen(other, halves.data(), wide.data(), 65536);
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const float expected = ref::load(other, halves.data(), static_cast<std::int64_t>(i));
        ASSERT_TRUE(same_bits(wide[i], expected) || (std::isnan(expected) && std::isnan(wide[i])));
      }
    }
    for (const std::size_t n : {1u, 17u, 100000u}) {
      std::vector<float> values(n);
      for (float& x : values)
        x = std::bit_cast<float>(static_cast<std::uint32_t>(random.engine()()));
      Guarded got(n * bytes_of(other));
      Guarded expected(n * bytes_of(other));
      ref::narrow(values.data(), other, expected.data(), static_cast<std::int64_t>(n));
      ops().narrow(values.data(), other, got.data(), static_cast<std::int64_t>(n));
      EXPECT_TRUE(got.intact());
      for (std::size_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const float a = ref::load(other, got.data(), at);
        const float b = ref::load(other, expected.data(), at);
        ASSERT_TRUE(same_bits(a, b) || (std::isnan(a) && std::isnan(b))) << values[i];
      }
    }
  }
}

}  // namespace
}  // namespace servelab::kernels

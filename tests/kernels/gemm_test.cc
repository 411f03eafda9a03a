#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

class GemmTest : public KernelTest {
 protected:
  // What states this table's result: bit for bit for bf16, within roundings for f32.
  GemmFn* oracle() const {
    const bool pairs = isa() == Isa::kAvx512Bf16Dot && type() == DType::kBf16;
    return pairs ? ref::gemm_pairs : ref::gemm;
  }
};
INSTANTIATE_TEST_SUITE_P(All, GemmTest, every_isa_and_type(), parameter_name);

TEST_P(GemmTest, MatchesTheReferenceOnRandomShapes) {
  Random random(2);
  for (int trial = 0; trial < 150; ++trial) {
    const int m = random.whole(0, 70);
    const int n = random.whole(1, 100);
    const int k = random.whole(1, 260);
    const std::int64_t ldx = k + random.whole(0, 5);
    const std::int64_t ldy = n + random.whole(0, 5);
    const int panel_begin = random.whole(0, panels_of(n));
    const int panel_end = random.whole(panel_begin, panels_of(n));
    const Store store = trial % 2 == 0 ? Store::kSet : Store::kAdd;
    SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k << " panels "
                                      << panel_begin << " to " << panel_end);
    const Packed w(type(), n, k, random);
    Guarded x(static_cast<std::size_t>(m * ldx) * bytes_of(type()));
    fill(x, type(), m, k, ldx, random);
    Guarded y(static_cast<std::size_t>(m * ldy) * sizeof(float));
    if (store == Store::kAdd) fill(y, DType::kF32, m, n, ldy, random);
    std::vector<float> expected(y.floats(), y.floats() + m * ldy);

    oracle()(w.panels, x.data(), ldx, expected.data(), ldy, m, store, panel_begin, panel_end);
    ops().gemm(w.panels, x.data(), ldx, y.floats(), ldy, m, store, panel_begin, panel_end);

    EXPECT_TRUE(y.intact());
    for (std::int64_t i = 0; i < m * ldy; ++i) {
      const std::int64_t column = i % ldy;
      if (type() == DType::kF32 && column >= panel_begin * kPanelColumns &&
          column < std::min(n, panel_end * kPanelColumns)) {
        ASSERT_TRUE(near(y.floats()[i], expected[static_cast<std::size_t>(i)], type(), k)) << i;
      } else {
        ASSERT_TRUE(same_bits(y.floats()[i], expected[static_cast<std::size_t>(i)])) << i;
      }
    }
  }
}

// Factors, products and sums that are subnormal numbers, which dot products take for zero.
TEST(GemmPairsTest, SubnormalNumbersAreZero) {
  constexpr Isa kIsa = Isa::kAvx512Bf16Dot;
  if (!supported(kIsa)) GTEST_SKIP() << "this processor lacks " << isa_name(kIsa);
  Random random(5);
  const int k = 9;
  const int n = 16;
  const int m = 13;
  for (int trial = 0; trial < 50; ++trial) {
    const float scale = std::ldexp(1.0f, random.whole(-72, -58));
    const Packed w(DType::kBf16, n, k, random, scale);
    Guarded x(static_cast<std::size_t>(m * k) * bytes_of(DType::kBf16));
    fill(x, DType::kBf16, m, k, k, random, trial % 5 == 0 ? 1e-39f : scale);
    std::vector<float> got(static_cast<std::size_t>(m * n));
    std::vector<float> expected(got.size());
    ops(kIsa).gemm(w.panels, x.data(), k, got.data(), n, m, Store::kSet, 0, 1);
    ref::gemm_pairs(w.panels, x.data(), k, expected.data(), n, m, Store::kSet, 0, 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(same_bits(got[i], expected[i])) << got[i] << " not " << expected[i];
    }
  }
}

// Each row alone and each panel alone give the bits that the whole product gives.
TEST_P(GemmTest, RowsAndPanelsAreIndependentBitForBit) {
  Random random(3);
  for (const int k : {1, 37, 768}) {
    for (const int m : {1, 2, 7, 8, 9, 16, 23, 33, 64, 70}) {
      const int n = 16 * 7 + 5;
      const Packed w(type(), n, k, random);
      Guarded x(static_cast<std::size_t>(m * k) * bytes_of(type()));
      fill(x, type(), m, k, k, random);
      std::vector<float> whole(static_cast<std::size_t>(m * n));
      ops().gemm(w.panels, x.data(), k, whole.data(), n, m, Store::kSet, 0, panels_of(n));
      std::vector<float> piece(whole.size());
      for (int panel = 0; panel < panels_of(n); ++panel) {
        ops().gemm(w.panels, x.data(), k, piece.data(), n, m, Store::kSet, panel, panel + 1);
      }
      ASSERT_EQ(std::memcmp(piece.data(), whole.data(), whole.size() * sizeof(float)), 0);
      for (int row = 0; row < m; ++row) {
        const auto* from = static_cast<const char*>(x.data()) +
                           static_cast<std::size_t>(row * k) * bytes_of(type());
        ops().gemm(w.panels, from, k, piece.data() + row * n, n, 1, Store::kSet, 0, panels_of(n));
      }
      ASSERT_EQ(std::memcmp(piece.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << "m " << m << " k " << k;
    }
  }
}

// More rows than the L2 cache holds of x, which the kernels cut into blocks.
TEST_P(GemmTest, ManyRowsAreIndependentToo) {
  if (isa() == Isa::kReference)
    GTEST_SKIP() << "the reference computes a product whole, not in blocks";
  Random random(4);
  const int k = 4098;
  const int m = 300;
  const int n = 33;
  const Packed w(type(), n, k, random);
  Guarded x(static_cast<std::size_t>(m * k) * bytes_of(type()));
  fill(x, type(), m, k, k, random);
  std::vector<float> whole(static_cast<std::size_t>(m * n));
  ops().gemm(w.panels, x.data(), k, whole.data(), n, m, Store::kSet, 0, panels_of(n));
  for (int row = 0; row < m; row += 13) {
    const auto* from =
        static_cast<const char*>(x.data()) + static_cast<std::size_t>(row * k) * bytes_of(type());
    std::vector<float> alone(static_cast<std::size_t>(n));
    ops().gemm(w.panels, from, k, alone.data(), n, 1, Store::kSet, 0, panels_of(n));
    ASSERT_EQ(std::memcmp(alone.data(), whole.data() + row * n, alone.size() * sizeof(float)), 0);
  }
}

TEST(OpsTest, TablesNameTheirInstructionSet) {
  for (const Isa isa : kIsas) {
    if (!supported(isa)) {
      std::printf("skipped: this processor lacks %s\n", isa_name(isa).c_str());
      continue;
    }
    EXPECT_EQ(ops(isa).isa, isa);
  }
  EXPECT_TRUE(supported(best_isa()));
}

}  // namespace
}  // namespace servelab::kernels

#include <algorithm>
#include <thread>

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

constexpr int kN = 16 * 9 + 5;
constexpr int kK = 70;

// Over {library} x {element type}.
class LinearTest : public ::testing::TestWithParam<std::tuple<GemmLibrary, DType>> {
 protected:
  void SetUp() override {
    if (make(1) == nullptr) GTEST_SKIP() << name(library()) << " is missing or lacks the type";
  }
  GemmLibrary library() const { return std::get<0>(GetParam()); }
  DType type() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Linear> make(int parts) const {
    return make_linear(library(), ops(best_isa()), type(), kN, kK, parts);
  }
  float rounded(float value) const {
    return type() == DType::kBf16 ? to_float(to_bf16(value)) : value;
  }

  static void pack(Linear& linear, const std::vector<float>& w) {
    for (int part = 0; part < linear.parts(); ++part) {
      linear.pack(part, DType::kF32, w.data(), kK);
    }
  }
  static std::vector<float> unpack(const Linear& linear) {
    std::vector<float> result(kN * kK);
    for (int part = 0; part < linear.parts(); ++part) {
      linear.unpack(part, result.data() + linear.column_begin(part) * kK, kK);
    }
    return result;
  }
  // All parts, each on a thread of its own.
  static void run(Linear& linear, const void* x, std::int64_t ldx, float* y, std::int64_t ldy,
                  int m, Store store) {
    std::vector<std::thread> threads;
    for (int part = 0; part < linear.parts(); ++part) {
      threads.emplace_back([&, part] { linear.run(part, x, ldx, y, ldy, m, store); });
    }
    for (std::thread& thread : threads) thread.join();
  }
};
INSTANTIATE_TEST_SUITE_P(All, LinearTest,
                         ::testing::Combine(::testing::Values(GemmLibrary::kNative,
                                                              GemmLibrary::kEigen,
                                                              GemmLibrary::kOneDnn),
                                            ::testing::Values(DType::kF32, DType::kBf16)),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" +
                                  name(std::get<1>(info.param));
                         });

TEST_P(LinearTest, PartsCoverAllColumns) {
  for (const int parts : {1, 2, 3, 10, 12}) {
    const std::unique_ptr<Linear> linear = make(parts);
    int at = 0;
    for (int part = 0; part < parts; ++part) {
      EXPECT_EQ(linear->column_begin(part), at);
      EXPECT_EQ(at % kPanelColumns, at == kN ? kN % kPanelColumns : 0);
      at = linear->column_end(part);
    }
    EXPECT_EQ(at, kN);
  }
}

TEST_P(LinearTest, RunsLikeTheReference) {
  Random random(17);
  const std::vector<float> w = random.reals(kN * kK);
  Guarded packed(packed_bytes(type(), kN, kK));
  pack_panels(DType::kF32, w.data(), kK, kN, kK, type(), packed.data(), 0, panels_of(kN));
  for (const int parts : {1, 3, 12}) {
    const std::unique_ptr<Linear> linear = make(parts);
    pack(*linear, w);
    for (const int m : {0, 1, 2, 9, 40}) {
      const std::int64_t ldx = kK + 2;
      const std::int64_t ldy = kN + 3;
      Guarded x(static_cast<std::size_t>(m * ldx) * bytes_of(type()));
      fill(x, type(), m, kK, ldx, random);
      for (const Store store : {Store::kSet, Store::kAdd}) {
        Guarded y(static_cast<std::size_t>(m * ldy) * 4);
        if (store == Store::kAdd) fill(y, DType::kF32, m, kN, ldy, random);
        std::vector<float> expected(y.floats(), y.floats() + m * ldy);
        ref::gemm({type(), kN, kK, packed.data()}, x.data(), ldx, expected.data(), ldy, m, store, 0,
                  panels_of(kN));
        run(*linear, x.data(), ldx, y.floats(), ldy, m, store);
        EXPECT_TRUE(y.intact());
        for (int i = 0; i < m * ldy; ++i) {
          const float want = expected[static_cast<std::size_t>(i)];
          if (i % ldy < kN) {
            ASSERT_TRUE(near(y.floats()[i], want, type(), kK)) << "m " << m << " at " << i;
          } else {
            ASSERT_TRUE(same_bits(y.floats()[i], want));
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, UnpacksWhatItMultipliesWith) {
  Random random(18);
  const std::vector<float> w = random.reals(kN * kK);
  const std::unique_ptr<Linear> linear = make(3);
  pack(*linear, w);
  const std::vector<float> got = unpack(*linear);
  for (std::size_t i = 0; i < w.size(); ++i) ASSERT_TRUE(same_bits(got[i], rounded(w[i])));
}

// Merging an adapter and returning to the base leaves no trace, not in one bit.
TEST_P(LinearTest, MergeAndReturnIsExact) {
  Random random(19);
  const std::unique_ptr<Linear> linear = make(2);
  pack(*linear, random.reals(kN * kK));
  Guarded x(kK * bytes_of(type()));
  fill(x, type(), 1, kK, kK, random);
  std::vector<float> before(kN);
  run(*linear, x.data(), kK, before.data(), kN, 1, Store::kSet);

  const Packed a(type(), 4, kK, random);
  const Packed b(type(), kN, 4, random);
  const LoraPair pair{a.panels, b.panels, 4, 0.5f};
  const std::vector<float> base = unpack(*linear);
  std::vector<float> merged(base.size());
  ops(best_isa()).lora_merge(pair, base.data(), merged.data(), 0, kN);
  pack(*linear, merged);
  std::vector<float> during(kN);
  run(*linear, x.data(), kK, during.data(), kN, 1, Store::kSet);
  EXPECT_NE(before, during);

  pack(*linear, base);
  EXPECT_EQ(unpack(*linear), base);
  std::vector<float> after(kN);
  run(*linear, x.data(), kK, after.data(), kN, 1, Store::kSet);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * 4), 0);
}

TEST(LinearSeamTest, NamesAndPresence) {
  EXPECT_STREQ(name(GemmLibrary::kNative), "native");
  EXPECT_TRUE(built_with(GemmLibrary::kNative));
  for (const GemmLibrary library : {GemmLibrary::kEigen, GemmLibrary::kOneDnn}) {
    if (!built_with(library)) {
      EXPECT_EQ(make_linear(library, ops(best_isa()), DType::kF32, 16, 16, 1), nullptr);
    }
  }
  EXPECT_EQ(make_linear(GemmLibrary::kNative, ops(best_isa()), DType::kF16, 16, 16, 1), nullptr);
}

}  // namespace
}  // namespace servelab::kernels

#include "kernels/choice.h"

#include <algorithm>

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

class KernelChoiceTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, KernelChoiceTest, ::testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(KernelChoiceTest, EveryChoiceRunsAndHasANameOfItsOwn) {
  const std::vector<KernelChoice> choices = kernel_choices(GetParam());
  EXPECT_EQ(choices.front(), (KernelChoice{GemmLibrary::kNative, best_isa()}));
  for (const KernelChoice& choice : choices) {
    SCOPED_TRACE(text(choice));
    EXPECT_EQ(parse_choice(text(choice)), choice);
    EXPECT_EQ(std::count(choices.begin(), choices.end(), choice), 1);
    EXPECT_NE(make_linear(choice.gemm, ops(choice.isa), GetParam(), 16, 16, 1), nullptr);
  }
}

TEST_P(KernelChoiceTest, OurKernelsKeepRowsApart) {
  for (const Isa isa : kIsas) {
    if (!supported(isa) || isa == Isa::kReference) continue;
    EXPECT_TRUE(keeps_rows_apart({GemmLibrary::kNative, isa}, GetParam())) << ops(isa).name;
  }
}

// Which one is the machine's affair; that it may be chosen is not.
TEST_P(KernelChoiceTest, TheFastestIsAChoiceThatKeepsRowsApart) {
  const KernelChoice fastest = fastest_kernels(GetParam());
  const std::vector<KernelChoice> choices = kernel_choices(GetParam());
  EXPECT_EQ(std::count(choices.begin(), choices.end(), fastest), 1) << text(fastest);
  EXPECT_TRUE(keeps_rows_apart(fastest, GetParam())) << text(fastest);
}

TEST(KernelChoiceTextTest, WhatIsNoChoiceIsNone) {
  const std::string good = text({GemmLibrary::kNative, Isa::kReference});
  EXPECT_EQ(good, "native reference");
  EXPECT_TRUE(parse_choice(good));
  for (const std::string& bad : {std::string(), good + " ", std::string("native"),
                                 std::string("native vax"), std::string("mkl reference")}) {
    EXPECT_FALSE(parse_choice(bad)) << bad;
  }
}

}  // namespace
}  // namespace servelab::kernels

#include "engine/backend/cpu/kernel_choice.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/support/program.h"

namespace servelab {
namespace {

using kernels::GemmLibrary;
using kernels::Isa;
using kernels::KernelChoice;

constexpr const char* kKey = "servelab kernels 1\nsome processor\nbuild 0123456789abcdef\n";
constexpr KernelChoice kReference{GemmLibrary::kNative, Isa::kReference};

class KeptChoice : public ::testing::Test {
 protected:
  KernelChoice choose(const std::string& key = kKey) {
    return kept_choice(path_, key, [this] {
      ++measured_;
      return kReference;
    });
  }
  test::TemporaryFolder folder_;
  std::string path_ = folder_ / "bf16";
  int measured_ = 0;
};

TEST_F(KeptChoice, IsMeasuredOnce) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(choose(), kReference);
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(test::read_file(path_), std::string(kKey) + "native reference\n");
}

TEST_F(KeptChoice, IsTakenAsItIsKept) {
  const KernelChoice other{GemmLibrary::kNative, kernels::best_isa()};
  test::write_file(path_, kKey + kernels::text(other) + "\n");
  EXPECT_EQ(choose(), other);
  EXPECT_EQ(measured_, 0);
}

TEST_F(KeptChoice, OfAnotherProcessorOrBuildIsMeasuredAgain) {
  choose();
  choose("servelab kernels 1\nsome processor\nbuild 0000000000000000\n");
  choose("servelab kernels 1\nanother processor\nbuild 0123456789abcdef\n");
  EXPECT_EQ(measured_, 3);
}

TEST_F(KeptChoice, WhateverElseTheFileHoldsIsReplaced) {
  const std::string key = kKey;
  const std::string good = key + "native reference\n";
  const std::string bad[] = {"",
                             key,
                             key + "\n",
                             good.substr(0, good.size() - 1),
                             good + "native reference\n",
                             key + "native vax\n",
                             key + "mkl reference\n",
                             "servelab kernels 2" + good.substr(18),
                             std::string(1 << 20, '\n'),
                             good + std::string(1 << 16, '\n'),
                             key + std::string(64, '\0') + "\n",
                             "\xff\xfe\x7f"
                             "ELF"};
  int expected = 0;
  for (const std::string& content : bad) {
    test::write_file(path_, content);
    EXPECT_EQ(choose(), kReference);
    EXPECT_EQ(measured_, ++expected) << content.substr(0, 80);
    EXPECT_EQ(test::read_file(path_), good);
  }
}

TEST_F(KeptChoice, WithoutAFileIsMeasuredEachTime) {
  path_ = folder_ / "not/there";
  choose();
  choose();
  EXPECT_EQ(measured_, 2);
  path_ = folder_.path();  // a folder
  choose();
  EXPECT_EQ(measured_, 3);
  path_ = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  choose();
  EXPECT_EQ(measured_, 4);
  test::write_file(folder_ / "elsewhere", "precious");
  path_ = folder_ / "link";
  ASSERT_EQ(::symlink((folder_ / "elsewhere").c_str(), path_.c_str()), 0);
  choose();
  EXPECT_EQ(measured_, 5);
  EXPECT_EQ(test::read_file(folder_ / "elsewhere"), "precious");
}

TEST_F(KeptChoice, CannotBeWrittenWhereTheFolderIsReadOnly) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0500), 0);
  choose();
  choose();
  EXPECT_EQ(measured_, 2);
  ::chmod(folder_.path().c_str(), 0700);
}

// As many processes do: flock() keeps open files apart, whoever opened them.
TEST_F(KeptChoice, IsTheSameForAllWhoAskAtOnce) {
  std::vector<KernelChoice> answers(8);
  std::atomic<int> measured = 0;
  std::vector<std::thread> threads;
  for (KernelChoice& answer : answers) {
    threads.emplace_back([&] {
      answer = kept_choice(path_, kKey, [&] {
        const bool first = measured.fetch_add(1) == 0;
        return first ? kReference : KernelChoice{GemmLibrary::kNative, kernels::best_isa()};
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(measured, 1);
  for (const KernelChoice& answer : answers) EXPECT_EQ(answer, kReference);
}

TEST(ChooseKernels, ALibraryThatIsNamedIsTaken) {
  for (const kernels::DType type : {kernels::DType::kF32, kernels::DType::kBf16}) {
    EXPECT_EQ(choose_kernels("native", type).gemm, GemmLibrary::kNative);
    EXPECT_EQ(choose_kernels("onednn", type).gemm, GemmLibrary::kOneDnn);
    EXPECT_EQ(choose_kernels("eigen", type).gemm, GemmLibrary::kEigen);
    EXPECT_EQ(choose_kernels("auto", type), choose_kernels("auto", type));
  }
}

}  // namespace
}  // namespace servelab

// The CUDA engine from the command line where it cannot run: a spec is read as any other, and a run
// ends with one line that says what is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/program.h"

namespace servelab {
namespace {

using test::ProgramResult;
using test::run_program;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kSpec =
    "title: test\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cuda\n"
    "techniques: [slora]\n"
    "workload:\n"
    "  requests: 5\n"
    "  adapters: {count: 2, ranks: [8]}\n"
    "  arrivals: {process: poisson, rate: 60}\n"
    "  lengths: {source: uniform, prompt_range: [1, 20], output_range: [1, 4]}\n";

class CudaEngineCli : public ::testing::Test {
 protected:
  static void expect_refusal(const ProgramResult& result) {
    if (result.code == 0) GTEST_SKIP() << "this machine has a CUDA device";
    EXPECT_THAT(result.err, HasSubstr("backend 'cuda': this "));
    EXPECT_THAT(result.err, AnyOf(HasSubstr("servelab was built without CUDA"),
                                  HasSubstr("machine has no CUDA device (cudaGetDeviceCount: ")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  const std::string experiments_ = std::string(SERVELAB_SOURCE_DIR) + "/experiments";
  test::TemporaryFolder folder_;
};

TEST_F(CudaEngineCli, ARunSaysWhatIsMissing) {
  expect_refusal(run_program({"run", folder_.file("cuda.yaml", kSpec), "--out", folder_ / "out"}));
}

TEST_F(CudaEngineCli, GenerateSaysWhatIsMissing) {
  expect_refusal(run_program({"generate", "--backend", "cuda", "--experiments", experiments_,
                              "--model", "tiny-15m", "--tokens", "1,2"}));
}

TEST_F(CudaEngineCli, CalibrateSaysWhatIsMissing) {
  expect_refusal(
      run_program({"calibrate", "--backend", "cuda", "--quick", "--experiments", experiments_,
                   "--model", "llama-134m", "--out", folder_ / "profile.yaml"}));
}

TEST_F(CudaEngineCli, F32IsRefused) {
  const ProgramResult result =
      run_program({"generate", "--backend", "cuda", "--dtype", "f32", "--experiments", experiments_,
                   "--model", "tiny-15m", "--tokens", "1,2"});
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("backend 'cuda' computes in bf16 or f16, not in f32"));
}

}  // namespace
}  // namespace servelab

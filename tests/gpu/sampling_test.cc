#include "kernels/cuda/sampling.h"

#include <algorithm>
#include <cmath>

#include "kernels/sampling.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SamplingTest : public DeviceTest {
 protected:
  static std::vector<std::int32_t> run_argmax(const std::vector<float>& logits, int rows) {
    const DeviceVector<float> device(logits);
    const DeviceVector<std::int32_t> tokens(static_cast<std::size_t>(rows));
    EXPECT_EQ(cuda::argmax(device.get(), rows, static_cast<int>(logits.size()) / rows, tokens.get(),
                           stream),
              cudaSuccess);
    EXPECT_TRUE(tokens.intact());
    return tokens.values();
  }
  // One draw of the same row for each uniform.
  static std::vector<std::int32_t> run_sample(const std::vector<float>& row, float temperature,
                                              float top_p, const std::vector<double>& uniforms) {
    std::vector<float> logits;
    for (std::size_t i = 0; i < uniforms.size(); ++i) {
      logits.insert(logits.end(), row.begin(), row.end());
    }
    const DeviceVector<float> device(logits);
    const DeviceVector<double> device_uniforms(uniforms);
    const DeviceVector<std::int32_t> tokens(uniforms.size());
    EXPECT_EQ(cuda::sample_top_p(device.get(), static_cast<int>(uniforms.size()),
                                 static_cast<int>(row.size()), temperature, top_p,
                                 device_uniforms.get(), tokens.get(), stream),
              cudaSuccess);
    EXPECT_TRUE(tokens.intact());
    return tokens.values();
  }
  static std::int32_t sample(const std::vector<float>& row, float temperature, float top_p,
                             double uniform) {
    return run_sample(row, temperature, top_p, {uniform})[0];
  }
};

TEST_F(SamplingTest, ArgmaxOfTiesAndNan) {
  const auto of = [](const std::vector<float>& x) { return run_argmax(x, 1)[0]; };
  EXPECT_EQ(of({1, 3, 2}), 1);
  EXPECT_EQ(of({3, 1, 3}), 0);
  EXPECT_EQ(of({kNan, 1, kNan, 2}), 3);
  EXPECT_EQ(of({-kInfinity, kNan}), 0);
  EXPECT_EQ(of({kNan, -kInfinity}), 1);
  EXPECT_EQ(of({kNan, kNan}), -1);
  EXPECT_EQ(of({-0.0f, 0.0f}), 0);
}

TEST_F(SamplingTest, ArgmaxAgreesWithTheCpu) {
  Random random(6);
  for (const int n : {1, 5, 31, 64, 1000, 32000, 32003}) {
    constexpr int kRows = 3;
    std::vector<float> logits;
    for (int i = 0; i < kRows * n; ++i) logits.push_back(static_cast<float>(random.whole(0, 5000)));
    const std::vector<std::int32_t> got = run_argmax(logits, kRows);
    for (int row = 0; row < kRows; ++row) {
      EXPECT_EQ(got[static_cast<std::size_t>(row)], kernels::argmax(logits.data() + row * n, n));
    }
  }
}

// Nearly all draws are the CPU's; where sums of rounded weights end next to a draw, its
// neighbour's.
TEST_F(SamplingTest, DrawsWhatTheCpuDraws) {
  Random random(7);
  for (const int n : {1, 3, 40, 2003}) {
    for (const float temperature : {0.3f, 1.5f}) {
      for (const float top_p : {0.05f, 0.9f, 1.0f}) {
        const std::vector<float> logits = random.reals(static_cast<std::size_t>(n), 3);
        constexpr int kDraws = 3;
        std::vector<double> uniforms;
        for (int i = 0; i < kDraws; ++i) uniforms.push_back((i + random.fraction()) / kDraws);
        const std::vector<std::int32_t> got = run_sample(logits, temperature, top_p, uniforms);
        std::vector<std::uint64_t> scratch(logits.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          const auto cpu = [&](double shift) {
            const double uniform = std::clamp(uniforms[i] + shift, 0.0, 1 - 1e-9);
            return kernels::sample_top_p(logits.data(), n, temperature, top_p, uniform,
                                         scratch.data());
          };
          constexpr double kNear = 1e-5;
          EXPECT_TRUE(got[i] == cpu(0) || got[i] == cpu(-kNear) || got[i] == cpu(kNear))
              << got[i] << " instead of " << cpu(0) << ", n " << n << " top_p " << top_p;
        }
      }
    }
  }
}

TEST_F(SamplingTest, FollowsTheDistribution) {
  // Weights 8, 4, 2, 1, 1 of 16.
  const float step = std::log(2.0f);
  const std::vector<float> logits = {0, 2 * step, 0, 3 * step, step};
  const auto counts = [&](float top_p, int draws) {
    std::vector<double> uniforms;
    for (int i = 0; i < draws; ++i) uniforms.push_back((i + 0.5) / draws);
    std::vector<int> result(logits.size());
    for (const std::int32_t token : run_sample(logits, 1, top_p, uniforms)) {
      ++result.at(static_cast<std::size_t>(token));
    }
    return result;
  };
  EXPECT_EQ(counts(1.0f, 48), (std::vector<int>{3, 12, 3, 24, 6}));
  EXPECT_EQ(counts(0.7f, 48), (std::vector<int>{0, 16, 0, 32, 0}));
  EXPECT_EQ(counts(0.9f, 45), (std::vector<int>{3, 12, 0, 24, 6}));
}

TEST_F(SamplingTest, TiesAreCutByIndex) {
  const std::vector<float> equal(8, 1.5f);
  for (const double uniform : {0.0, 0.3, 0.7, 0.999999}) {
    EXPECT_EQ(sample(equal, 1, 0.375f, uniform), static_cast<std::int32_t>(uniform * 3));
  }
  EXPECT_EQ(sample(equal, 1, 1e-6f, 0.99), 0);
}

TEST_F(SamplingTest, EdgesOfLogitsAndUniforms) {
  const double almost_one = std::nextafter(1.0, 0.0);
  EXPECT_EQ(sample({0, kNan, 1}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({kInfinity, kNan}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({-kInfinity, kNan}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({kNan, kNan}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({-kInfinity, -kInfinity}, 1, 0.9f, 0.5), 0);
  EXPECT_EQ(sample({0, kInfinity, 1}, 1, 0.9f, 0.5), 1);
  EXPECT_EQ(sample({-kInfinity, 0, -kInfinity}, 1, 1.0f, 0.0), 1);
  EXPECT_EQ(sample({-kInfinity, 0, -kInfinity}, 1, 0.5f, almost_one), 1);
  EXPECT_EQ(sample({5, 0, 0}, 0.01f, 1.0f, almost_one), 0);
  const DeviceVector<float> logits(std::vector<float>{1, 2});
  EXPECT_EQ(cuda::sample_top_p(logits.get(), 1, 2, 0, 0.5f, nullptr, nullptr, stream),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace servelab::kernels::cuda

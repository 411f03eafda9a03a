#include "kernels/sampling.h"

#include <algorithm>

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int32_t sample(const std::vector<float>& logits, float temperature, float top_p,
                    double uniform) {
  std::vector<std::uint64_t> scratch(logits.size());
  return sample_top_p(logits.data(), static_cast<int>(logits.size()), temperature, top_p, uniform,
                      scratch.data());
}

TEST(ArgmaxTest, TiesAndNan) {
  const auto of = [](std::vector<float> x) { return argmax(x.data(), static_cast<int>(x.size())); };
  EXPECT_EQ(of({1, 3, 2}), 1);
  EXPECT_EQ(of({3, 1, 3}), 0);
  EXPECT_EQ(of({kNan, 1, kNan, 2}), 3);
  EXPECT_EQ(of({-kInfinity, kNan}), 0);
  EXPECT_EQ(of({kNan, kNan}), -1);
  EXPECT_EQ(of({-0.0f, 0.0f}), 0);
}

// The distribution by its definition: sort, cut, renormalise.
std::vector<double> distribution(const std::vector<float>& logits, float temperature, float top_p) {
  std::vector<std::pair<double, int>> order;
  double total = 0;
  const float largest = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((double{logits[i]} - largest) / temperature);
    order.emplace_back(-weight, static_cast<int>(i));
    total += weight;
  }
  std::sort(order.begin(), order.end());
  std::vector<double> result(logits.size());
  double mass = 0;
  for (const auto& [weight, token] : order) {
    result[static_cast<std::size_t>(token)] = -weight;
    mass -= weight;
    if (mass >= double{top_p} * total) break;
  }
  for (double& p : result) p /= mass;
  return result;
}

TEST(SampleTest, FollowsTheDistribution) {
  Random random(20);
  for (const int n : {1, 2, 5, 40}) {
    for (const float temperature : {0.3f, 1.0f, 2.0f}) {
      for (const float top_p : {0.05f, 0.5f, 0.9f, 1.0f}) {
        const std::vector<float> logits = random.reals(static_cast<std::size_t>(n), 3);
        const std::vector<double> expected = distribution(logits, temperature, top_p);
        constexpr int kDraws = 20000;  // evenly spaced uniforms: counts are exact to +-1
        std::vector<int> counts(static_cast<std::size_t>(n));
        for (int i = 0; i < kDraws; ++i) {
          const std::int32_t token = sample(logits, temperature, top_p, (i + 0.5) / kDraws);
          ASSERT_GE(token, 0);
          ASSERT_LT(token, n);
          ++counts[static_cast<std::size_t>(token)];
        }
        for (std::size_t i = 0; i < counts.size(); ++i) {
          ASSERT_NEAR(counts[i], expected[i] * kDraws, 1.5) << "top_p " << top_p << " n " << n;
        }
      }
    }
  }
}

TEST(SampleTest, TiesAreCutByIndex) {
  const std::vector<float> equal(8, 1.5f);
  for (const double uniform : {0.0, 0.3, 0.7, 0.999999}) {
    EXPECT_EQ(sample(equal, 1, 0.375f, uniform), static_cast<std::int32_t>(uniform * 3));
  }
  EXPECT_EQ(sample(equal, 1, 1e-6f, 0.99), 0);
}

TEST(SampleTest, EdgesOfLogitsAndUniforms) {
  EXPECT_EQ(sample({0, kNan, 1}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({kInfinity, kNan}, 1, 0.9f, 0.5), -1);
  EXPECT_EQ(sample({0, kInfinity, 1}, 1, 0.9f, 0.5), 1);
  EXPECT_EQ(sample({-kInfinity, 0, -kInfinity}, 1, 1.0f, 0.0), 1);
  EXPECT_EQ(sample({-kInfinity, 0, -kInfinity}, 1, 1.0f, std::nextafter(1.0, 0.0)), 1);
  EXPECT_EQ(sample({5, 0, 0}, 0.01f, 1.0f, std::nextafter(1.0, 0.0)), 0);
}

TEST(SampleTest, ALargeVocabularyAgreesWithSorting) {
  Random random(21);
  const std::vector<float> logits = random.reals(32000, 8);
  const std::vector<double> expected = distribution(logits, 0.8f, 0.9f);
  for (int i = 0; i < 50; ++i) {
    const std::int32_t token = sample(logits, 0.8f, 0.9f, random.fraction());
    ASSERT_GT(expected[static_cast<std::size_t>(token)], 0);
  }
}

}  // namespace
}  // namespace servelab::kernels

#include "engine/core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/portable_math.h"

namespace servelab {
namespace {

constexpr int kDraws = 200000;

std::vector<double> draws(RngStream rng, int n, const std::function<double(RngStream*)>& draw) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& value : values) value = draw(&rng);
  return values;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double cv_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size())) / mean;
}

// Kolmogorov-Smirnov distance; below 1.95 / sqrt(n) with probability 99.9 %.
double ks_distance(std::vector<double> values, const std::function<double(double)>& cdf) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double p = cdf(values[i]);
    worst = std::max({worst, std::abs(p - static_cast<double>(i) / n),
                      std::abs(static_cast<double>(i + 1) / n - p)});
  }
  return worst;
}

double ks_limit(int n) { return 1.95 / std::sqrt(static_cast<double>(n)); }

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

TEST(PortableMathTest, AgreesWithTheLibrary) {
  RngStream rng(1, "math");
  for (int i = 0; i < 20000; ++i) {
    const double x = std::exp(rng.uniform(-200, 200));
    EXPECT_NEAR(portable::log(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x))));
    const double y = rng.uniform(-600, 600);
    EXPECT_NEAR(portable::exp(y) / std::exp(y), 1, 1e-15 * std::max(1.0, std::abs(y) / 50));
  }
  EXPECT_EQ(portable::log(1), 0);
  EXPECT_EQ(portable::exp(0), 1);
  EXPECT_EQ(portable::exp(-800), 0);
  EXPECT_DOUBLE_EQ(portable::pow(2, 10), 1024);
  for (const double x : {0.1, 0.5, 1.0, 1.5, 3.0, 11.9, 12.1, 100.0}) {
    EXPECT_NEAR(portable::log_gamma(x), std::lgamma(x), 1e-13 * std::max(1.0, x)) << x;
  }
  EXPECT_THROW(portable::log(0), InvariantError);
}

TEST(PortableMathTest, NormalQuantile) {
  EXPECT_EQ(portable::normal_quantile(0.5), 0);
  EXPECT_NEAR(portable::normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(portable::normal_quantile(1e-12), -7.034483825301131, 1e-12);
  for (double p = 0.0005; p < 1; p += 0.0005) {
    EXPECT_NEAR(normal_cdf(portable::normal_quantile(p)), p, 1e-14);
  }
}

TEST(RngTest, EngineMatchesThePublishedSequence) {
  RngStream rng(std::array<std::uint64_t, 4>{1, 2, 3, 4});
  for (const std::uint64_t expected :
       {41943041ull, 58720359ull, 3588806011781223ull, 3591011842654386ull, 9228616714210784205ull,
        9973669472204895162ull, 14011001112246962877ull}) {
    EXPECT_EQ(rng.next(), expected);
  }
}

TEST(RngTest, GoldenFirstValues) {
  RngStream arrivals(7, "arrivals");
  EXPECT_EQ(arrivals.next(), 15420439843430830055ull);
  EXPECT_EQ(arrivals.next(), 5918558736573298563ull);
  RngStream third(7, "arrivals", 3);
  EXPECT_EQ(third.next(), 14869638280783674204ull);
  RngStream lengths(7, "lengths");
  EXPECT_EQ(lengths.normal(), -0x1.6693fb75b857bp+0);
  EXPECT_EQ(lengths.gamma(0.25), 0x1.f60d79769a2b3p-7);
  EXPECT_EQ(lengths.exponential(), 0x1.738df909dcc7p+1);
}

TEST(RngTest, UniformMomentsAndRange) {
  const auto values = draws(RngStream(1, "u"), kDraws, [](RngStream* r) { return r->uniform(); });
  EXPECT_LT(ks_distance(values, [](double x) { return x; }), ks_limit(kDraws));
  EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 1);
  RngStream open(std::array<std::uint64_t, 4>{0, 0, 0, 1});
  for (int i = 0; i < 1000; ++i) {
    const double u = open.uniform_open();
    EXPECT_GT(u, 0);
    EXPECT_LT(u, 1);
  }
}

TEST(RngTest, BelowIsUnbiased) {
  RngStream rng(3, "below");
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 70000; ++i) ++counts[rng.below(7)];
  double chi2 = 0;
  for (const int count : counts) chi2 += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom, 99.9 %
  EXPECT_EQ(rng.below(1), 0u);
  EXPECT_THROW(rng.below(0), InvariantError);
}

TEST(RngTest, DistributionsMatchTheirCdf) {
  const auto exponential =
      draws(RngStream(2, "e"), kDraws, [](RngStream* r) { return r->exponential(); });
  EXPECT_LT(ks_distance(exponential, [](double x) { return 1 - std::exp(-x); }), ks_limit(kDraws));
  const auto normal = draws(RngStream(2, "n"), kDraws, [](RngStream* r) { return r->normal(); });
  EXPECT_LT(ks_distance(normal, normal_cdf), ks_limit(kDraws));
  const auto log_normal =
      draws(RngStream(2, "ln"), kDraws, [](RngStream* r) { return r->log_normal(1, 0.5); });
  EXPECT_LT(ks_distance(log_normal, [](double x) { return normal_cdf((std::log(x) - 1) / 0.5); }),
            ks_limit(kDraws));
  const auto weibull =
      draws(RngStream(2, "w"), kDraws, [](RngStream* r) { return r->weibull(0.7); });
  EXPECT_LT(ks_distance(weibull, [](double x) { return 1 - std::exp(-std::pow(x, 0.7)); }),
            ks_limit(kDraws));
  // Gamma with shape 2 has the closed form 1 - (1 + x) exp(-x); shape 1/2 is half a chi-square.
  const auto gamma2 = draws(RngStream(2, "g"), kDraws, [](RngStream* r) { return r->gamma(2); });
  EXPECT_LT(ks_distance(gamma2, [](double x) { return 1 - (1 + x) * std::exp(-x); }),
            ks_limit(kDraws));
  const auto gamma_half =
      draws(RngStream(2, "h"), kDraws, [](RngStream* r) { return r->gamma(0.5); });
  EXPECT_LT(ks_distance(gamma_half, [](double x) { return std::erf(std::sqrt(x)); }),
            ks_limit(kDraws));
}

TEST(RngTest, GapsHaveMeanOneAndTheirCv) {
  for (const GapKind kind : {GapKind::kGamma, GapKind::kLogNormal, GapKind::kWeibull}) {
    for (const double cv : {0.3, 1.0, 2.0}) {
      const GapSampler gaps(kind, cv);
      const auto values =
          draws(RngStream(5, "gaps"), 400000, [&](RngStream* r) { return gaps.draw(r); });
      EXPECT_NEAR(mean_of(values), 1, 0.006 * std::max(1.0, cv * 2)) << static_cast<int>(kind);
      EXPECT_NEAR(cv_of(values), cv, 0.05 * cv) << static_cast<int>(kind);
    }
  }
  RngStream rng(1, "even");
  EXPECT_EQ(GapSampler(GapKind::kEven).draw(&rng), 1);
  EXPECT_NEAR(weibull_shape_for_cv(1), 1, 1e-9);
}

TEST(RngTest, StreamsAreIndependent) {
  const auto correlation = [](RngStream a, RngStream b) {
    double sum = 0;
    for (int i = 0; i < 50000; ++i) sum += a.normal() * b.normal();
    return sum / 50000;
  };
  const double limit = 3.3 / std::sqrt(50000.0);
  EXPECT_LT(std::abs(correlation(RngStream(1, "arrivals"), RngStream(1, "lengths"))), limit);
  EXPECT_LT(std::abs(correlation(RngStream(1, "arrivals"), RngStream(2, "arrivals"))), limit);
  EXPECT_LT(std::abs(correlation(RngStream(1, "arrivals", 0), RngStream(1, "arrivals", 1))), limit);
}

TEST(RngTest, SubStreamsDiffer) {
  std::vector<std::uint64_t> first;
  for (std::uint64_t i = 0; i < 50000; ++i) first.push_back(RngStream(9, "adapter", i).next());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(std::adjacent_find(first.begin(), first.end()), first.end());
}

TEST(RngTest, CategoricalFollowsItsWeights) {
  const Categorical categorical({1, 0, 3, 6, 0});
  RngStream rng(4, "c");
  std::vector<double> counts(5, 0);
  for (int i = 0; i < 100000; ++i) counts[categorical.draw(&rng)] += 1;
  EXPECT_NEAR(counts[0], 10000, 400);
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 30000, 600);
  EXPECT_NEAR(counts[3], 60000, 600);
  EXPECT_EQ(counts[4], 0);
  EXPECT_THROW(Categorical({0, 0}), InvariantError);
  EXPECT_THROW(Categorical({1, -1}), InvariantError);
}

TEST(RngTest, ShuffleIsAPermutation) {
  std::vector<int> items = {0, 1, 2, 3, 4, 5, 6, 7};
  RngStream rng(4, "s");
  rng.shuffle(&items);
  std::vector<int> sorted = items;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_NE(items, sorted);
}

}  // namespace
}  // namespace servelab

// Named streams of random numbers. Every dimension of a workload (arrivals, adapters, lengths, ...)
// has its own stream, derived from the seed and the stream's name, so that changing how one
// dimension is drawn leaves the draws of the others alone. Sub-streams by index serve one adapter
// each. The numbers are the same on every platform: own engine, own transformations, and the
// elementary functions of portable_math.h; never std::*_distribution.
#ifndef SERVELAB_CORE_RNG_H_
#define SERVELAB_CORE_RNG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace servelab {

// xoshiro256++ (Blackman and Vigna, 2019), 256 bits of state, period 2^256 - 1.
class RngStream {
 public:
  RngStream(std::uint64_t seed, std::string_view name, std::uint64_t index = 0);
  explicit RngStream(const std::array<std::uint64_t, 4>& state) : state_(state) {}  // for tests

  std::uint64_t next();
  double uniform();       // [0, 1), a multiple of 2^-53
  double uniform_open();  // (0, 1), never 0 or 1: safe for logarithms and quantiles
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::uint64_t below(std::uint64_t n);  // 0 .. n-1, without bias; n > 0

  double exponential();          // mean 1
  double normal();               // mean 0, standard deviation 1
  double gamma(double shape);    // scale 1: mean = variance = shape; shape > 0
  double weibull(double shape);  // scale 1
  double log_normal(double mu, double sigma);

  template <class T>
  void shuffle(std::vector<T>* items) {
    for (std::size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1], (*items)[static_cast<std::size_t>(below(i))]);
    }
  }

 private:
  std::array<std::uint64_t, 4> state_;
};

// Draws an index with probability proportional to its weight: binary search on cumulative sums.
class Categorical {
 public:
  explicit Categorical(const std::vector<double>& weights);  // >= 0, at least one > 0
  std::size_t draw(RngStream* rng) const { return at(rng->uniform()); }
  std::size_t at(double u) const;  // whom a draw in [0, 1) falls on
  std::size_t size() const { return cumulative_.size(); }

 private:
  std::vector<double> cumulative_;
};

// The gaps of a renewal process with mean 1 and a given coefficient of variation.
enum class GapKind { kExponential, kGamma, kLogNormal, kWeibull, kEven };

class GapSampler {
 public:
  explicit GapSampler(GapKind kind = GapKind::kExponential, double cv = 1);
  double draw(RngStream* rng) const;

 private:
  GapKind kind_;
  double shape_ = 1;  // gamma, weibull: shape; log-normal: sigma
  double scale_ = 1;  // gamma, weibull: scale; log-normal: mu
};

// Shape k of the Weibull distribution whose standard deviation is cv times its mean.
double weibull_shape_for_cv(double cv);

}  // namespace servelab

#endif  // SERVELAB_CORE_RNG_H_

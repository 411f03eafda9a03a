#include "engine/core/rng.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"
#include "engine/core/portable_math.h"

namespace servelab {
namespace {

constexpr double kTwoToMinus53 = 1.0 / 9007199254740992.0;

constexpr std::uint64_t rotate_left(std::uint64_t x, int bits) {
  return (x << bits) | (x >> (64 - bits));
}

// SplitMix64 (Steele, Lea and Flood, 2014): spreads any 64-bit seed over the engine's state.
std::uint64_t split_mix(std::uint64_t* state) {
  *state += 0x9E3779B97F4A7C15ull;
  std::uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// FNV-1a.
std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

}  // namespace

RngStream::RngStream(std::uint64_t seed, std::string_view name, std::uint64_t index) {
  std::uint64_t mixed = seed;
  mixed = split_mix(&mixed) ^ hash_name(name);
  mixed = split_mix(&mixed) ^ index;
  for (std::uint64_t& word : state_) word = split_mix(&mixed);
}

std::uint64_t RngStream::next() {
  const std::uint64_t result = rotate_left(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = rotate_left(state_[3], 45);
  return result;
}

double RngStream::uniform() { return static_cast<double>(next() >> 11) * kTwoToMinus53; }

double RngStream::uniform_open() {
  // 52 bits, so that adding one half never rounds up to 1.
  return (static_cast<double>(next() >> 12) + 0.5) * (2 * kTwoToMinus53);
}

std::uint64_t RngStream::below(std::uint64_t n) {
  SL_CHECK(n > 0, "below(0)");
  std::uint64_t x = next();
  if (x < n) {  // what is refused is: the incomplete last round, 2^64 mod n
    const std::uint64_t refused = (0 - n) % n;
    while (x < refused) x = next();
  }
  return x % n;
}

double RngStream::exponential() { return -portable::log(uniform_open()); }

double RngStream::normal() { return portable::normal_quantile(uniform_open()); }

double RngStream::gamma(double shape) {
  SL_CHECK(shape > 0, "gamma needs a positive shape");
  if (shape == 1) return exponential();
  // Marsaglia and Tsang (2000); a shape below 1 is drawn at shape + 1 and scaled by U^(1/shape).
  const double boosted = shape < 1 ? shape + 1 : shape;
  const double d = boosted - 1.0 / 3;
  const double c = 1 / (3 * std::sqrt(d));
  double value = 0;
  while (true) {
    const double z = normal();
    const double v = 1 + c * z;
    if (v <= 0) continue;
    const double v3 = v * v * v;
    if (portable::log(uniform_open()) < 0.5 * z * z + d - d * v3 + d * portable::log(v3)) {
      value = d * v3;
      break;
    }
  }
  return shape < 1 ? value * portable::pow(uniform_open(), 1 / shape) : value;
}

double RngStream::weibull(double shape) { return portable::pow(exponential(), 1 / shape); }

double RngStream::log_normal(double mu, double sigma) {
  return portable::exp(mu + sigma * normal());
}

Categorical::Categorical(const std::vector<double>& weights) {
  cumulative_.reserve(weights.size());
  double sum = 0;
  for (const double weight : weights) {
    SL_CHECK(weight >= 0 && std::isfinite(weight), "a weight is negative or not finite");
    sum += weight;
    cumulative_.push_back(sum);
  }
  SL_CHECK(sum > 0, "all weights are zero");
}

std::size_t Categorical::at(double u) const {
  const double level = u * cumulative_.back();
  const auto above = std::upper_bound(cumulative_.begin(), cumulative_.end(), level);
  if (above != cumulative_.end()) return static_cast<std::size_t>(above - cumulative_.begin());
  // The product rounded up to the total: the last index that has weight.
  const auto last = std::lower_bound(cumulative_.begin(), cumulative_.end(), cumulative_.back());
  return static_cast<std::size_t>(last - cumulative_.begin());
}

double weibull_shape_for_cv(double cv) {
  SL_CHECK(cv > 0, "cv must be positive");
  const auto cv_of = [](double shape) {
    const double ratio =
        portable::exp(portable::log_gamma(1 + 2 / shape) - 2 * portable::log_gamma(1 + 1 / shape));
    return std::sqrt(std::max(0.0, ratio - 1));
  };
  double low = 0.05;  // cv falls as the shape grows: about 4e5 here, 0.0013 at the other end
  double high = 1000;
  for (int i = 0; i < 100; ++i) {
    const double middle = std::sqrt(low * high);
    (cv_of(middle) > cv ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

GapSampler::GapSampler(GapKind kind, double cv) : kind_(kind) {
  SL_CHECK(cv > 0 || kind == GapKind::kEven, "cv must be positive");
  switch (kind) {
    case GapKind::kExponential:
    case GapKind::kEven:
      break;
    case GapKind::kGamma:
      shape_ = 1 / (cv * cv);
      scale_ = cv * cv;
      break;
    case GapKind::kLogNormal: {
      const double variance = portable::log(1 + cv * cv);
      shape_ = std::sqrt(variance);
      scale_ = -variance / 2;
      break;
    }
    case GapKind::kWeibull:
      shape_ = weibull_shape_for_cv(cv);
      scale_ = portable::exp(-portable::log_gamma(1 + 1 / shape_));
      break;
  }
}

double GapSampler::draw(RngStream* rng) const {
  switch (kind_) {
    case GapKind::kExponential:
      return rng->exponential();
    case GapKind::kGamma:
      return scale_ * rng->gamma(shape_);
    case GapKind::kLogNormal:
      return rng->log_normal(scale_, shape_);
    case GapKind::kWeibull:
      return scale_ * rng->weibull(shape_);
    case GapKind::kEven:
      return 1;
  }
  return 1;
}

}  // namespace servelab

#include "engine/core/portable_math.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/core/check.h"

namespace servelab::portable {
namespace {

// ln 2 in two parts: the first has its low bits clear, so that k * kLn2High is exact.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kHalfLog2Pi = 0.91893853320467274178;

template <std::size_t n>
double polynomial(const double (&coefficients)[n], double x) {
  double sum = coefficients[n - 1];
  for (std::size_t i = n - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

}  // namespace

double log(double x) {
  SL_CHECK(x > 0 && std::isfinite(x), "log of a number that is not positive");
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  // log m = 2 artanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: 12 terms reach 1e-18.
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  constexpr double kOdd[] = {0,        1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                             1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25};
  const double log_m = 2 * s + 2 * s * polynomial(kOdd, s2);
  return exponent * kLn2High + (log_m + exponent * kLn2Low);
}

double exp(double x) {
  if (x < -708) return 0;
  if (x > 709) return std::numeric_limits<double>::infinity();
  const double k = std::floor(x / (kLn2High + kLn2Low) + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= 0.347
  constexpr double kTaylor[] = {1,
                                1,
                                1.0 / 2,
                                1.0 / 6,
                                1.0 / 24,
                                1.0 / 120,
                                1.0 / 720,
                                1.0 / 5040,
                                1.0 / 40320,
                                1.0 / 362880,
                                1.0 / 3628800,
                                1.0 / 39916800,
                                1.0 / 479001600,
                                1.0 / 6227020800,
                                1.0 / 87178291200};
  return std::ldexp(polynomial(kTaylor, r), static_cast<int>(k));
}

double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (x == 0) return y > 0 ? 0 : std::numeric_limits<double>::infinity();
  if (y == 1) return x;
  return exp(y * log(x));
}

double log_gamma(double x) {
  SL_CHECK(x > 0, "log_gamma of a number that is not positive");
  // Shift up until Stirling's series converges fast, then take the product back out.
  double shift = 0;
  while (x < 12) {
    shift += log(x);
    x += 1;
  }
  const double inverse2 = 1 / (x * x);
  constexpr double kStirling[] = {1.0 / 12,    -1.0 / 360, 1.0 / 1260,
                                  -1.0 / 1680, 1.0 / 1188, -691.0 / 360360};
  return (x - 0.5) * log(x) - x + kHalfLog2Pi + polynomial(kStirling, inverse2) / x - shift;
}

double normal_quantile(double p) {
  SL_CHECK(p > 0 && p < 1, "normal_quantile needs 0 < p < 1");
  // Coefficients as published: Wichura, Applied Statistics 37 (1988), PPND16.
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  const double tail = q < 0 ? p : 1 - p;
  const double r = std::sqrt(-log(tail));
  const double z = r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6)
                          : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return q < 0 ? -z : z;
}

}  // namespace servelab::portable

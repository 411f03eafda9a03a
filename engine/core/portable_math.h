// Elementary functions that give the same bits on every platform. The C library's log, exp and pow
// differ in the last place between versions and processors, and one such bit can move an arrival
// by a nanosecond. These use only IEEE additions, multiplications, divisions and square roots
// (built with -ffp-contract=off), with relative errors of a few 1e-16.
#ifndef SERVELAB_CORE_PORTABLE_MATH_H_
#define SERVELAB_CORE_PORTABLE_MATH_H_

namespace servelab::portable {

double log(double x);            // x > 0 and finite
double exp(double x);            // 0 below -708, infinity above 709
double pow(double x, double y);  // x >= 0; pow(0, y) is 0 for y > 0
double log_gamma(double x);      // x > 0

// z with P(Z <= z) = p for a standard normal Z; 0 < p < 1. Wichura's algorithm AS 241 (1988),
// relative error about 1e-16.
double normal_quantile(double p);

}  // namespace servelab::portable

#endif  // SERVELAB_CORE_PORTABLE_MATH_H_

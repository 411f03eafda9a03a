// Least squares with coefficients that are not negative: physical costs, so that a fitted model
// never gains from more work. Our own: `servelab calibrate` runs on machines without SciPy
// (tests/gpu/bundle.sh), Debian 12's Eigen has no NNLS, and on Eigen's matrices this is 46 lines of
// 132 shorter, but compiles in 4.8 s in place of 0.5 s.
#ifndef SERVELAB_CALIBRATE_NNLS_H_
#define SERVELAB_CALIBRATE_NNLS_H_

#include <cstddef>
#include <vector>

namespace servelab {

// Rows of features with the value that each should give, and its weight (1 / value weighs relative
// errors alike).
class LeastSquares {
 public:
  explicit LeastSquares(std::size_t features) : features_(features) {}
  void add(const std::vector<double>& row, double value, double weight);
  std::size_t rows() const { return values_.size(); }

  // The coefficients >= 0 that make the weighted squared error smallest (Lawson and Hanson 1974,
  // algorithm NNLS). A feature that no row has gets 0.
  std::vector<double> solve() const;

 private:
  std::size_t features_;
  std::vector<double> matrix_;  // row-major, already weighted
  std::vector<double> values_;
};

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_NNLS_H_

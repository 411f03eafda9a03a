#include "engine/calibrate/nnls.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr double kTolerance = 1e-10;
constexpr double kRidge = 1e-12;  // of columns with length 1: equal columns share their weight

// Normal equations with columns scaled to length 1.
struct Normal {
  std::size_t n = 0;
  std::vector<double> gram;  // n x n
  std::vector<double> right;
  std::vector<double> scale;  // lengths of the columns

  double g(std::size_t i, std::size_t j) const { return gram[i * n + j]; }
};

Normal normal_equations(const std::vector<double>& matrix, const std::vector<double>& values,
                        std::size_t n) {
  Normal normal{n, std::vector<double>(n * n), std::vector<double>(n), std::vector<double>(n)};
  for (std::size_t r = 0; r < values.size(); ++r) {
    const double* row = matrix.data() + r * n;
    for (std::size_t i = 0; i < n; ++i) {
      normal.right[i] += row[i] * values[r];
      for (std::size_t j = 0; j < n; ++j) normal.gram[i * n + j] += row[i] * row[j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) normal.scale[i] = std::sqrt(normal.g(i, i));
  for (std::size_t i = 0; i < n; ++i) {
    const double si = normal.scale[i] > 0 ? normal.scale[i] : 1;
    normal.right[i] /= si;
    for (std::size_t j = 0; j < n; ++j) {
      normal.gram[i * n + j] /= si * (normal.scale[j] > 0 ? normal.scale[j] : 1);
    }
  }
  return normal;
}

// Least squares over the features of `set` alone, by Cholesky's factorisation.
std::vector<double> solve_subset(const Normal& normal, const std::vector<std::size_t>& set) {
  const std::size_t m = set.size();
  std::vector<double> l(m * m);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = normal.g(set[i], set[j]) + (i == j ? kRidge : 0);
      for (std::size_t k = 0; k < j; ++k) sum -= l[i * m + k] * l[j * m + k];
      l[i * m + j] = i == j ? std::sqrt(std::max(sum, kRidge)) : sum / l[j * m + j];
    }
  }
  std::vector<double> x(m);
  for (std::size_t i = 0; i < m; ++i) {
    x[i] = normal.right[set[i]];
    for (std::size_t k = 0; k < i; ++k) x[i] -= l[i * m + k] * x[k];
    x[i] /= l[i * m + i];
  }
  for (std::size_t i = m; i-- > 0;) {
    for (std::size_t k = i + 1; k < m; ++k) x[i] -= l[k * m + i] * x[k];
    x[i] /= l[i * m + i];
  }
  return x;
}

// The feature outside `set` whose growth lowers the error fastest, or n when none does.
std::size_t best_feature(const Normal& normal, const std::vector<double>& x,
                         const std::vector<bool>& used) {
  std::size_t best = normal.n;
  double steepest = kTolerance;
  for (std::size_t i = 0; i < normal.n; ++i) {
    if (used[i] || normal.scale[i] <= 0) continue;
    double slope = normal.right[i];
    for (std::size_t j = 0; j < normal.n; ++j) slope -= normal.g(i, j) * x[j];
    if (slope > steepest) {
      steepest = slope;
      best = i;
    }
  }
  return best;
}

}  // namespace

void LeastSquares::add(const std::vector<double>& row, double value, double weight) {
  SL_CHECK(row.size() == features_, "one entry per feature");
  for (const double entry : row) matrix_.push_back(entry * weight);
  values_.push_back(value * weight);
}

std::vector<double> LeastSquares::solve() const {
  const Normal normal = normal_equations(matrix_, values_, features_);
  std::vector<double> x(features_);
  std::vector<bool> used(features_);
  for (std::size_t round = 0; round < 10 * features_; ++round) {
    const std::size_t entering = best_feature(normal, x, used);
    if (entering == features_) break;
    used[entering] = true;
    while (true) {
      std::vector<std::size_t> set;
      for (std::size_t i = 0; i < features_; ++i) {
        if (used[i]) set.push_back(i);
      }
      const std::vector<double> trial = solve_subset(normal, set);
      // Walk towards the trial as far as every coefficient stays >= 0.
      double step = 1;
      for (std::size_t k = 0; k < set.size(); ++k) {
        if (trial[k] > 0) continue;
        const double from = x[set[k]];
        step = std::min(step, from > trial[k] ? from / (from - trial[k]) : 0);
      }
      for (std::size_t k = 0; k < set.size(); ++k) {
        double& value = x[set[k]];
        value += step * (trial[k] - value);
        if (trial[k] <= 0 && value <= kTolerance) {
          value = 0;
          used[set[k]] = false;
        }
      }
      if (step >= 1) break;
    }
  }
  for (std::size_t i = 0; i < features_; ++i) {
    x[i] = normal.scale[i] > 0 ? x[i] / normal.scale[i] : 0;
  }
  return x;
}

}  // namespace servelab

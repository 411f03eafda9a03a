#include "engine/calibrate/part_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/calibrate/nnls.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::size_t kHoldOutEvery = 5;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool held_out(std::size_t index) { return index % kHoldOutEvery == kHoldOutEvery / 2; }

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return kNaN;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - std::floor(at)) * (values[high] - values[low]);
}

double r_squared(const std::vector<double>& measured, const std::vector<double>& predicted) {
  if (measured.size() < 2) return kNaN;
  double mean = 0;
  for (const double value : measured) mean += value / static_cast<double>(measured.size());
  double error = 0, spread = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    error += (measured[i] - predicted[i]) * (measured[i] - predicted[i]);
    spread += (measured[i] - mean) * (measured[i] - mean);
  }
  return spread > 0 ? 1 - error / spread : kNaN;
}

double predict(const PartRow& row, const std::vector<double>& coefficients) {
  double sum = 0;
  for (std::size_t i = 0; i < coefficients.size(); ++i) sum += row.features[i] * coefficients[i];
  return sum;
}

FitQuality quality_of(const std::string& part, const std::vector<double>& measured,
                      const std::vector<double>& predicted) {
  FitQuality quality{part, measured.size(), r_squared(measured, predicted), kNaN, kNaN};
  std::vector<double> errors;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    if (held_out(i) && measured[i] > 0) errors.push_back(std::abs(predicted[i] / measured[i] - 1));
  }
  quality.median_error = quantile(errors, 0.5);
  quality.p90_error = quantile(errors, 0.9);
  return quality;
}

PartFit fit_part(const std::string& part, const std::vector<PartRow>& rows, std::size_t features,
                 Weigh weigh) {
  if (rows.empty()) throw SpecError("calibration: nothing was measured for " + part);
  LeastSquares problem(features);
  const bool can_hold_out = rows.size() >= 2 * features && rows.size() >= kHoldOutEvery;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (can_hold_out && held_out(i)) continue;
    const double weight = weigh == Weigh::kRelative ? 1 / std::max(rows[i].value, 1e-3) : 1;
    problem.add(rows[i].features, rows[i].value, weight);
  }
  PartFit fit;
  fit.coefficients = problem.solve();
  std::vector<double> measured, predicted;
  for (const PartRow& row : rows) {
    measured.push_back(row.value);
    predicted.push_back(predict(row, fit.coefficients));
  }
  fit.quality = quality_of(part, measured, predicted);
  if (!can_hold_out) fit.quality.median_error = fit.quality.p90_error = kNaN;
  return fit;
}

}  // namespace servelab

// Fitting one part of a step as a linear model with coefficients >= 0, and judging it.
#ifndef SERVELAB_CALIBRATE_PART_FIT_H_
#define SERVELAB_CALIBRATE_PART_FIT_H_

#include <cstddef>
#include <string>
#include <vector>

namespace servelab {

// How well a part of the model tells rows that it was not fitted to: one in five.
struct FitQuality {
  std::string part;
  std::size_t rows = 0;     // fitted and held out
  double r2 = 0;            // over all rows, in absolute time
  double median_error = 0;  // of held-out rows, relative; NaN without any
  double p90_error = 0;
};

// A row's features, and what was measured.
struct PartRow {
  std::vector<double> features;
  double value = 0;
};

struct PartFit {
  std::vector<double> coefficients;
  FitQuality quality;
};

double predict(const PartRow& row, const std::vector<double>& coefficients);

// kRelative weighs relative errors alike, so that small steps count too; kAbsolute is the plain
// regression that papers report R2 of.
enum class Weigh { kRelative, kAbsolute };

// Rows in between the others are held out, if enough remain. Throws SpecError without rows.
PartFit fit_part(const std::string& part, const std::vector<PartRow>& rows, std::size_t features,
                 Weigh weigh = Weigh::kRelative);

// Of given predictions; errors over the rows that fit_part would hold out.
FitQuality quality_of(const std::string& part, const std::vector<double>& measured,
                      const std::vector<double>& predicted);

// Linear interpolation between order statistics; NaN when empty.
double quantile(std::vector<double> values, double q);

// 1 - sum of squared errors / sum of squared deviations from the mean; NaN for fewer than two rows.
double r_squared(const std::vector<double>& measured, const std::vector<double>& predicted);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_PART_FIT_H_

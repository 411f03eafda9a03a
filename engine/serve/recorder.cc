#include "engine/serve/recorder.h"

#include <cmath>

namespace servelab {

std::int64_t LatencyHistogram::count() const {
  std::int64_t total = 0;
  for (const std::int64_t count : counts_) total += count;
  return total;
}

double LatencyHistogram::lower_edge(int bin) {
  const int doubling = bin / kPerDoubling;
  const int step = bin % kPerDoubling;
  return std::ldexp(static_cast<double>(kLowest) * (1.0 + step / double{kPerDoubling}), doubling);
}

double LatencyHistogram::quantile(double q) const {
  const std::int64_t total = count();
  if (total == 0) return 0;
  const double target = q * static_cast<double>(total);
  double seen = 0;
  for (int i = 0; i < kPerDoubling * kDoublings; ++i) {
    const auto here = static_cast<double>(counts_[static_cast<std::size_t>(i)]);
    if (here > 0 && seen + here >= target) {
      const double inside = (target - seen) / here;
      return lower_edge(i) + inside * (lower_edge(i + 1) - lower_edge(i));
    }
    seen += here;
  }
  return lower_edge(kPerDoubling * kDoublings);
}

}  // namespace servelab

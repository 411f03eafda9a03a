// Quantities that cross module borders. Times are integer nanoseconds so that the same run gives
// the same stamps on every platform; sizes are integer bytes.
#ifndef SERVELAB_CORE_UNITS_H_
#define SERVELAB_CORE_UNITS_H_

#include <cstdint>

namespace servelab {

using TimeNs = std::int64_t;
using Bytes = std::int64_t;

inline constexpr TimeNs kNever = INT64_MAX;
inline constexpr TimeNs kUnset = -1;  // a stamp that was never taken

inline constexpr double kNsPerSecond = 1e9;
inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// Seconds to nanoseconds, rounded to nearest; seconds from nanoseconds.
constexpr TimeNs from_seconds(double s) {
  return static_cast<TimeNs>(s * kNsPerSecond + (s < 0 ? -0.5 : 0.5));
}
constexpr double to_seconds(TimeNs t) { return static_cast<double>(t) / kNsPerSecond; }

}  // namespace servelab

#endif  // SERVELAB_CORE_UNITS_H_

// How traces of functions are rebuilt from statistics. The randomness here is part of the trace,
// not of an experiment: it has a fixed seed, so that every experiment sees the same trace.
#ifndef SERVELAB_WORKLOAD_FUNCTION_MODELS_H_
#define SERVELAB_WORKLOAD_FUNCTION_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/rng.h"
#include "engine/workload/function_trace.h"

namespace servelab {

inline constexpr double kMaf2Seconds = 14 * 86400.0;  // Azure Functions 2021 spans two weeks
inline constexpr std::size_t kMaf2Apps = 119;
inline constexpr std::size_t kMaf2Functions = 424;
inline constexpr std::uint64_t kModelSeed = 2021;

// One app of Azure Functions 2021: its invocations, its first one, how long it is active, the
// largest gap between two invocations, and the spread of the other gaps (log-normal).
struct AppActivity {
  std::int64_t invocations = 0;
  double start_s = 0;
  double span_s = 0;
  double largest_gap_s = 0;
  double gap_sigma = 0;
};

// Sigma of the log-normal distribution with this mean and median; 0 where the median exceeds it.
double gap_sigma_of(double mean_s, double median_s);

// What is known of an app only by its rank (fraction in (0, 1]): the embedded activity of that
// rank, with a random start where `random_start` or where its rank has no published gaps.
AppActivity activity_of_rank(double rank_fraction, bool random_start, RngStream* rng);

// Adds the invocations to the bins: the first at the start, the last at the end of the span, the
// largest gap at a random place, the others drawn and scaled to fill the span.
void add_activity(const AppActivity& activity, double bin_s, std::span<float> bins, RngStream* rng);

// Builds the trace of functions from its apps, most invoked first: draws each app's invocations
// (stream `name`) and splits them over its functions. 119 apps have 424 functions; how many an app
// has follows the pattern of the trace's first 199 invocations, and within an app the shares
// follow 1/i. Functions are in the order of their app's first invocation.
FunctionTrace trace_of_apps(const std::vector<AppActivity>& apps, std::size_t functions,
                            double bin_s, const char* name);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_FUNCTION_MODELS_H_

// How far a twin is from what was measured: the placement paper's SMAPE (8.2) by load regime, where
// one whose error is beyond a limit is unsupported, and figures say so; who agrees on what
// happened; and whether runs are in the same order.
#ifndef SERVELAB_CALIBRATE_TWIN_ERRORS_H_
#define SERVELAB_CALIBRATE_TWIN_ERRORS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/calibrate/measured_rows.h"

namespace servelab {

inline constexpr const char* kTwin = "twin";  // begins the variant of every twin of measured rows

enum class LoadRegime : std::uint8_t {
  kLow,        // the engine is busy for less than half of the time
  kHigh,       // in between
  kSaturated,  // starved: throughput below 90 % of the incoming token rate
};
const char* name(LoadRegime regime);

// One point on the engine and one twin of it.
struct ValidatedPoint {
  std::string label;      // technique, sweep position, seed
  std::string variant;    // which twin: what it has other than the engine's point, besides backend
  bool is_judged = true;  // the first twin of each point; others are there to compare with
  double incoming_tokens_per_s = 0;
  Outcome engine;
  Outcome twin;
  std::string problem;  // why a side is INVALID; such points count nowhere
  // Of a measured row: what it sets, by key, and where it is from.
  std::vector<std::pair<std::string, std::string>> settings;
  std::string source;
};
LoadRegime regime_of(const Outcome& engine, double incoming_tokens_per_s);

// 100 |a - b| / (|a| + |b|), in percent; NaN where either is. 0 for two zeros.
double symmetric_error(double a, double b);
// 100 |twin / measured - 1|.
double relative_error(double measured, double twin);

struct ErrorLimits {
  double throughput = 5;  // percent
  double itl = 10;
  double ttft = 20;
  double latency = 100;  // none
};
// "throughput=5,itl=10,ttft=20,latency=15", any of them. SpecError for anything else.
ErrorLimits parse_limits(const std::string& text);

// Percent; NaN where no point has both values.
struct MetricErrors {
  double throughput = 0, itl = 0, ttft = 0, latency = 0;
};

// Mean errors over the points of one twin in one regime.
struct RegimeErrors {
  std::string variant;
  std::string regime;  // low, high, saturated, all
  bool is_judged = true;
  std::size_t points = 0;
  MetricErrors smape, relative;
  bool is_supported = true;  // symmetric errors within the limits; no latency is within any
};
// Variants in order of first appearance; regimes without points are left out.
std::vector<RegimeErrors> regime_errors(const std::vector<ValidatedPoint>& points,
                                        const ErrorLimits& limits);

// How often two agree that something happened; of runs that both have a value for.
struct Agreement {
  int both = 0, only_measured = 0, only_twin = 0, neither = 0;
  double f1() const;  // NaN where neither ever saw it
};
// Served below 90 % of what came in; and did not start for lack of memory.
Agreement starved(const std::vector<ValidatedPoint>& points, const std::string& variant);
Agreement out_of_memory(const std::vector<ValidatedPoint>& points, const std::string& variant);

// Whether the twin orders runs as they were measured: Spearman's coefficient of throughput over
// rows of one source that differ in nothing but `key`, of which there are at least three values;
// rows of one value are one, their mean.
struct RankCorrelation {
  std::string key, source;
  std::size_t series = 0, values = 0;  // that it was computed in, and of all of them
  double mean = 0, least = 0;          // over series
};
// Of the twin's points (`ValidatedPoint::settings`), by key and source in order of appearance.
std::vector<RankCorrelation> rank_correlations(const std::vector<ValidatedPoint>& points);
// Of two lists of equal length; equal values share their mean rank. NaN where one is constant.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

std::string errors_table(const std::vector<RegimeErrors>& errors);
std::string points_table(const std::vector<ValidatedPoint>& points);
std::string points_csv(const std::vector<ValidatedPoint>& points);
std::string errors_csv(const std::vector<RegimeErrors>& errors);
std::string agreement_table(const std::vector<ValidatedPoint>& points);
std::string ranks_table(const std::vector<RankCorrelation>& all);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_TWIN_ERRORS_H_

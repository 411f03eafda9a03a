// Statistics fitted to public traces, compiled in so that every experiment runs without a
// download. The tables are written by data/fit_workloads.py from the files that data/README.md
// lists; that page also says how well they fit and what is a model rather than a fit.
#ifndef SERVELAB_WORKLOAD_EMBEDDED_STATS_H_
#define SERVELAB_WORKLOAD_EMBEDDED_STATS_H_

#include <array>
#include <cstddef>
#include <span>

namespace servelab {

// The probabilities of the quantile tables. The first and last stand for the extremes.
inline constexpr std::array<double, 21> kLengthQuantiles = {
    0, .005, .01, .02, .05, .1, .15, .2, .3, .4, .5, .6, .7, .8, .85, .9, .95, .98, .99, .995, 1};
inline constexpr double kExtremeScore = 3.5;  // the normal score of the extremes

// A joint distribution of prompt and output length in tokens: quantile tables, joined by a normal
// copula. Between two knots the logarithm of the length is linear in the normal score.
struct LengthComponent {
  double weight;       // share of this component in a mixture, before any filter
  double correlation;  // of the normal scores of the two lengths
  std::array<double, kLengthQuantiles.size()> prompt;
  std::array<double, kLengthQuantiles.size()> output;
};
struct EmbeddedLengths {
  const char* name;
  int rows;  // of the trace that it was fitted to; 0 for a model built from published numbers
  std::span<const LengthComponent> components;
};

// A point of the Lorenz curve, most popular items first: the top `items` (as a fraction of all)
// receive the fraction `calls` of all calls.
struct ShareKnot {
  double items;
  double calls;
};
struct EmbeddedShares {
  const char* name;
  int items;     // how many items the trace has
  double total;  // calls in the trace (1 where only probabilities are published)
  std::span<const ShareKnot> knots;
};

// Azure Functions 2019: variation of a function's rate in excess of a Poisson process, by rank.
// Rows with the same rank fraction stand for equally many functions (timers are steady, others
// not).
struct BurstGroup {
  double rank_fraction;  // up to this fraction of the functions, most popular first
  double cv_hours;
  double cv_minutes;  // within an hour
};

// Azure Functions 2021: when an app is active, in order of rank. The rarest apps have no published
// gaps and borrow the last rows.
struct AppSpan {
  double rank_fraction;
  double start;        // over the trace's two weeks
  double span;         // over the trace's two weeks
  double largest_gap;  // over the span
  double gap_sigma;    // log-normal sigma of the other gaps
};

std::span<const EmbeddedLengths> embedded_lengths();
std::span<const EmbeddedShares> embedded_shares();
std::span<const double, 24> embedded_daily_curve();  // Azure Functions 2019, mean 1
std::span<const BurstGroup> embedded_bursts();
std::span<const AppSpan> embedded_spans();

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_EMBEDDED_STATS_H_

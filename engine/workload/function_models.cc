#include "engine/workload/function_models.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <vector>

#include "engine/core/portable_math.h"
#include "engine/workload/embedded_stats.h"

namespace servelab {
namespace {

constexpr double kDaySeconds = 86400;
constexpr double kMinMedianGap = 0.0005;  // the published table prints three decimals
constexpr double kRankTolerance = 1e-5;   // the embedded tables have five digits

// One of the kinds of function that are found at this rank.
const BurstGroup& kind_at_rank(double rank_fraction, std::uint64_t function) {
  const auto groups = embedded_bursts();
  std::size_t first = 0;
  while (first + 1 < groups.size() &&
         groups[first].rank_fraction + kRankTolerance < rank_fraction) {
    ++first;
  }
  std::size_t last = first;
  while (last < groups.size() && groups[last].rank_fraction == groups[first].rank_fraction) ++last;
  return groups[first + static_cast<std::size_t>(function % (last - first))];
}

const EmbeddedShares& shares_named(const std::string& name) {
  for (const EmbeddedShares& shares : embedded_shares()) {
    if (name == shares.name) return shares;
  }
  SL_CHECK(false, "no embedded shares called " + name);
  return embedded_shares()[0];
}

// A factor with mean 1 and the given coefficient of variation.
double factor(double cv, RngStream* rng) {
  return cv < 0.01 ? 1 : rng->gamma(1 / (cv * cv)) * (cv * cv);
}

// One function's expected calls in each minute of a day (or in each hour, where `bins` is 24):
// the daily curve, times a factor per hour, times a factor per minute; scaled to `total`.
void fill_day(const BurstGroup& group, double total, std::uint64_t function,
              std::span<float> bins) {
  RngStream hours(kModelSeed, "maf1-hours", function);
  RngStream minutes(kModelSeed, "maf1-minutes", function);
  const std::size_t per_hour = bins.size() / 24;
  double sum = 0;
  for (std::size_t h = 0; h < 24; ++h) {
    const double level = embedded_daily_curve()[h] * factor(group.cv_hours, &hours);
    for (std::size_t m = 0; m < per_hour; ++m) {
      const double value = level * (per_hour > 1 ? factor(group.cv_minutes, &minutes) : 1);
      bins[h * per_hour + m] = static_cast<float>(value);
      sum += value;
    }
  }
  for (float& bin : bins) bin = static_cast<float>(bin * (total / sum));
}

// The order in which functions appear, popular and rare ones mixed as in the real files.
std::vector<std::size_t> file_order(std::size_t n, const char* name) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  RngStream rng(kModelSeed, name);
  rng.shuffle(&order);
  return order;
}

// Functions of each app, most invoked app first: the counts seen in the trace's first 199
// invocations, times 1.5 to reach the trace's 424 functions in 119 apps.
std::vector<std::size_t> functions_per_app(std::size_t apps, std::size_t functions) {
  constexpr std::size_t kPattern[] = {9, 12, 2, 3, 8, 1, 2, 1, 2, 3, 1, 1, 1};
  SL_CHECK(functions >= apps, "fewer functions than apps");
  std::vector<std::size_t> split(apps);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < apps; ++i) sum += split[i] = kPattern[i % std::size(kPattern)];
  for (std::size_t i = 0; sum < functions; i = (i + 1) % apps, ++sum) ++split[i];
  for (std::size_t i = 0; sum > functions; i = (i + 1) % apps) {
    if (split[i] > 1) {
      --split[i];
      --sum;
    }
  }
  return split;
}

}  // namespace

double gap_sigma_of(double mean_s, double median_s) {
  const double median = std::max(median_s, kMinMedianGap);
  return mean_s > median ? std::sqrt(2 * portable::log(mean_s / median)) : 0;
}

AppActivity activity_of_rank(double rank_fraction, bool random_start, RngStream* rng) {
  const auto spans = embedded_spans();
  const auto at = std::find_if(spans.begin(), spans.end(), [&](const AppSpan& span) {
    return rank_fraction <= span.rank_fraction + kRankTolerance;
  });
  const bool is_known = at != spans.end();
  const std::size_t row = is_known ? static_cast<std::size_t>(at - spans.begin())
                                   : spans.size() - 1 - static_cast<std::size_t>(rng->below(30));
  const AppSpan& span = spans[row];
  AppActivity activity;
  activity.span_s = span.span * kMaf2Seconds;
  activity.start_s = span.start * kMaf2Seconds;
  if (random_start || !is_known) activity.start_s = rng->uniform(0, kMaf2Seconds - activity.span_s);
  activity.largest_gap_s = span.largest_gap * activity.span_s;
  activity.gap_sigma = span.gap_sigma;
  return activity;
}

void add_activity(const AppActivity& activity, double bin_s, std::span<float> bins,
                  RngStream* rng) {
  if (activity.invocations <= 0) return;
  const auto add = [&](double at_s) {
    const auto bin = static_cast<std::size_t>(std::max(0.0, at_s) / bin_s);
    bins[std::min(bin, bins.size() - 1)] += 1;
  };
  add(activity.start_s);
  const auto gaps = static_cast<std::size_t>(activity.invocations - 1);
  if (gaps == 0) return;
  const std::size_t largest_at = static_cast<std::size_t>(rng->below(gaps));
  std::vector<double> gap(gaps);
  double sum = 0;
  for (std::size_t i = 0; i < gaps; ++i) {
    gap[i] = i == largest_at ? 0 : rng->log_normal(0, activity.gap_sigma);
    sum += gap[i];
  }
  const double scale = sum > 0 ? (activity.span_s - activity.largest_gap_s) / sum : 0;
  double at_s = activity.start_s;
  for (std::size_t i = 0; i < gaps; ++i) {
    at_s += i == largest_at ? activity.largest_gap_s : gap[i] * scale;
    add(at_s);
  }
}

FunctionTrace trace_of_apps(const std::vector<AppActivity>& apps, std::size_t functions,
                            double bin_s, const char* name) {
  const std::vector<std::size_t> split = functions_per_app(apps.size(), functions);
  std::vector<std::size_t> order(apps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return apps[a].start_s < apps[b].start_s; });
  FunctionTrace trace;
  trace.bin_s = bin_s;
  trace.bins = static_cast<std::size_t>(std::ceil(kMaf2Seconds / bin_s));
  trace.functions = functions;
  check_trace_size(trace.functions, trace.bins);
  trace.counts.reserve(trace.functions * trace.bins);
  std::vector<float> whole(trace.bins);
  for (const std::size_t app : order) {
    std::fill(whole.begin(), whole.end(), 0.0f);
    RngStream rng(kModelSeed, name, app);
    add_activity(apps[app], bin_s, whole, &rng);
    double harmonic = 0;
    for (std::size_t i = 1; i <= split[app]; ++i) harmonic += 1.0 / static_cast<double>(i);
    for (std::size_t i = 1; i <= split[app]; ++i) {
      const double share = 1 / (static_cast<double>(i) * harmonic);
      for (const float count : whole) trace.counts.push_back(static_cast<float>(count * share));
    }
  }
  return trace;
}

FunctionTrace model_maf1(std::size_t functions, double bin_s) {
  const EmbeddedShares& shares = shares_named("maf1");
  const std::size_t n = functions > 0 ? functions : static_cast<std::size_t>(shares.items);
  const bool hourly = bin_s >= 3600;
  const double native_s = hourly ? 3600 : 60;
  const double ratio = bin_s / native_s;
  if (ratio < 1 || ratio != std::floor(ratio) || bin_s > kDaySeconds) {
    throw SpecError(
        "the embedded trace maf1-like has minutes, and hours from 3600 s on; an "
        "interval of " +
        std::to_string(bin_s) + " s is not a multiple of these");
  }
  const std::vector<double> curve = embedded_share_curve("maf1", n);
  const double total = shares.total * static_cast<double>(n) / shares.items;
  const std::vector<std::size_t> order = file_order(n, "maf1-order");
  const auto per_bin = static_cast<std::size_t>(ratio);
  std::vector<float> day(hourly ? 24 : 1440);
  FunctionTrace trace;
  trace.bin_s = bin_s;
  trace.bins = (day.size() + per_bin - 1) / per_bin;
  trace.functions = n;
  check_trace_size(n, trace.bins);
  trace.counts.assign(n * trace.bins, 0.0f);
  for (std::size_t f = 0; f < n; ++f) {
    const std::size_t rank = order[f];
    const double fraction = static_cast<double>(rank + 1) / static_cast<double>(n);
    fill_day(kind_at_rank(fraction, rank), curve[rank] * total, rank, day);
    for (std::size_t i = 0; i < day.size(); ++i) {
      trace.counts[f * trace.bins + i / per_bin] += day[i];
    }
  }
  return trace;
}

FunctionTrace model_maf2(std::size_t functions, double bin_s) {
  const EmbeddedShares& shares = shares_named("maf2");
  const std::size_t n = functions > 0 ? functions : kMaf2Functions;
  const std::size_t count = std::max<std::size_t>(1, n * kMaf2Apps / kMaf2Functions);
  const std::vector<double> curve = embedded_share_curve("maf2", count);
  std::vector<AppActivity> apps(count);
  for (std::size_t i = 0; i < count; ++i) {
    RngStream rng(kModelSeed, "maf2-ranks", i);
    apps[i] = activity_of_rank(static_cast<double>(i + 1) / static_cast<double>(count),
                               count != kMaf2Apps, &rng);
    apps[i].invocations = std::max<std::int64_t>(1, std::llround(curve[i] * shares.total));
  }
  return trace_of_apps(apps, n, bin_s, "maf2-apps");
}

}  // namespace servelab

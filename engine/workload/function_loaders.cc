// The files behind FunctionTrace.
#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "engine/workload/csv.h"
#include "engine/workload/function_models.h"
#include "engine/workload/function_trace.h"

namespace servelab {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// How many bins of `native_s` make one of `bin_s`.
std::size_t bins_per_bin(double bin_s, double native_s, const CsvReader& csv) {
  const double ratio = bin_s / native_s;
  if (ratio < 1 || ratio != std::floor(ratio)) {
    csv.fail("this trace counts per " + std::to_string(static_cast<int>(native_s)) +
             " s; an interval must be a multiple of that");
  }
  return static_cast<std::size_t>(ratio);
}

struct AppStatistics {
  AppActivity activity;
  bool used = false;
};

std::vector<AppStatistics> read_app_statistics(const std::string& path, const std::string& remedy) {
  CsvReader csv(path, remedy);
  const std::size_t requests = csv.column("requests");
  const std::size_t start = csv.column("start_s");
  const std::size_t span = csv.column("span_s");
  const std::size_t largest = csv.column("iat_max_s");
  const std::size_t median = csv.column("iat_median_s");
  std::vector<AppStatistics> apps;
  while (csv.next()) {
    AppStatistics app;
    app.activity.invocations = csv.count(requests);
    app.activity.start_s = csv.non_negative(start);
    app.activity.span_s = csv.non_negative(span);
    app.activity.largest_gap_s = csv.non_negative(largest);
    if (app.activity.invocations < 3 || app.activity.largest_gap_s > app.activity.span_s) {
      csv.fail("fewer than 3 requests, or a gap longer than the span");
    }
    const double mean = (app.activity.span_s - app.activity.largest_gap_s) /
                        static_cast<double>(app.activity.invocations - 2);
    app.activity.gap_sigma = gap_sigma_of(mean, csv.non_negative(median));
    apps.push_back(app);
  }
  return apps;
}

}  // namespace

FunctionTrace load_minute_table(const std::string& path, const std::string& remedy, double bin_s) {
  CsvReader csv(path, remedy);
  std::vector<std::size_t> minutes;
  for (std::size_t i = 0; i < csv.columns().size(); ++i) {
    if (is_number(csv.columns()[i])) minutes.push_back(i);
  }
  if (minutes.empty()) csv.fail("no column is named after a minute (1, 2, ...)");
  const std::size_t per_bin = bins_per_bin(bin_s, 60, csv);
  FunctionTrace trace;
  trace.bin_s = bin_s;
  trace.bins = (minutes.size() + per_bin - 1) / per_bin;
  const bool has_total = csv.has_column("total");
  const std::size_t total_column = has_total ? csv.column("total") : 0;
  while (csv.next()) {
    check_trace_size(trace.functions + 1, trace.bins);
    const std::size_t base = trace.counts.size();
    trace.counts.resize(base + trace.bins, 0.0f);
    std::int64_t sum = 0;
    for (std::size_t m = 0; m < minutes.size(); ++m) {
      const std::int64_t count = csv.count(minutes[m]);
      sum += count;
      trace.counts[base + m / per_bin] += static_cast<float>(count);
    }
    if (has_total && csv.count(total_column) != sum) {
      csv.fail("the minutes sum to " + std::to_string(sum) + ", column 'total' says " +
               std::string(csv.text(total_column)));
    }
    ++trace.functions;
  }
  if (trace.functions == 0) csv.fail("the file has no rows");
  return trace;
}

std::string maf2_gaps_path(const std::string& totals_path) {
  return totals_path.substr(0, totals_path.find_last_of('/') + 1) + "app_iat_stats_77.csv";
}

FunctionTrace load_maf2_statistics(const std::string& totals_path, const std::string& remedy,
                                   double bin_s) {
  std::vector<AppStatistics> known = read_app_statistics(maf2_gaps_path(totals_path), remedy);
  CsvReader csv(totals_path, remedy);
  const std::size_t invocations = csv.column("invocations");
  std::vector<std::int64_t> totals;
  while (csv.next()) totals.push_back(csv.count(invocations));
  if (totals.empty()) csv.fail("the file has no rows");

  std::vector<AppActivity> apps;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const auto at = std::find_if(known.begin(), known.end(), [&](const AppStatistics& app) {
      return !app.used && app.activity.invocations == totals[i];
    });
    if (at != known.end()) {
      at->used = true;
      apps.push_back(at->activity);
      continue;
    }
    RngStream rng(kModelSeed, "maf2-ranks", i);  // as for the embedded trace
    apps.push_back(activity_of_rank(1, false, &rng));
    apps.back().invocations = totals[i];
  }
  return trace_of_apps(apps, apps.size() * kMaf2Functions / kMaf2Apps, bin_s, "maf2-apps");
}

FunctionTrace load_popularity_table(const std::string& path, const std::string& remedy) {
  CsvReader csv(path, remedy);
  const std::size_t column = csv.column(csv.has_column("prob") ? "prob" : "uses");
  FunctionTrace trace;
  trace.bin_s = 0;  // no times
  trace.bins = 1;
  while (csv.next()) trace.counts.push_back(static_cast<float>(csv.non_negative(column)));
  trace.functions = trace.counts.size();
  if (trace.functions == 0) csv.fail("the file has no rows");
  return trace;
}

FunctionTrace load_rate_table(const std::string& path, const std::string& remedy, double bin_s) {
  CsvReader csv(path, remedy);
  const std::size_t second = csv.column("second");
  const std::size_t arrivals = csv.column("arrivals");
  const std::size_t per_bin = bins_per_bin(std::max(1.0, bin_s), 1, csv);
  FunctionTrace trace;
  trace.bin_s = std::max(1.0, bin_s);
  trace.functions = 1;
  while (csv.next()) {
    const auto at = static_cast<std::size_t>(csv.count(second));
    if (at == 0 || at > 10'000'000) csv.fail("seconds count from 1");
    const std::size_t bin = (at - 1) / per_bin;
    if (bin >= trace.counts.size()) trace.counts.resize(bin + 1, 0.0f);
    trace.counts[bin] += static_cast<float>(csv.count(arrivals));
  }
  trace.bins = trace.counts.size();
  if (trace.bins == 0) csv.fail("the file has no rows");
  return trace;
}

FunctionTrace load_client_table(const std::string& path, const std::string& remedy,
                                const std::string& model, double bin_s) {
  constexpr double kWindowSeconds = 600;
  constexpr std::size_t kWindows = 2016;  // two weeks
  CsvReader csv(path, remedy);
  const std::size_t model_column = csv.column("model");
  const std::size_t client = csv.column("client");
  const std::size_t time = csv.column("t_s");
  const std::size_t rate = csv.column("rate");
  const std::size_t cv = csv.column("cv");
  const std::size_t kind = csv.column("dist");
  const std::size_t per_bin = bins_per_bin(std::max(kWindowSeconds, bin_s), kWindowSeconds, csv);
  FunctionTrace trace;
  trace.bin_s = kWindowSeconds * static_cast<double>(per_bin);
  trace.bins = kWindows / per_bin;
  while (csv.next()) {
    if (csv.text(model_column) != model) continue;
    const auto function = static_cast<std::size_t>(csv.count(client));
    const auto window = static_cast<std::size_t>(csv.non_negative(time) / kWindowSeconds);
    if (window >= kWindows) csv.fail("column 't_s' lies beyond the trace's two weeks");
    if (function > 100'000) csv.fail("column 'client' is not an index");
    if (function >= trace.functions) {
      trace.functions = function + 1;
      trace.counts.resize(trace.functions * trace.bins, 0.0f);
      trace.gap_cv.resize(trace.functions * trace.bins, 1.0f);
    }
    const std::size_t cell = function * trace.bins + std::min(window / per_bin, trace.bins - 1);
    trace.counts[cell] += static_cast<float>(csv.non_negative(rate) * kWindowSeconds);
    if (per_bin == 1) {
      const bool weibull = csv.text(kind) == "W";
      if (!weibull && csv.text(kind) != "G") csv.fail("column 'dist' must be G or W");
      const auto value = static_cast<float>(std::clamp(csv.non_negative(cv), 0.05, 50.0));
      trace.gap_cv[cell] = weibull ? -value : value;
    }
  }
  if (trace.functions == 0) csv.fail("no client of model '" + model + "'");
  return trace;
}

}  // namespace servelab

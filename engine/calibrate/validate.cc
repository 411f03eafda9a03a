#include "engine/calibrate/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <utility>

#include "engine/calibrate/measured_rows.h"
#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/record/hdf5_reader.h"
#include "engine/run/point.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr const char* kTwin = "twin";
constexpr const char* kAllRegimes = "all";
constexpr const char* kTooSmall = "device memory is too small";  // as the deployment says it

// What may differ between an engine's point and its twins.
bool is_variant_path(const std::string& path) {
  return path == "backend" || path == "hardware" || path.rfind("workload.lengths", 0) == 0;
}

std::string shown_value(const ConfigNode& node) {
  return node.is_scalar() ? node.scalar : canonical_json(node);
}

// The coordinates that do (not) tell twins from their engine's point.
std::string coordinates_text(const SweepPosition& position, bool variant) {
  std::string text;
  for (const auto& [path, value] : position.coordinates) {
    if (is_variant_path(path) != variant || path == "backend") continue;
    text += (text.empty() ? "" : " ") + path.substr(path.rfind('.') + 1) + "=" + shown_value(value);
  }
  return text;
}

std::string backend_of(const SweepPosition& position) {
  const ConfigNode* node = position.settings.find("backend");
  return node == nullptr ? SpecHeader().backend : node->scalar;
}

// The columns of collected.h5 that matter here, in spec order.
struct Columns {
  std::vector<std::string> status, reasons;
  std::map<std::string, std::vector<double>> metrics;

  Summary summary(std::size_t row) const {
    Summary summary;
    for (const auto& [name, values] : metrics) summary.push_back({name, values.at(row)});
    return summary;
  }
};

Columns read_columns(const std::string& path) {
  const Hdf5Reader file(path);
  Columns columns;
  columns.status = file.texts("/columns/status");
  columns.reasons = file.texts("/columns/reasons");
  for (const char* metric : {"total_tokens_per_s", "itl_mean_s", "ttft_mean_s", "latency_mean_s",
                             "busy_time_s", "duration_s"}) {
    columns.metrics[metric] = file.numbers(std::string("/columns/summary.") + metric);
  }
  return columns;
}

double incoming_rate(const PointSettings& settings, const Workload& workload) {
  double tokens = 0;
  TimeNs last = 0;
  for (const Request& request : workload.requests) {
    tokens += request.prompt_tokens + request.output_tokens;
    last = std::max(last, request.arrival);
  }
  double span = to_seconds(last);
  if (const ConfigNode* duration = settings.workload.find("duration_s")) {
    span = std::strtod(duration->scalar.c_str(), nullptr);
  }
  return span > 0 ? tokens / span : std::numeric_limits<double>::infinity();
}

std::string number(double value, const char* unit_format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(unit_format), value) : "-";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Means that leave NaN out.
class Mean {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    sum_ += value;
    ++count_;
  }
  double value() const {
    return count_ > 0 ? sum_ / static_cast<double>(count_)
                      : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double sum_ = 0;
  std::size_t count_ = 0;
};

void save_text(const std::string& path, const std::string& text) {
  save_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace

const char* name(LoadRegime regime) {
  switch (regime) {
    case LoadRegime::kLow:
      return "low";
    case LoadRegime::kHigh:
      return "high";
    case LoadRegime::kSaturated:
      return "saturated";
  }
  return "";
}

Outcome outcome_of(const Summary& summary) {
  Outcome outcome;
  outcome.tokens_per_s = value_of(summary, "total_tokens_per_s");
  outcome.itl_s = value_of(summary, "itl_mean_s");
  outcome.ttft_s = value_of(summary, "ttft_mean_s");
  outcome.latency_s = value_of(summary, "latency_mean_s");
  outcome.busy_share = value_of(summary, "busy_time_s") / value_of(summary, "duration_s");
  return outcome;
}

LoadRegime regime_of(const Outcome& engine, double incoming_tokens_per_s) {
  constexpr double kStarved = 0.9;  // the paper's definition (6)
  constexpr double kBusy = 0.5;
  if (engine.tokens_per_s < kStarved * incoming_tokens_per_s) return LoadRegime::kSaturated;
  return engine.busy_share < kBusy ? LoadRegime::kLow : LoadRegime::kHigh;
}

double symmetric_error(double a, double b) {
  if (a == 0 && b == 0) return 0;
  return 100 * std::abs(a - b) / (std::abs(a) + std::abs(b));
}

double relative_error(double measured, double twin) {
  return measured == 0 && twin == 0 ? 0 : 100 * std::abs(twin / measured - 1);
}

ErrorLimits parse_limits(const std::string& text) {
  ErrorLimits limits;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string entry = text.substr(start, end - start);
    const std::size_t equals = entry.find('=');
    const std::string key = entry.substr(0, equals);
    char* stop = nullptr;
    const char* digits = equals == std::string::npos ? "" : entry.c_str() + equals + 1;
    const double value = std::strtod(digits, &stop);
    if (*digits == '\0' || *stop != '\0' || !(value >= 0 && value <= 100)) {
      throw SpecError("--limits: " + in_quotes(entry) +
                      " is not a name and a percentage such as throughput=5,itl=10,ttft=20,"
                      "latency=15");
    }
    if (key == "throughput") {
      limits.throughput = value;
    } else if (key == "itl") {
      limits.itl = value;
    } else if (key == "ttft") {
      limits.ttft = value;
    } else if (key == "latency") {
      limits.latency = value;
    } else {
      throw SpecError("--limits: unknown " + in_quotes(key) + "; " +
                      suggest(key, {"throughput", "itl", "ttft", "latency"}));
    }
    start = end + 1;
  }
  return limits;
}

std::vector<RegimeErrors> regime_errors(const std::vector<ValidatedPoint>& points,
                                        const ErrorLimits& limits) {
  std::vector<std::string> variants;
  for (const ValidatedPoint& point : points) {
    if (std::find(variants.begin(), variants.end(), point.variant) == variants.end()) {
      variants.push_back(point.variant);
    }
  }
  std::vector<RegimeErrors> all;
  for (const std::string& variant : variants) {
    for (const char* regime : {"low", "high", "saturated", kAllRegimes}) {
      RegimeErrors errors;
      errors.variant = variant;
      errors.regime = regime;
      Mean throughput, itl, ttft, latency;
      Mean relative_throughput, relative_itl, relative_ttft, relative_latency;
      for (const ValidatedPoint& p : points) {
        if (p.variant != variant || !p.problem.empty()) continue;
        const std::string own = name(regime_of(p.engine, p.incoming_tokens_per_s));
        if (errors.regime != kAllRegimes && errors.regime != own) continue;
        ++errors.points;
        errors.is_judged = p.is_judged;
        throughput.add(symmetric_error(p.engine.tokens_per_s, p.twin.tokens_per_s));
        itl.add(symmetric_error(p.engine.itl_s, p.twin.itl_s));
        ttft.add(symmetric_error(p.engine.ttft_s, p.twin.ttft_s));
        latency.add(symmetric_error(p.engine.latency_s, p.twin.latency_s));
        relative_throughput.add(relative_error(p.engine.tokens_per_s, p.twin.tokens_per_s));
        relative_itl.add(relative_error(p.engine.itl_s, p.twin.itl_s));
        relative_ttft.add(relative_error(p.engine.ttft_s, p.twin.ttft_s));
        relative_latency.add(relative_error(p.engine.latency_s, p.twin.latency_s));
      }
      if (errors.points == 0) continue;
      errors.throughput = throughput.value();
      errors.itl = itl.value();
      errors.ttft = ttft.value();
      errors.latency = latency.value();
      errors.relative_throughput = relative_throughput.value();
      errors.relative_itl = relative_itl.value();
      errors.relative_ttft = relative_ttft.value();
      errors.relative_latency = relative_latency.value();
      // NaN (no value anywhere) is not within a limit; a latency need not be known.
      errors.is_supported = errors.throughput <= limits.throughput && errors.itl <= limits.itl &&
                            errors.ttft <= limits.ttft && !(errors.latency > limits.latency);
      all.push_back(errors);
    }
  }
  return all;
}

std::string errors_table(const std::vector<RegimeErrors>& errors) {
  std::string text = fmt::format("{:34} {:10} {:>6} {:>10} {:>7} {:>7} {:>7}\n", "SMAPE %, twin",
                                 "regime", "points", "throughput", "ITL", "TTFT", "latency");
  for (const RegimeErrors& e : errors) {
    text += fmt::format("{:34} {:10} {:>6} {:>10} {:>7} {:>7} {:>7}{}\n", e.variant, e.regime,
                        e.points, number(e.throughput, "{:.2f}"), number(e.itl, "{:.2f}"),
                        number(e.ttft, "{:.2f}"), number(e.latency, "{:.2f}"),
                        e.is_supported ? "" : "  unsupported");
  }
  text += "mean of |twin / measured - 1| in %\n";
  for (const RegimeErrors& e : errors) {
    if (e.regime != kAllRegimes) continue;
    text +=
        fmt::format("{:34} {:10} {:>6} {:>10} {:>7} {:>7} {:>7}\n", e.variant, e.regime, e.points,
                    number(e.relative_throughput, "{:.2f}"), number(e.relative_itl, "{:.2f}"),
                    number(e.relative_ttft, "{:.2f}"), number(e.relative_latency, "{:.2f}"));
  }
  return text;
}

std::string points_table(const std::vector<ValidatedPoint>& points) {
  std::string text = fmt::format("{:9} {:>5} {:>15} {:>15} {:>17} {:>15}  {}\n", "regime", "busy",
                                 "tokens/s", "ITL ms", "TTFT ms", "latency s", "engine / twin of");
  for (const ValidatedPoint& p : points) {
    if (!p.problem.empty()) {
      text += fmt::format("{:9} {} {}: {}\n", "INVALID", p.label, p.variant, p.problem);
      continue;
    }
    const auto pair = [](double a, double b, double scale, const char* format) {
      return number(a * scale, format) + " / " + number(b * scale, format);
    };
    text +=
        fmt::format("{:9} {:>4.0f}% {:>15} {:>15} {:>17} {:>15}  {} {}\n",
                    name(regime_of(p.engine, p.incoming_tokens_per_s)), 100 * p.engine.busy_share,
                    pair(p.engine.tokens_per_s, p.twin.tokens_per_s, 1, "{:.0f}"),
                    pair(p.engine.itl_s, p.twin.itl_s, 1e3, "{:.2f}"),
                    pair(p.engine.ttft_s, p.twin.ttft_s, 1e3, "{:.1f}"),
                    pair(p.engine.latency_s, p.twin.latency_s, 1, "{:.2f}"), p.label, p.variant);
  }
  return text;
}

std::string points_csv(const std::vector<ValidatedPoint>& points) {
  std::string text =
      "label,variant,judged,regime,incoming_tokens_per_s,engine_busy_share,engine_tokens_per_s,"
      "twin_tokens_per_s,engine_itl_s,twin_itl_s,engine_ttft_s,twin_ttft_s,engine_latency_s,"
      "twin_latency_s,problem\n";
  for (const ValidatedPoint& p : points) {
    text += fmt::format(
        "{},{},{},{},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{}\n",
        quoted(p.label), quoted(p.variant), p.is_judged ? 1 : 0,
        name(regime_of(p.engine, p.incoming_tokens_per_s)), p.incoming_tokens_per_s,
        p.engine.busy_share, p.engine.tokens_per_s, p.twin.tokens_per_s, p.engine.itl_s,
        p.twin.itl_s, p.engine.ttft_s, p.twin.ttft_s, p.engine.latency_s, p.twin.latency_s,
        quoted(p.problem));
  }
  return text;
}

std::string errors_csv(const std::vector<RegimeErrors>& errors) {
  std::string text =
      "variant,judged,regime,points,throughput_smape,itl_smape,ttft_smape,latency_smape,"
      "supported\n";
  for (const RegimeErrors& e : errors) {
    text += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{}\n", quoted(e.variant),
                        e.is_judged ? 1 : 0, e.regime, e.points, e.throughput, e.itl, e.ttft,
                        e.latency, e.is_supported ? 1 : 0);
  }
  return text;
}

void add_backends(const std::string& engine, Spec* spec) {
  if (std::find(spec->swept.begin(), spec->swept.end(), "backend") != spec->swept.end()) return;
  std::vector<SweepPosition> positions;
  for (const SweepPosition& position : spec->positions) {
    for (const std::string& backend : {engine, SpecHeader().backend}) {
      positions.push_back(position);
      const ConfigNode value = ConfigNode::of(backend, false);
      positions.back().settings.set("backend", value);
      positions.back().coordinates.emplace_back("backend", value);
    }
  }
  spec->positions = std::move(positions);
  spec->swept.push_back("backend");
  spec->id += "_validate";
}

double Agreement::f1() const {
  const int wrong = only_measured + only_twin;
  return both + wrong > 0 ? 2.0 * both / (2 * both + wrong)
                          : std::numeric_limits<double>::quiet_NaN();
}

namespace {

void count(bool measured, bool twin, Agreement* agreement) {
  (measured ? (twin ? agreement->both : agreement->only_measured)
            : (twin ? agreement->only_twin : agreement->neither)) += 1;
}

}  // namespace

Agreement starved(const std::vector<ValidatedPoint>& points, const std::string& variant) {
  Agreement agreement;
  for (const ValidatedPoint& p : points) {
    if (p.variant != variant || !p.problem.empty()) continue;
    count(regime_of(p.engine, p.incoming_tokens_per_s) == LoadRegime::kSaturated,
          regime_of(p.twin, p.incoming_tokens_per_s) == LoadRegime::kSaturated, &agreement);
  }
  return agreement;
}

Agreement out_of_memory(const std::vector<ValidatedPoint>& points, const std::string& variant) {
  Agreement agreement;
  for (const ValidatedPoint& p : points) {
    if (p.variant == variant) count(p.engine.out_of_memory, p.twin.out_of_memory, &agreement);
  }
  return agreement;
}

void add_rows(const MeasuredRows& rows, Spec* spec) {
  std::vector<SweepPosition> positions;
  for (const MeasuredRow& row : rows.rows) {
    if (!row.is_run()) continue;
    positions.push_back(position_of(*spec, row));
    resolve_point(*spec, positions.back(), spec->techniques.front(), spec->seeds.front());
    for (const auto& [key, value] : row.settings) {
      if (std::find(spec->swept.begin(), spec->swept.end(), key) == spec->swept.end()) {
        spec->swept.push_back(key);
      }
    }
  }
  if (positions.empty())
    throw SpecError(rows.path +
                    ": has no whole run; validate needs measured.tokens_per_s and the like");
  spec->positions = std::move(positions);
  spec->id += "_measured";
}

std::vector<ValidatedPoint> measured_points(const Spec& spec, const MeasuredRows& rows,
                                            const RunOptions& options) {
  const Columns columns = read_columns(options.out + "/" + spec.id + "/collected.h5");
  std::vector<ValidatedPoint> points;
  std::size_t position = 0;
  for (const MeasuredRow& row : rows.rows) {
    if (!row.is_run()) continue;
    const SweepPosition& at = spec.positions.at(position);
    const PointSettings settings =
        resolve_point(spec, at, spec.techniques.front(), spec.seeds.front());
    ValidatedPoint point;
    point.label = coordinates_text(at, false);
    point.incoming_tokens_per_s =
        incoming_rate(settings, build_point_workload(settings, options.data_dir).workload);
    point.engine = row.measured;
    Outcome twin = outcome_of(columns.summary(position));
    point.engine.busy_share = twin.busy_share;  // of a server that does not tell
    const bool is_valid = columns.status.at(position) == "VALID";
    twin.out_of_memory =
        !is_valid && columns.reasons.at(position).find(kTooSmall) != std::string::npos;
    if (!is_valid) point.problem = columns.reasons.at(position);
    for (const auto& [key, value] : row.settings) {
      point.settings.emplace_back(key, canonical_json(value));
    }
    point.source = row.source;
    const auto add = [&](const std::string& variant, const Outcome& outcome) {
      ValidatedPoint own = point;
      own.variant = variant + (row.is_judged() ? "" : ", rows " + row.part);
      own.is_judged = variant == kTwin && row.is_judged();
      own.twin = outcome;
      if (variant != kTwin) own.problem = outcome.out_of_memory ? "out of memory" : "";
      if (point.engine.out_of_memory) own.problem = "out of memory";
      points.push_back(std::move(own));
    };
    add(kTwin, twin);
    for (const auto& [who, outcome] : row.predicted) add(who, outcome);
    ++position;
  }
  return points;
}

std::vector<ValidatedPoint> paired_points(const Spec& spec, const RunOptions& options) {
  const Columns columns = read_columns(options.out + "/" + spec.id + "/collected.h5");
  const std::size_t techniques = spec.techniques.size(), seeds = spec.seeds.size();
  if (spec.point_count() != spec.positions.size() * techniques * seeds) {
    throw SpecError(spec.id + ": validate needs every technique at every position of the sweep");
  }
  if (columns.status.size() != spec.point_count()) {
    throw SpecError(spec.id + ": its results are of another spec; run it again");
  }
  const auto row_of = [&](std::size_t p, std::size_t t, std::size_t s) {
    return (p * techniques + t) * seeds + s;
  };
  std::map<std::string, std::size_t> engines;  // position of the engine, by common coordinates
  for (std::size_t p = 0; p < spec.positions.size(); ++p) {
    if (!is_real(backend_of(spec.positions[p]))) continue;
    if (!engines.emplace(coordinates_text(spec.positions[p], false), p).second) {
      throw SpecError(spec.path +
                      ": two positions on a real backend differ in nothing but "
                      "hardware or lengths; validate takes one for each set of twins");
    }
  }
  std::vector<ValidatedPoint> points;
  std::map<std::string, std::string> judged;  // the first twin's variant, by common coordinates
  for (std::size_t p = 0; p < spec.positions.size(); ++p) {
    if (is_real(backend_of(spec.positions[p]))) continue;
    const std::string common = coordinates_text(spec.positions[p], false);
    const auto engine = engines.find(common);
    if (engine == engines.end()) continue;
    const std::string variant = coordinates_text(spec.positions[p], true);
    const bool is_judged = judged.emplace(common, variant).first->second == variant;
    for (std::size_t t = 0; t < techniques; ++t) {
      for (std::size_t s = 0; s < seeds; ++s) {
        const SweepPosition& at = spec.positions[engine->second];
        const PointSettings settings = resolve_point(spec, at, spec.techniques[t], spec.seeds[s]);
        const std::size_t rows[] = {row_of(engine->second, t, s), row_of(p, t, s)};
        ValidatedPoint point;
        point.label = spec.techniques[t].label + " " + common +
                      (seeds > 1 ? " seed=" + std::to_string(spec.seeds[s]) : "");
        point.variant = variant.empty() ? kTwin : variant;
        point.is_judged = is_judged;
        point.incoming_tokens_per_s =
            incoming_rate(settings, build_point_workload(settings, options.data_dir).workload);
        point.engine = outcome_of(columns.summary(rows[0]));
        point.twin = outcome_of(columns.summary(rows[1]));
        for (const std::size_t row : rows) {
          if (columns.status[row] != "VALID" && point.problem.empty()) {
            point.problem = columns.reasons[row];
          }
        }
        points.push_back(std::move(point));
      }
    }
  }
  if (points.empty()) {
    throw SpecError(spec.path + ": no position has both a real backend and a twin");
  }
  return points;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  SL_CHECK(a.size() == b.size(), "ranks of two lists of one length");
  const auto ranks = [](const std::vector<double>& values) {
    std::vector<double> ranks;
    for (const double value : values) {
      const auto below = std::count_if(values.begin(), values.end(),
                                       [value](double other) { return other < value; });
      const auto equal = std::count(values.begin(), values.end(), value);
      ranks.push_back(static_cast<double>(below) + static_cast<double>(equal - 1) / 2.0);
    }
    return ranks;
  };
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double middle = (static_cast<double>(x.size()) - 1) / 2;  // the mean rank
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) * (x[i] - middle);
    yy += (y[i] - middle) * (y[i] - middle);
  }
  return xy / std::sqrt(xx * yy);
}

std::vector<RankCorrelation> rank_correlations(const std::vector<ValidatedPoint>& points) {
  constexpr std::size_t kFewest = 3;
  struct Throughput {
    double measured = 0, twin = 0, rows = 0;
  };
  // By key and source, then what else the rows set, then the key's value.
  using Series = std::map<std::string, Throughput>;
  std::vector<std::pair<RankCorrelation, std::map<std::string, Series>>> found;
  for (const ValidatedPoint& p : points) {
    if (!p.problem.empty() || p.variant.rfind(kTwin, 0) != 0) continue;
    for (const auto& setting : p.settings) {
      const std::string& key = setting.first;
      std::string others;
      for (const auto& [other, its] : p.settings) {
        if (other != key) others += other + "=" + its + " ";
      }
      auto at = std::find_if(found.begin(), found.end(), [&](const auto& entry) {
        return entry.first.key == key && entry.first.source == p.source;
      });
      if (at == found.end()) {
        found.emplace_back();
        at = std::prev(found.end());
        at->first.key = key;
        at->first.source = p.source;
      }
      Throughput& sum = at->second[others][setting.second];
      sum.measured += p.engine.tokens_per_s;
      sum.twin += p.twin.tokens_per_s;
      ++sum.rows;
    }
  }
  std::vector<RankCorrelation> all;
  for (auto& [correlation, by_others] : found) {
    correlation.least = 1;
    for (const auto& [others, series] : by_others) {
      std::vector<double> measured, twin;
      for (const auto& [value, sum] : series) {
        measured.push_back(sum.measured / sum.rows);
        twin.push_back(sum.twin / sum.rows);
      }
      const double rho = spearman(measured, twin);
      if (measured.size() < kFewest || std::isnan(rho)) continue;
      ++correlation.series;
      correlation.values += measured.size();
      correlation.mean += rho;
      correlation.least = std::min(correlation.least, rho);
    }
    if (correlation.series == 0) continue;
    correlation.mean /= static_cast<double>(correlation.series);
    all.push_back(correlation);
  }
  return all;
}

namespace {

std::string ranks_table(const std::vector<RankCorrelation>& all) {
  std::string text;
  for (const RankCorrelation& c : all) {
    text += fmt::format(
        "Spearman {:6.3f}, least {:6.3f}: throughput by {} ({} series, {} values){}\n", c.mean,
        c.least, c.key, c.series, c.values, c.source.empty() ? "" : " " + c.source);
  }
  return text;
}

std::string agreement_table(const std::vector<ValidatedPoint>& points) {
  std::string text;
  std::vector<std::string> seen;
  for (const ValidatedPoint& p : points) {
    if (std::find(seen.begin(), seen.end(), p.variant) != seen.end()) continue;
    seen.push_back(p.variant);
    const auto line = [&](const char* what, const Agreement& a) {
      if (a.both + a.only_measured + a.only_twin == 0) return;
      text += fmt::format(
          "{:34} {:13} F1 {:.3f} ({} in both, {} measured only, {} in the twin only, {} neither)\n",
          p.variant, what, a.f1(), a.both, a.only_measured, a.only_twin, a.neither);
    };
    line("starved", starved(points, p.variant));
    line("out of memory", out_of_memory(points, p.variant));
  }
  return text;
}

}  // namespace

bool validate(Spec spec, const ValidateOptions& options) {
  const ErrorLimits limits = parse_limits(options.limits);
  MeasuredRows rows;
  if (options.measured.empty()) {
    add_backends(options.backend, &spec);
  } else {
    rows = read_measured_rows(options.measured);
    add_rows(rows, &spec);
  }
  const RunReport report = run_spec(spec, options.run);
  if (!report.collected) {
    throw SpecError(spec.id + ": not every point was run; run the same command to go on");
  }
  const std::vector<ValidatedPoint> points = rows.rows.empty()
                                                 ? paired_points(spec, options.run)
                                                 : measured_points(spec, rows, options.run);
  const std::vector<RegimeErrors> errors = regime_errors(points, limits);
  fmt::print("{}\n{}{}{}", points_table(points), errors_table(errors), agreement_table(points),
             ranks_table(rank_correlations(points)));
  save_text(report.folder + "/validation.csv", errors_csv(errors));
  save_text(report.folder + "/validation_points.csv", points_csv(points));
  const auto refused = std::count_if(points.begin(), points.end(),
                                     [](const ValidatedPoint& p) { return !p.problem.empty(); });
  fmt::print("{} points, {} INVALID; written to {}/validation.csv\n", points.size(), refused,
             report.folder);
  return !errors.empty() && std::none_of(errors.begin(), errors.end(), [](const RegimeErrors& e) {
    return e.is_judged && !e.is_supported;
  });
}

}  // namespace servelab

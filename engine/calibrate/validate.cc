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

void save_text(const std::string& path, const std::string& text) {
  save_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace

Outcome outcome_of(const Summary& summary) {
  Outcome outcome;
  outcome.tokens_per_s = value_of(summary, "total_tokens_per_s");
  outcome.itl_s = value_of(summary, "itl_mean_s");
  outcome.ttft_s = value_of(summary, "ttft_mean_s");
  outcome.latency_s = value_of(summary, "latency_mean_s");
  outcome.busy_share = value_of(summary, "busy_time_s") / value_of(summary, "duration_s");
  return outcome;
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

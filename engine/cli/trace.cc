#include "engine/cli/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/record/point_file.h"
#include "engine/record/trace_file.h"
#include "engine/run/output_folder.h"
#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

struct Choice {
  const SweepPosition* position;
  const TechniqueEntry* entry;
  std::int64_t seed;

  std::string label() const {
    const std::string where = position->text();
    return entry->label + (where.empty() ? "" : " " + where) + fmt::format(" seed={}", seed);
  }
  // What an option can name of it, as NAME=VALUE; swept settings by their last part and in full.
  std::vector<std::string> names() const {
    std::vector<std::string> found = {"technique=" + entry->label, fmt::format("seed={}", seed)};
    for (const auto& [path, value] : position->coordinates) {
      const std::string text = value.is_scalar() ? value.scalar : canonical_json(value);
      found.push_back(path + "=" + text);
      const std::size_t dot = path.rfind('.');
      if (dot != std::string::npos) found.push_back(path.substr(dot + 1) + "=" + text);
    }
    return found;
  }
};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<Choice> every_point(const Spec& spec) {
  std::vector<Choice> points;
  for (const SweepPosition& position : spec.positions) {
    for (const std::size_t technique : position.techniques) {
      for (const std::int64_t seed : spec.seeds) {
        points.push_back({&position, &spec.techniques[technique], seed});
      }
    }
  }
  return points;
}

// Those that have what `only` says; of several values of a setting that it does not name, the
// first.
std::vector<Choice> chosen_points(const Spec& spec, const TraceOptions& options) {
  std::vector<Choice> points = every_point(spec);
  for (const std::string& wanted : options.only) {
    std::vector<std::string> known;
    for (const Choice& point : points) {
      for (const std::string& name : point.names()) {
        if (!has(known, name)) known.push_back(name);
      }
    }
    if (!has(known, wanted)) {
      throw SpecError("--trace-only: no point of " + spec.id + " has " + in_quotes(wanted) + "; " +
                      suggest(wanted, known));
    }
    std::erase_if(points, [&](const Choice& point) { return !has(point.names(), wanted); });
  }
  std::erase_if(points, [first = points.front()](const Choice& point) {
    return point.position != first.position || point.seed != first.seed;
  });
  if (points.size() > kMostTracedPoints) {
    throw SpecError(
        fmt::format("--trace: {} techniques of {}; a trace holds {} at most: choose "
                    "one with --trace-only, such as --trace-only 'technique={}'",
                    points.size(), spec.id, kMostTracedPoints, points.front().entry->label));
  }
  return points;
}

// The point's record with its steps.
RunRecord traced_record(const PointSettings& settings, const BuiltWorkload& workload,
                        const std::string& path, const StoredPoint& stored) {
  PointSettings traced = settings;
  traced.record.steps = traced.record.series = true;
  RunRecord record;
  if (is_real(settings.backend)) {
    RunRecord original;
    std::string recorded;
    if (!read_delivered(path, &original, &recorded)) {
      throw SpecError(path + ": holds no stamps to replay; run with --force");
    }
    record = replay_point(traced, workload.workload, original);
  } else {
    record = run_point(traced, workload.workload).record;
  }
  const std::string now = hash_text(record.decision_hash);
  if (now != stored.decision_hash) {
    throw SpecError(
        fmt::format("{}: computed again, it decided otherwise ({}, not {}): its trace "
                    "would be another run's",
                    path, now, stored.decision_hash));
  }
  return record;
}

TraceWindow window_of(const TraceOptions& options) {
  TraceWindow window;
  if (options.window_s.empty()) return window;
  window.from = from_seconds(options.window_s.at(0));
  window.to = from_seconds(options.window_s.at(1));
  if (window.from >= window.to) throw SpecError("--trace-window: its end is not after its start");
  return window;
}

}  // namespace

void check_trace(const Spec& spec, const TraceOptions& options) {
  chosen_points(spec, options);
  window_of(options);
  const std::filesystem::path folder =
      std::filesystem::absolute(options.file).lexically_normal().parent_path();
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored) ||
      std::filesystem::is_directory(options.file, ignored)) {
    throw SpecError("--trace: " + options.file + " cannot be a file; name one in a folder that " +
                    "is there");
  }
  check_not_a_spec("--trace", options.file);
}

void write_trace(const Spec& spec, const TraceOptions& options, const std::string& out,
                 const std::string& data_dir) {
  const OutputFolder folder(out, spec.id, FolderUse::kShared);
  const std::vector<Choice> points = chosen_points(spec, options);
  std::vector<BuiltWorkload> workloads(points.size());
  std::vector<RunRecord> records(points.size());
  std::vector<TracedRun> runs;
  std::size_t steps = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto& [position, entry, seed] = points[i];
    const PointSettings settings = resolve_point(spec, *position, *entry, seed);
    workloads[i] = build_point_workload(settings, data_dir);
    const std::string key = point_key(effective_settings(settings, workloads[i]), workloads[i]);
    const std::string label = points[i].label();
    const std::string path = folder.point_path(key);
    std::string damage;
    const std::optional<StoredPoint> stored = read_point(path, key, &damage);
    if (!stored) {
      throw SpecError(fmt::format("--trace: {} has {}", label,
                                  damage.empty() ? "no results" : "damaged results: " + damage));
    }
    records[i] = traced_record(settings, workloads[i], path, *stored);
    steps += records[i].step_log.size();
    runs.push_back({label, &workloads[i].workload, &records[i],
                    from_seconds(settings.cluster.migration_delay_s)});
  }
  const std::string json = trace_json(runs, window_of(options));
  save_atomically(options.file, std::as_bytes(std::span(json)));
  fmt::print("{}: {} points, {} steps, {:.1f} MB; open it at ui.perfetto.dev\n", options.file,
             points.size(), steps, static_cast<double>(json.size()) / 1e6);
}

}  // namespace servelab

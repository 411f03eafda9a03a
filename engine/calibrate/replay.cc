#include "engine/calibrate/replay.h"

#include <fmt/format.h>

#include "engine/core/check.h"
#include "engine/run/output_folder.h"
#include "engine/run/point.h"

namespace servelab {
namespace {

enum class Outcome { kSame, kDiverged, kMissing };

Outcome replay_one(const PointSettings& settings, const BuiltWorkload& workload,
                   const OutputFolder& folder, std::string* text) {
  std::string damage;
  const std::string key = point_key(effective_settings(settings, workload), workload);
  const std::string path = folder.point_path(key);
  if (!read_point(path, key, &damage)) {
    *text = damage.empty() ? "not run yet" : damage;
    return Outcome::kMissing;
  }
  RunRecord original;
  std::string recorded;
  if (!read_delivered(path, &original, &recorded)) {
    *text = "its file holds no stamps";
    return Outcome::kMissing;
  }
  try {
    const RunRecord replayed = replay_point(settings, workload.workload, original);
    const std::string hash = hash_text(replayed.decision_hash);
    *text = fmt::format(
        "{} events, decisions {}", original.delivered.size(),
        hash == recorded ? "identical (" + hash + ")" : "DIFFER: " + hash + " against " + recorded);
    return hash == recorded ? Outcome::kSame : Outcome::kDiverged;
  } catch (const SpecError& error) {
    *text = std::string("DIVERGED: ") + error.what();
    return Outcome::kDiverged;
  }
}

}  // namespace

ReplayReport replay_spec(const Spec& spec, const std::string& out, const std::string& data_dir) {
  ReplayReport report;
  const OutputFolder folder(out, spec.id, FolderUse::kAlone);
  for (const SweepPosition& position : spec.positions) {
    for (const std::size_t technique : position.techniques) {
      const TechniqueEntry& entry = spec.techniques[technique];
      for (const std::int64_t seed : spec.seeds) {
        const PointSettings settings = resolve_point(spec, position, entry, seed);
        if (!is_real(settings.backend)) continue;
        const BuiltWorkload workload = build_point_workload(settings, data_dir);
        std::string text;
        const Outcome outcome = replay_one(settings, workload, folder, &text);
        ++report.replayed;
        if (outcome == Outcome::kMissing) ++report.missing;
        if (outcome == Outcome::kDiverged) ++report.diverged;
        fmt::print("{}: {} {} seed={}: {}\n", spec.id, entry.label, position.text(), seed, text);
      }
    }
  }
  return report;
}

}  // namespace servelab

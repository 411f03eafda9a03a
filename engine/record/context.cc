#include "engine/record/context.h"

#include <hdf5.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/core/processor.h"
#include "engine/record/build_id.h"
#include "engine/record/point_file.h"

namespace servelab {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#else
  return std::string("gcc ") + __VERSION__;
#endif
}

const char* optimisation() {
#if defined(__OPTIMIZE__)
  return "on";
#else
  return "off";
#endif
}

// "0-7,9" of ids in any order.
std::string ranges(std::vector<AdapterId> ids) {
  std::sort(ids.begin(), ids.end());
  std::string text;
  for (std::size_t first = 0; first < ids.size();) {
    std::size_t last = first;
    while (last + 1 < ids.size() && index(ids[last + 1]) == index(ids[last]) + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(index(ids[first]));
    if (last > first) text += '-' + std::to_string(index(ids[last]));
    first = last + 1;
  }
  return text;
}

nlohmann::json units_json(const Deployment& deployment) {
  nlohmann::json units = nlohmann::json::array();
  for (const Unit& unit : deployment.units) {
    nlohmann::json json;
    json["devices"] = unit.devices;
    json["off"] = unit.off;
    json["adapter_slots"] = unit.adapter_slots;
    json["slot_rank"] = unit.slot_rank;
    json["adapters"] = ranges(unit.adapters);
    if (unit.repository) json["repository"] = ranges(*unit.repository);
    json["model_slots"] = unit.model_slots;
    for (const UnitModel& entry : unit.models) {
      json["models"].push_back({{"model", index(entry.model)},
                                {"share", entry.share},
                                {"takes_turns", entry.takes_turns}});
    }
    units.push_back(std::move(json));
  }
  return units;
}

}  // namespace

std::string version_text() { return "0.1.0"; }

std::string context_json(const RunRecord& record, double wall_s, const RanOn& ran_on) {
  utsname system{};
  uname(&system);
  nlohmann::json json;
  json["servelab"] = version_text();
  json["build_id"] = build_id();
  json["compiler"] = compiler();
  json["optimisation"] = optimisation();
  json["hdf5"] = H5_VERS_INFO;
  json["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  json["processor"] = processor_name();
  json["processors"] = sysconf(_SC_NPROCESSORS_ONLN);
  if (!ran_on.device.empty()) json["device"] = ran_on.device;
  if (!ran_on.kernels.empty()) json["kernels"] = ran_on.kernels;
  if (ran_on.processor_loss) json["processor_loss"] = *ran_on.processor_loss;
  json["written"] = utc_now();
  json["wall_s"] = wall_s;
  json["decisions_wall_s"] = to_seconds(record.cluster.decision_wall_time);
  if (!record.deployment.units.empty()) json["deployment"] = units_json(record.deployment);
  return json.dump();
}

std::string version_report(const std::string& backends) {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return "servelab " + version_text() + "\nbuild id       " + build_id() + "\ncompiler       " +
         compiler() + ", optimisation " + optimisation() + "\nHDF5           " +
         std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release) +
         "\nresult schema  " + std::to_string(kResultSchema) + "\nbackends       " + backends +
         "\n";
}

}  // namespace servelab

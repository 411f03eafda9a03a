#include "engine/run/spec_check.h"

#include <filesystem>
#include <new>
#include <stdexcept>

#include "engine/run/point.h"

namespace servelab {
namespace {

// Every position with every technique, and workloads: the first one or all.
void check_positions(const Spec& spec, const std::string& data_dir, bool every_workload) {
  for (const SweepPosition& position : spec.positions) {
    bool is_built = false;
    for (const std::size_t technique : position.techniques) {
      const PointSettings settings =
          resolve_point(spec, position, spec.techniques[technique], spec.seeds.front());
      if (is_built || (!every_workload && &position != &spec.positions.front())) continue;
      build_point_workload(settings, data_dir);
      is_built = true;
    }
  }
}

}  // namespace

std::string too_little_memory(const Spec& spec) {
  std::string text = "not enough memory for a workload; lower workload.requests";
  const ConfigNode* workload = spec.positions.front().settings.find("workload");
  const ConfigNode* requests = workload != nullptr ? workload->find("requests") : nullptr;
  if (requests != nullptr && requests->is_scalar()) {
    text += " (now " + requests->scalar + ")";
  } else {
    text += " or workload.duration_s";
  }
  const ConfigNode* cluster = spec.positions.front().settings.find("cluster");
  const ConfigNode* replicas = cluster != nullptr ? cluster->find("replicas") : nullptr;
  if (replicas != nullptr && replicas->is_scalar() && replicas->scalar.size() > 3) {
    text += " or cluster.replicas (now " + replicas->scalar + ")";
  }
  return text + ": a request takes about " + std::to_string(kBytesPerRequest) + " bytes";
}

void check_not_a_spec(const std::string& option, const std::string& file) {
  const std::filesystem::path path(file);
  std::error_code ignored;
  if ((path.extension() == ".yaml" || path.extension() == ".yml") &&
      std::filesystem::exists(path, ignored)) {
    throw SpecError(option + ": " + file + " is there, and looks like a spec; name a new file");
  }
}

void check_spec(const Spec& spec, const std::string& data_dir, bool every_workload) {
  try {
    check_positions(spec, data_dir, every_workload);
  } catch (const std::bad_alloc&) {
    throw SpecError(spec.path + ": " + too_little_memory(spec));
  } catch (const std::length_error&) {
    throw SpecError(spec.path + ": " + too_little_memory(spec));
  }
}

}  // namespace servelab

#include "engine/run/point_check.h"

#include "engine/backend/device/real_backend.h"

namespace servelab {
namespace {

// What a run's first plan with LoRA on the host, or its first load, would be refused for.
void check_device(const PointSettings& point) {
  const bool host_lora = point.technique->capabilities().host_lora;
  const LoadPath paths[] = {point.engine.path(), point.engine.model_load_path};
  const auto kind = Registry<BackendKind>::instance().make(point.backend);
  const char* why = nullptr;
  for (const LoadPath path : paths) {
    if (why == nullptr) why = kind->no_load_path(path);
  }
  if (!kind->is_real() && static_cast<const VirtualBackend&>(*kind).uses_costs()) {
    const auto cost = point_cost_model(point, point.cluster.tensor_parallel);
    for (const LoadPath path : paths) {
      if (why == nullptr) why = cost->no_load_path(path);
    }
    if (host_lora && why == nullptr) why = cost->no_host_lora();
  }
  if (why != nullptr) throw SpecError(why);
  if (point.engine.preloaded_models && kind->is_real()) {
    throw SpecError("models that are preloaded are for backends in virtual time; on " +
                    point.backend + " leave `preloaded` out");
  }
  if (host_lora && kind->is_real() && point.runtime.adapter_store == "disk") {
    throw SpecError(kHostLoraFromDisk);
  }
}

// No device has the memory that an oracle assumes.
void check_cached_adapters(const PointSettings& point) {
  if (!point.engine.cached_adapters || !is_real(point.backend)) return;
  throw SpecError("engine.cached_adapters is an oracle of backends in virtual time; on " +
                  point.backend + " raise engine.adapter_slots instead");
}

// Repositories are given; what decides itself where adapters are would have nothing to decide.
void check_repositories(const PointSettings& point) {
  if (point.cluster.repository_copies == 0) return;
  if (point.engine.adapters_as_models) {
    throw SpecError(
        "cluster.repository_copies is about LoRA adapters, and here each is served as a whole "
        "model; leave it out");
  }
  const auto policy = Registry<ClusterPolicy>::instance().make(point.route);
  if (!policy->capabilities().places_adapters) return;
  throw SpecError("cluster.repository_copies says where adapters are, but route '" + point.route +
                  "' places and moves them itself; leave it out, or take another route");
}

}  // namespace

void check_technique(const PointSettings& point) {
  point.technique->check();
  check_engine(*point.technique, point.engine);
  check_device(point);
  check_cached_adapters(point);
  check_repositories(point);
}

}  // namespace servelab

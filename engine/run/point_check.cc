#include "engine/run/point_check.h"

#include "engine/backend/device/real_backend.h"

namespace servelab {
namespace {

// What a run's first plan with LoRA on the host would be refused for.
void check_host_lora(const PointSettings& point) {
  if (!point.technique->capabilities().host_lora) return;
  const char* why = nullptr;
  const auto kind = Registry<BackendKind>::instance().make(point.backend);
  if (!kind->is_real() && static_cast<const VirtualBackend&>(*kind).uses_costs()) {
    why = point_cost_model(point, point.cluster.tensor_parallel)->no_host_lora();
  }
  if (is_real(point.backend) && point.runtime.adapter_store == "disk") why = kHostLoraFromDisk;
  if (why != nullptr) throw SpecError(why);
}

// No device has the memory that an oracle assumes.
void check_cached_adapters(const PointSettings& point) {
  if (!point.engine.cached_adapters || !is_real(point.backend)) return;
  throw SpecError("engine.cached_adapters is an oracle of backends in virtual time; on " +
                  point.backend + " raise engine.adapter_slots instead");
}

}  // namespace

void check_technique(const PointSettings& point) {
  check_engine(*point.technique, point.engine);
  check_host_lora(point);
  check_cached_adapters(point);
}

}  // namespace servelab

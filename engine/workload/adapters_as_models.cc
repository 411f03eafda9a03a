#include "engine/workload/adapters_as_models.h"

#include "engine/core/check.h"

namespace servelab {

WorkloadOfModels adapters_as_models(const Workload& workload) {
  WorkloadOfModels made;
  for (const Adapter& adapter : workload.adapters) made.names.push_back(adapter.name);
  const std::size_t base = made.names.size();
  SL_CHECK(base < UINT16_MAX, "as many models as ids");
  made.workload.requests = workload.requests;
  for (Request& request : made.workload.requests) {
    SL_CHECK(request.model == ModelId{}, "adapters become models where there is one model");
    if (request.adapter == kBaseModel && made.names.size() == base) made.names.push_back("base");
    request.model =
        static_cast<ModelId>(request.adapter == kBaseModel ? base : index(request.adapter));
    request.adapter = kBaseModel;
  }
  return made;
}

}  // namespace servelab

#ifndef SERVELAB_WORKLOAD_ADAPTERS_AS_MODELS_H_
#define SERVELAB_WORKLOAD_ADAPTERS_AS_MODELS_H_

#include <string>
#include <vector>

#include "engine/serve/request.h"

namespace servelab {

struct WorkloadOfModels {
  Workload workload;               // the same requests, none of which has an adapter
  std::vector<std::string> names;  // of the models, by ModelId
};

// The workload of one model with each adapter as a model of its own: adapter i becomes model i. The
// base model comes last, where a request asks for it.
WorkloadOfModels adapters_as_models(const Workload& workload);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_ADAPTERS_AS_MODELS_H_

// Which cost model a hardware profile asks for.
#ifndef SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_
#define SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/model/model_config.h"
#include "engine/serve/cost.h"

namespace servelab {

// The model that `hardware.cost_model` names. SpecError when the profile was calibrated for another
// model or other LoRA targets, or when `tensor_parallel` does not fit. One instance per run and
// thread.
std::unique_ptr<CostModel> make_cost_model(const ModelConfig& model,
                                           const HardwareProfile& hardware, int tensor_parallel,
                                           const std::vector<std::string>& lora_targets);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_

#include "engine/backend/cost/make_cost_model.h"

#include <algorithm>

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/fitted_cost.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

std::string listed(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// A fitted profile tells of nothing but what it was measured on.
void check_calibrated_for(const ModelConfig& model, const HardwareProfile& hardware,
                          int tensor_parallel, const std::vector<std::string>& lora_targets) {
  const FittedConstants& fitted = hardware.fitted;
  const std::string profile = "hardware profile '" + hardware.name + "' was calibrated for ";
  if (fitted.model != model.name) {
    throw SpecError(profile + "model '" + fitted.model + "', not for '" + model.name +
                    "'; run servelab calibrate --model with that one");
  }
  if (listed(fitted.lora_targets) != listed(lora_targets)) {
    throw SpecError(profile + "LoRA targets " + listed(fitted.lora_targets) + ", not for " +
                    listed(lora_targets) + "; run servelab calibrate --lora " +
                    listed(lora_targets) + ", or change lora.targets");
  }
  if (tensor_parallel != 1) {
    throw SpecError(profile + "one device; cluster.tensor_parallel must be 1");
  }
}

}  // namespace

std::unique_ptr<CostModel> make_cost_model(const ModelConfig& model,
                                           const HardwareProfile& hardware, int tensor_parallel,
                                           const std::vector<std::string>& lora_targets) {
  if (hardware.cost_model == "roofline") {
    return std::make_unique<RooflineCostModel>(model, hardware, tensor_parallel, lora_targets);
  }
  check_calibrated_for(model, hardware, tensor_parallel, lora_targets);
  if (hardware.cost_model == "fitted") return std::make_unique<FittedCostModel>(hardware.fitted);
  SL_CHECK(hardware.cost_model == "placement", "cost_model is one of its choices");
  return std::make_unique<PlacementCostModel>(
      hardware.placement, hardware.fitted,
      adapter_bytes_per_device(model, tensor_parallel, 1, lora_targets));
}

}  // namespace servelab

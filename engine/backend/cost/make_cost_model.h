// A cost model as hardware profiles name it: the sections that it reads, and how it is made.
#ifndef SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_
#define SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/core/params.h"
#include "engine/core/registry.h"
#include "engine/model/model_config.h"
#include "engine/serve/cost.h"

namespace servelab {

// One section and the constants that it sets, all of which a file must give.
struct ProfileSection {
  template <class Constants>
  ProfileSection(std::string name, Constants* constants, bool is_left_out = false)
      : name(std::move(name)), is_left_out(is_left_out) {
    constants->fields(fields);
  }
  std::string name;
  ParamFields fields;
  bool is_left_out;  // a file may lack it, and no file has set it yet
};

// Each registers itself under the name that `cost_model` has. One instance belongs to one profile
// and holds the constants that nobody else reads; they do not change once the profile is loaded.
class CostModelKind {
 public:
  static constexpr const char* kRegistryName = "cost model";
  virtual ~CostModelKind() = default;

  // Those of `hardware` or of its own; they outlive what is returned.
  virtual std::vector<ProfileSection> sections(HardwareProfile* hardware) = 0;
  // SpecError for what no single number shows. `file` has every section that must be there.
  virtual void check(const HardwareProfile& /*hardware*/, const ConfigNode& /*file*/) const {}
  // SpecError when the profile was calibrated for another model or other LoRA targets, or when
  // `tensor_parallel` does not fit. One instance per run and thread.
  virtual std::unique_ptr<CostModel> make(const ModelConfig& model, const HardwareProfile& hardware,
                                          int tensor_parallel,
                                          const std::vector<std::string>& lora_targets) const = 0;
};

// The model that a loaded profile asks for.
inline std::unique_ptr<CostModel> make_cost_model(const ModelConfig& model,
                                                  const HardwareProfile& hardware,
                                                  int tensor_parallel,
                                                  const std::vector<std::string>& lora_targets) {
  return hardware.costs->make(model, hardware, tensor_parallel, lora_targets);
}

}  // namespace servelab

// On the last line of a cost model's file, outside any namespace.
#define SERVELAB_COST_MODEL(id, Class) SERVELAB_REGISTER(CostModelKind, id, Class)

#endif  // SERVELAB_BACKEND_COST_MAKE_COST_MODEL_H_

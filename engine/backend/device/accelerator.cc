#include "engine/backend/device/accelerator.h"

namespace servelab {

const char* Accelerator::no_load_path(LoadPath path) const {
  if (path == LoadPath::kPinned) return nullptr;
  if (path != LoadPath::kLayers) {
    return "engines load from pinned memory (engine.load_path: pinned, or layers where the device "
           "can)";
  }
  return loads_by_layer() ? nullptr
                          : "this engine's adapters come whole (engine.load_path: pinned)";
}

void check_cores(const HostLoraPlan& lora, int wanted, int cores) {
  if (wanted <= cores || lora.shares_cores) return;
  throw SpecError("runtime.host_lora_workers: the run's threads and LoRA workers are " +
                  std::to_string(wanted) + ", and there are " + std::to_string(cores) +
                  " processors; use fewer, or say runtime.host_lora_shares_cores: true");
}

std::unique_ptr<Accelerator> find_accelerator(const std::string& name) {
  std::unique_ptr<BackendKind> kind = Registry<BackendKind>::instance().make(name);
  if (!kind->is_real()) throw SpecError("backend '" + name + "' computes nothing; it is no engine");
  return std::unique_ptr<Accelerator>(static_cast<Accelerator*>(kind.release()));
}

std::vector<std::string> accelerator_names() {
  std::vector<std::string> names;
  for (const std::string& name : Registry<BackendKind>::instance().names()) {
    if (Registry<BackendKind>::instance().make(name)->is_real()) names.push_back(name);
  }
  return names;
}

}  // namespace servelab

#include "engine/backend/device/accelerator.h"

namespace servelab {

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

#include "engine/backend/device/accelerator.h"

namespace servelab {

std::unique_ptr<Accelerator> find_accelerator(const std::string& name) {
  if (Registry<Accelerator>::instance().has(name)) {
    return Registry<Accelerator>::instance().make(name);
  }
  throw SpecError("backend '" + name +
                  "': this servelab was built without CUDA; run make build where the CUDA Toolkit "
                  "is installed, or use backend: twin or backend: cpu");
}

}  // namespace servelab

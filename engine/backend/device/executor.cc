#include "engine/backend/device/executor.h"

#include "engine/core/check.h"

namespace servelab {

std::unique_ptr<DeviceAdapter> Executor::host_adapter(
    std::shared_ptr<const LoraWeights> /*weights*/) {
  SL_CHECK(false, "this device refuses LoRA on the host");
  return nullptr;
}

}  // namespace servelab

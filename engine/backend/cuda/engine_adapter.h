// What adapters of the CUDA engine have in common: which side computes with them.
#ifndef SERVELAB_BACKEND_CUDA_ENGINE_ADAPTER_H_
#define SERVELAB_BACKEND_CUDA_ENGINE_ADAPTER_H_

#include "engine/backend/device/executor.h"

namespace servelab::cuda {

enum class Side : std::uint8_t { kDevice, kHost };

// A CudaAdapter (adapter_store.h) or a HostAdapter (host_adapter.h), as its side says.
class EngineAdapter : public DeviceAdapter {
 public:
  Side side() const { return side_; }

 protected:
  explicit EngineAdapter(Side side) : side_(side) {}

 private:
  const Side side_;
};

// `adapter` may be null: the base model is on no side.
inline bool is_on(Side side, const DeviceAdapter* adapter) {
  return adapter != nullptr && static_cast<const EngineAdapter*>(adapter)->side() == side;
}

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_ENGINE_ADAPTER_H_

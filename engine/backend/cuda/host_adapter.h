// Adapters that stay in host memory, packed for the CPU's LoRA kernels.
#ifndef SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_
#define SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/backend/device/adapter_storage.h"
#include "engine/backend/device/local_device.h"
#include "kernels/lora.h"

namespace servelab::cuda {

// One adapter's panels.
class PackedAdapter {
 public:
  // `type`: kF32 or kBf16. Throws SpecError when there is no memory.
  PackedAdapter(const LoraWeights& weights, kernels::DType type,
                std::shared_ptr<AdapterStorage> storage);
  ~PackedAdapter();
  PackedAdapter(const PackedAdapter&) = delete;
  PackedAdapter& operator=(const PackedAdapter&) = delete;

  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    const kernels::LoraPair& pair =
        pairs_[static_cast<std::size_t>(layer * kLinearLayers) + static_cast<std::size_t>(which)];
    return pair.rank == 0 ? nullptr : &pair;
  }

 private:
  const std::shared_ptr<AdapterStorage> storage_;
  std::vector<kernels::LoraPair> pairs_;
  std::size_t size_ = 0;
  std::byte* data_ = nullptr;
};

class HostAdapter final : public DeviceAdapter {
 public:
  explicit HostAdapter(std::shared_ptr<const PackedAdapter> packed) : packed_(std::move(packed)) {}

  // Null when the adapter leaves that layer alone.
  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    return packed_->find(layer, which);
  }

 private:
  const std::shared_ptr<const PackedAdapter> packed_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_

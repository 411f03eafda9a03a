// An adapter that stays in host memory, packed for the CPU's LoRA kernels.
#ifndef SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_
#define SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/backend/cpu/adapter_storage.h"
#include "engine/backend/cuda/engine_adapter.h"
#include "kernels/lora.h"

namespace servelab::cuda {

class HostAdapter final : public EngineAdapter {
 public:
  // `type` of the panels: kF32 or kBf16. Throws SpecError when there is no memory.
  HostAdapter(const LoraWeights& weights, kernels::DType type,
              std::shared_ptr<AdapterStorage> storage);
  ~HostAdapter() override;

  int rank() const override { return rank_; }
  Bytes bytes() const override { return 0; }  // on the device
  int layers() const { return static_cast<int>(pairs_.size()) / kLinearLayers; }

  // Null when the adapter leaves that layer alone.
  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    const kernels::LoraPair& pair =
        pairs_[static_cast<std::size_t>(layer * kLinearLayers) + static_cast<std::size_t>(which)];
    return pair.rank == 0 ? nullptr : &pair;
  }

 private:
  const std::shared_ptr<AdapterStorage> storage_;
  const int rank_;
  std::vector<kernels::LoraPair> pairs_;
  std::size_t size_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_HOST_ADAPTER_H_

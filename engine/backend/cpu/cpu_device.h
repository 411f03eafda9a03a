// The CPU engine's device: a model's packed weights, its paged KV cache, adapters packed for the
// LoRA kernels, and the forward pass over a mixed batch, on a team of pinned threads.
#ifndef SERVELAB_BACKEND_CPU_CPU_DEVICE_H_
#define SERVELAB_BACKEND_CPU_CPU_DEVICE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/backend/device/host_lora_plan.h"
#include "engine/backend/device/local_device.h"
#include "engine/backend/device/packed_adapter.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

namespace servelab {

struct CpuDeviceOptions : DeviceLimits {
  int threads = 1;
  std::vector<int> cores;  // thread i is pinned to cores[i % size]; empty: not pinned
  kernels::Isa isa = kernels::Isa::kReference;
  kernels::GemmLibrary gemm = kernels::GemmLibrary::kNative;
  kernels::DType type =
      kernels::DType::kBf16;      // of packed weights, activations and KV: kF32, kBf16
  std::size_t adapter_bytes = 0;  // taken for adapters at the start; more is taken when needed
  // Layers whose merged copies are made at the start, so that no step pays for them.
  std::vector<LinearLayer> merge_targets;
  // Who computes slices with LoraSite::kHost.
  HostLoraPlan host_lora;
};

class CpuDevice : public LocalDevice {
 public:
  // Packs `weights`. Throws SpecError when the machine's memory cannot hold the plan.
  CpuDevice(const ModelConfig& model, const ModelWeights& weights, const CpuDeviceOptions& options);
  ~CpuDevice() override;

  const char* unsupported(const StepPlan& plan) const override;

 private:
  class Impl;
  void enter_thread() override;  // pins it to the first core
  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;
  HostMemory copy_out(const KvMove& move) override;
  void copy_in(const KvMove& move, const std::byte* host) override;
  // The parts' times are of the leading thread, and always taken.
  void forward(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
               const DeviceAdapter* folded, DeviceResult* result) override;
  std::unique_ptr<DeviceAdapter> pack(const Load& load, const LoraWeights& weights) override;
  // The device is the host: packed at its own rank, in no slot, and computed as any other adapter.
  std::unique_ptr<DeviceAdapter> pack_on_host(const LoraWeights& weights) override;
  // Packing needs nothing that could be prepared.
  void prepare(const Load& /*load*/, std::shared_ptr<const LoraWeights> /*weights*/) override {}

  std::unique_ptr<Impl> impl_;
  std::thread::id leader_;
};

// The matrices of every layer as they are multiplied, with something folded in.
struct FoldedLayers;

// One adapter: packed or, where the load said so, folded into a copy of the layers.
class CpuAdapter final : public DeviceAdapter {
 public:
  CpuAdapter();
  ~CpuAdapter() override;
  int rank() const { return packed_ == nullptr ? 0 : packed_->rank(); }
  // Null when the adapter leaves that layer alone.
  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    return packed_ == nullptr ? nullptr : packed_->find(layer, which);
  }
  const PackedAdapter* packed() const { return packed_.get(); }

 private:
  friend class CpuDevice;
  std::unique_ptr<const PackedAdapter> packed_;
  std::unique_ptr<FoldedLayers> folded_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_CPU_CPU_DEVICE_H_

// Adapters on the device: a stretch of memory per layer each, and a table by (layer, linear layer,
// slot) that the LoRA kernels look pairs up in. Loads are copies from pinned memory, layer by
// layer, so that a step can start on the first layers while the last are still on their way.
#ifndef SERVELAB_BACKEND_CUDA_ADAPTER_STORE_H_
#define SERVELAB_BACKEND_CUDA_ADAPTER_STORE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/device_weights.h"
#include "engine/backend/cuda/range_allocator.h"
#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/local_device.h"
#include "kernels/cuda/lora.h"

namespace servelab::cuda {

// The width that a rank takes in memory.
constexpr int padded_rank(int rank) { return (rank + 7) / 8 * 8; }

class AdapterStore;

class CudaAdapter final : public DeviceAdapter {
 public:
  ~CudaAdapter() override;
  void wait() const override;

  int slot() const { return slot_; }
  int width() const { return width_; }
  bool arrived() const;                             // all of it
  void hold(cudaStream_t stream, int layer) const;  // later work of `stream` waits for that layer
  // The layers' matrices with the adapter folded in (Load::folded); empty otherwise. `memory` gives
  // them back. The copies up to now are part of what wait() waits for.
  const std::vector<Matrices>& folded() const { return folded_; }
  void become_folded(std::vector<Matrices> folded, std::shared_ptr<void> memory,
                     cudaStream_t stream);
  // Null when the adapter leaves that layer alone.
  const kernels::cuda::LoraPair* find(int layer, LinearLayer which) const;

 private:
  friend class AdapterStore;
  struct Stretch {
    std::size_t offset = 0;
    std::size_t size = 0;
  };
  explicit CudaAdapter(std::shared_ptr<AdapterStore> store) : store_(std::move(store)) {}

  std::shared_ptr<AdapterStore> store_;
  int slot_ = -1;
  int width_ = 0;                   // of the widest pair
  std::vector<Stretch> stretches_;  // by layer; size 0: nothing there
  std::vector<kernels::cuda::LoraPair> pairs_;
  HostMemory host_pairs_;
  std::vector<Event> here_;  // by layer, then one for the end
  mutable std::atomic<bool> arrived_{false};
  std::vector<Matrices> folded_;
  std::shared_ptr<void> folded_memory_;
};

class AdapterStore : public std::enable_shared_from_this<AdapterStore> {
 public:
  static void plan(const ModelConfig& model, const DevicePlan& device, MemoryPlan* plan);

  AdapterStore(const ModelConfig& model, const DevicePlan& device, Arena* arena,
               PinnedPool* pinned);

  // Begins the copies and returns. Any thread. Throws SpecError when there is no room.
  std::unique_ptr<CudaAdapter> load(const LoraWeights& weights, int width);

  // Packs it in pinned memory now, so that loads of it are nothing but copies.
  void hold_on_host(std::shared_ptr<const LoraWeights> weights, int width);

  // Of one linear layer of a layer: [slots()] pairs in device memory.
  const kernels::cuda::LoraPair* pairs(int layer, LinearLayer which) const;
  int slots() const { return slots_; }
  cudaStream_t stream() const { return stream_.get(); }  // of the copies

 private:
  friend class CudaAdapter;
  // An adapter as the device holds it: its layers' stretches one after the other.
  struct Image {
    int width = 0;
    std::shared_ptr<const LoraWeights> weights;
    HostMemory data;
    std::vector<std::size_t> sizes;  // by layer
  };

  std::size_t layer_bytes(const LoraWeights& weights, int layer, int width) const;
  void pack_layer(const LoraWeights& weights, int layer, int width, std::byte* out) const;
  void place(const LoraWeights& weights, int width, CudaAdapter* adapter);
  void copy_layers(const LoraWeights& weights, int width, CudaAdapter* adapter);
  const Image* image_of(const LoraWeights& weights, int width) const;
  void release(CudaAdapter* adapter);

  const ModelConfig model_;
  const kernels::DType type_;
  const int device_;
  const int slots_;
  PinnedPool* const pinned_;
  std::byte* area_ = nullptr;
  kernels::cuda::LoraPair* table_ = nullptr;  // [layers][kLinearLayers][slots]
  Stream stream_;

  std::mutex loading_;  // one load at a time fills the staging memory
  HostMemory staging_[2];
  std::size_t staging_sizes_[2] = {};
  Event staged_[2];
  std::unordered_map<const LoraWeights*, Image> images_;  // guarded by loading_

  std::mutex mutex_;
  RangeAllocator free_;          // guarded
  std::vector<int> free_slots_;  // guarded; the lowest last
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_ADAPTER_STORE_H_

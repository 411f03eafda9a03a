// An adapter packed for the CPU's LoRA kernels: in one stretch of memory, a table of its matrices
// and behind it their panels, so that whoever is given the table's address finds all of it.
#ifndef SERVELAB_BACKEND_DEVICE_PACKED_ADAPTER_H_
#define SERVELAB_BACKEND_DEVICE_PACKED_ADAPTER_H_

#include <cstddef>
#include <memory>

#include "engine/backend/device/adapter_storage.h"
#include "engine/model/lora_weights.h"
#include "kernels/lora.h"

namespace servelab {

// Where a matrix stands in an adapter's table.
constexpr std::size_t adapter_entry(int layer, LinearLayer which) {
  return static_cast<std::size_t>(layer) * kLinearLayers + static_cast<std::size_t>(which);
}

class PackedAdapter {
 public:
  // `type`: kF32 or kBf16. Each matrix is padded with zeros to `width` ranks where it has fewer.
  // Throws SpecError when there is no memory.
  PackedAdapter(const LoraWeights& weights, kernels::DType type, int width,
                std::shared_ptr<AdapterStorage> storage);
  ~PackedAdapter();
  PackedAdapter(const PackedAdapter&) = delete;
  PackedAdapter& operator=(const PackedAdapter&) = delete;

  int rank() const { return rank_; }  // the largest of any layer
  // Null when the adapter leaves that layer alone.
  const kernels::LoraPair* find(int layer, LinearLayer which) const {
    const kernels::LoraPair& pair = table_[adapter_entry(layer, which)];
    return pair.rank == 0 ? nullptr : &pair;
  }
  // [layers * kLinearLayers], by adapter_entry().
  const kernels::LoraPair* table() const { return table_; }

 private:
  const std::shared_ptr<AdapterStorage> storage_;
  int rank_ = 0;
  std::size_t size_ = 0;
  kernels::LoraPair* table_ = nullptr;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_PACKED_ADAPTER_H_

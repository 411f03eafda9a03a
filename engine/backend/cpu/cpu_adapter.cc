// Adapters as the CPU engine keeps them.
#include "engine/backend/cpu/cpu_device_impl.h"
#include "engine/core/check.h"

namespace servelab {

CpuAdapter::CpuAdapter() = default;
CpuAdapter::~CpuAdapter() = default;

std::unique_ptr<DeviceAdapter> CpuDevice::pack(const Load& load, const LoraWeights& weights) {
  SL_CHECK(weights.layers() == model().layers, "an adapter has its model's layers");
  auto adapter = std::make_unique<CpuAdapter>();
  adapter->packed_ = std::make_unique<PackedAdapter>(
      weights, impl_->options_.type, load.folded ? 0 : load.width, impl_->adapter_storage_);
  if (!load.folded) return adapter;
  adapter->folded_ = impl_->fold_all(*adapter);
  adapter->packed_.reset();
  return adapter;
}

std::unique_ptr<DeviceAdapter> CpuDevice::pack_on_host(const LoraWeights& weights) {
  SL_CHECK(weights.layers() == model().layers, "an adapter has its model's layers");
  auto adapter = std::make_unique<CpuAdapter>();
  adapter->packed_ =
      std::make_unique<PackedAdapter>(weights, impl_->options_.type, 0, impl_->host_storage());
  return adapter;
}

}  // namespace servelab

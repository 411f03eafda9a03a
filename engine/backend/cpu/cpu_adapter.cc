// Packing one adapter for the LoRA kernels.
#include <algorithm>

#include "engine/backend/cpu/cpu_device_impl.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::size_t kLine = 64;

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// A's `rank` rows as the first rows of a matrix of `width` rows, the others zero; B's columns
// alike.
void pack_padded(const Tensor& tensor, int rows, int columns, kernels::DType type, void* out) {
  const int panels = kernels::panels_of(rows);
  if (tensor.rows == rows && tensor.columns == columns) {
    kernels::pack_panels(tensor.type, tensor.data, columns, rows, columns, type, out, 0, panels);
    return;
  }
  const std::size_t element = kernels::bytes_of(tensor.type);
  const auto row_bytes = static_cast<std::size_t>(tensor.columns) * element;
  std::vector<std::byte> padded(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) *
                                element);
  const auto* const source = static_cast<const std::byte*>(tensor.data);
  for (int row = 0; row < tensor.rows; ++row) {
    const auto r = static_cast<std::size_t>(row);
    std::copy_n(source + r * row_bytes, row_bytes,
                padded.data() + r * static_cast<std::size_t>(columns) * element);
  }
  kernels::pack_panels(tensor.type, padded.data(), columns, rows, columns, type, out, 0, panels);
}

}  // namespace

CpuAdapter::CpuAdapter() = default;
CpuAdapter::~CpuAdapter() {
  if (data_ != nullptr) storage_->give(data_, size_);
}

std::unique_ptr<CpuAdapter> CpuDevice::Impl::pack(const LoraWeights& weights, int width) const {
  const kernels::DType type = options_.type;
  SL_CHECK(weights.layers() == model_.layers, "an adapter has its model's layers");
  auto adapter = std::make_unique<CpuAdapter>();
  adapter->rank_ = weights.rank();
  adapter->pairs_.resize(static_cast<std::size_t>(model_.layers * kLinearLayers));
  const auto for_each = [&](auto&& visit) {
    for (int layer = 0; layer < model_.layers; ++layer) {
      for (int t = 0; t < kLinearLayers; ++t) {
        const LoraMatrices* m = weights.find(layer, static_cast<LinearLayer>(t));
        if (m == nullptr) continue;
        visit(*m, std::max(width, m->rank),
              &adapter->pairs_[static_cast<std::size_t>(layer * kLinearLayers + t)]);
      }
    }
  };
  for_each([&](const LoraMatrices& m, int w, kernels::LoraPair*) {
    adapter->size_ += lines(kernels::packed_bytes(type, w, m.a.columns)) +
                      lines(kernels::packed_bytes(type, m.b.rows, w));
  });
  adapter->storage_ = adapter_storage_;
  adapter->data_ = adapter->storage_->take(adapter->size_);
  std::byte* next = adapter->data_;
  for_each([&](const LoraMatrices& m, int w, kernels::LoraPair* pair) {
    pair->rank = m.rank;
    pair->scale = m.scale;
    pair->a = kernels::Panels{type, w, m.a.columns, next};
    pack_padded(m.a, w, m.a.columns, type, next);
    next += lines(kernels::packed_bytes(type, w, m.a.columns));
    pair->b = kernels::Panels{type, m.b.rows, w, next};
    pack_padded(m.b, m.b.rows, w, type, next);
    next += lines(kernels::packed_bytes(type, m.b.rows, w));
  });
  return adapter;
}

std::unique_ptr<DeviceAdapter> CpuDevice::pack(const Load& load, const LoraWeights& weights) {
  std::unique_ptr<CpuAdapter> adapter = impl_->pack(weights, load.folded ? 0 : load.width);
  if (!load.folded) return adapter;
  adapter->folded_ = impl_->fold_all(*adapter);
  adapter->pairs_.clear();
  adapter->storage_->give(adapter->data_, adapter->size_);
  adapter->data_ = nullptr;
  return adapter;
}

std::unique_ptr<DeviceAdapter> CpuDevice::pack_on_host(const LoraWeights& weights) {
  return impl_->pack(weights, 0);
}

}  // namespace servelab

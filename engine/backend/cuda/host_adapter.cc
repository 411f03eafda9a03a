#include "engine/backend/cuda/host_adapter.h"

#include <utility>

namespace servelab::cuda {
namespace {

constexpr std::size_t kLine = 64;  // panels begin on one

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Where `next` points, and beyond it.
kernels::Panels pack(const Tensor& tensor, kernels::DType type, std::byte** next) {
  const kernels::Panels panels{type, tensor.rows, tensor.columns, *next};
  kernels::pack_panels(tensor.type, tensor.data, tensor.columns, tensor.rows, tensor.columns, type,
                       *next, 0, kernels::panels_of(tensor.rows));
  *next += lines(kernels::packed_bytes(type, tensor.rows, tensor.columns));
  return panels;
}

}  // namespace

PackedAdapter::PackedAdapter(const LoraWeights& weights, kernels::DType type,
                             std::shared_ptr<AdapterStorage> storage)
    : storage_(std::move(storage)),
      pairs_(static_cast<std::size_t>(weights.layers() * kLinearLayers)) {
  const auto for_each = [&](auto&& visit) {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const int layer = static_cast<int>(i) / kLinearLayers;
      const auto which = static_cast<LinearLayer>(static_cast<int>(i) % kLinearLayers);
      if (const LoraMatrices* const m = weights.find(layer, which)) visit(*m, &pairs_[i]);
    }
  };
  for_each([&](const LoraMatrices& m, kernels::LoraPair*) {
    size_ += lines(kernels::packed_bytes(type, m.a.rows, m.a.columns)) +
             lines(kernels::packed_bytes(type, m.b.rows, m.b.columns));
  });
  data_ = storage_->take(size_);
  std::byte* next = data_;
  for_each([&](const LoraMatrices& m, kernels::LoraPair* pair) {
    pair->rank = m.rank;
    pair->scale = m.scale;
    pair->a = pack(m.a, type, &next);
    pair->b = pack(m.b, type, &next);
  });
}

PackedAdapter::~PackedAdapter() { storage_->give(data_, size_); }

}  // namespace servelab::cuda

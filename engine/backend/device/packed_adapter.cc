#include "engine/backend/device/packed_adapter.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace servelab {
namespace {

using kernels::DType;

constexpr std::size_t kLine = 64;  // the table and each matrix begin on one

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// A's rows as the first rows of a matrix of `rows` rows, the others zero; B's columns alike. Where
// `next` points, and beyond it.
kernels::Panels pack_padded(const Tensor& tensor, int rows, int columns, DType type,
                            std::byte** next) {
  const int panels = kernels::panels_of(rows);
  std::byte* const out = *next;
  *next += lines(kernels::packed_bytes(type, rows, columns));
  const kernels::Panels packed{type, rows, columns, out};
  if (tensor.rows == rows && tensor.columns == columns) {
    kernels::pack_panels(tensor.type, tensor.data, columns, rows, columns, type, out, 0, panels);
    return packed;
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
  return packed;
}

}  // namespace

PackedAdapter::PackedAdapter(const LoraWeights& weights, DType type, int width,
                             std::shared_ptr<AdapterStorage> storage)
    : storage_(std::move(storage)), rank_(weights.rank()) {
  static_assert(std::is_trivially_destructible_v<kernels::LoraPair>);
  const auto entries = static_cast<std::size_t>(weights.layers() * kLinearLayers);
  const auto for_each = [&](auto&& visit) {
    for (int layer = 0; layer < weights.layers(); ++layer) {
      for (int t = 0; t < kLinearLayers; ++t) {
        const auto which = static_cast<LinearLayer>(t);
        if (const LoraMatrices* const m = weights.find(layer, which)) {
          visit(*m, std::max(width, m->rank), adapter_entry(layer, which));
        }
      }
    }
  };
  const std::size_t table_bytes = lines(entries * sizeof(kernels::LoraPair));
  size_ = table_bytes;
  for_each([&](const LoraMatrices& m, int ranks, std::size_t) {
    size_ += lines(kernels::packed_bytes(type, ranks, m.a.columns)) +
             lines(kernels::packed_bytes(type, m.b.rows, ranks));
  });
  std::byte* next = storage_->take(size_);
  table_ = reinterpret_cast<kernels::LoraPair*>(next);
  std::uninitialized_value_construct_n(table_, entries);
  next += table_bytes;
  for_each([&](const LoraMatrices& m, int ranks, std::size_t entry) {
    kernels::LoraPair& pair = table_[entry];
    pair.rank = m.rank;
    pair.scale = m.scale;
    pair.a = pack_padded(m.a, ranks, m.a.columns, type, &next);
    pair.b = pack_padded(m.b, m.b.rows, ranks, type, &next);
  });
}

PackedAdapter::~PackedAdapter() { storage_->give(reinterpret_cast<std::byte*>(table_), size_); }

}  // namespace servelab

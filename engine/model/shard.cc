#include "engine/model/shard.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "engine/core/check.h"

namespace servelab {
namespace {

ShardRange equal_part(int total, Shard shard) {
  const int part = total / shard.ranks;
  return {shard.rank * part, part};
}

// KV heads; several ranks hold the same one when there are fewer heads than ranks.
ShardRange kv_heads(const ModelConfig& model, Shard shard) {
  if (model.kv_heads >= shard.ranks) return equal_part(model.kv_heads, shard);
  return {shard.rank / (shard.ranks / model.kv_heads), 1};
}

std::size_t row_bytes(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.columns) * kernels::bytes_of(tensor.type);
}

Tensor rows_of(const Tensor& tensor, ShardRange range) {
  Tensor part = tensor;
  part.rows = range.count;
  part.data = static_cast<const std::byte*>(tensor.data) +
              static_cast<std::size_t>(range.begin) * row_bytes(tensor);
  return part;
}

Tensor columns_of(const Tensor& tensor, ShardRange range) {
  Tensor part = tensor;
  part.columns = range.count;
  const std::size_t bytes = row_bytes(part);
  const std::size_t skipped =
      static_cast<std::size_t>(range.begin) * kernels::bytes_of(tensor.type);
  const std::shared_ptr<std::byte[]> data(
      new std::byte[static_cast<std::size_t>(tensor.rows) * bytes]);
  for (std::size_t row = 0; row < static_cast<std::size_t>(tensor.rows); ++row) {
    std::memcpy(data.get() + row * bytes,
                static_cast<const std::byte*>(tensor.data) + row * row_bytes(tensor) + skipped,
                bytes);
  }
  part.data = data.get();
  part.owner = data;
  return part;
}

std::optional<RandomBell> rows_from(std::optional<RandomBell> bell, int row, int columns) {
  if (bell.has_value()) bell->first += static_cast<std::int64_t>(row) * columns;
  return bell;
}

class ShardedWeights final : public ModelWeights {
 public:
  ShardedWeights(const ModelConfig& model, const ModelWeights& weights, Shard shard)
      : model_(model), weights_(weights), shard_(shard) {}

  Tensor linear(int layer, LinearLayer which) const override {
    const ShardRange range = shard_range(model_, which, shard_);
    const Tensor whole = weights_.linear(layer, which);
    return splits_outputs(which) ? rows_of(whole, range) : columns_of(whole, range);
  }

  Tensor vector(int layer, LayerVector which) const override {
    const Tensor whole = weights_.vector(layer, which);
    switch (which) {
      case LayerVector::kQBias:
        return columns_of(whole, shard_range(model_, LinearLayer::kQ, shard_));
      case LayerVector::kKBias:
        return columns_of(whole, shard_range(model_, LinearLayer::kK, shard_));
      case LayerVector::kVBias:
        return columns_of(whole, shard_range(model_, LinearLayer::kV, shard_));
      case LayerVector::kAttentionNorm:
      case LayerVector::kFfnNorm:
        return whole;
    }
    return whole;
  }

  Tensor tensor(ModelTensor which) const override {
    const Tensor whole = weights_.tensor(which);
    return which == ModelTensor::kLmHead ? rows_of(whole, vocab_range(model_, shard_)) : whole;
  }

  // Rows of a matrix are a stretch of its elements; columns are not.
  std::optional<RandomBell> bell(int layer, LinearLayer which) const override {
    if (shard_.ranks == 1) return weights_.bell(layer, which);
    if (!splits_outputs(which)) return std::nullopt;
    const char* const name = kLinearLayerNames[static_cast<std::size_t>(which)];
    return rows_from(weights_.bell(layer, which), shard_range(model_, which, shard_).begin,
                     linear_shape(model_, name).in);
  }
  std::optional<RandomBell> bell(ModelTensor which) const override {
    if (which != ModelTensor::kLmHead) return weights_.bell(which);
    return rows_from(weights_.bell(which), vocab_range(model_, shard_).begin, model_.hidden);
  }
  kernels::DType type() const override { return weights_.type(); }

 private:
  ModelConfig model_;
  const ModelWeights& weights_;
  Shard shard_;
};

}  // namespace

bool splits_outputs(LinearLayer which) {
  return which != LinearLayer::kO && which != LinearLayer::kDown;
}

ModelConfig shard_model(const ModelConfig& model, Shard shard) {
  SL_CHECK(shard.ranks >= 1 && shard.rank >= 0 && shard.rank < shard.ranks, "a rank is one of all");
  const auto divides = [&](int total, const char* name) {
    if (total % shard.ranks == 0) return;
    throw SpecError("cluster.tensor_parallel: " + std::to_string(shard.ranks) +
                    " devices cannot share the " + std::to_string(total) + " " + name + " of " +
                    model.name + " equally");
  };
  divides(model.heads, "heads");
  divides(model.ffn, "columns of 'ffn'");
  divides(model.vocab, "tokens of the vocabulary");
  if (model.kv_heads >= shard.ranks || shard.ranks % model.kv_heads != 0) {
    divides(model.kv_heads, "KV heads");
  }
  ModelConfig part = model;
  part.heads = model.heads / shard.ranks;
  part.kv_heads = kv_heads(model, shard).count;
  part.ffn = model.ffn / shard.ranks;
  return part;
}

ShardRange shard_range(const ModelConfig& model, LinearLayer which, Shard shard) {
  const auto columns = [&](ShardRange heads) {
    return ShardRange{heads.begin * model.head_dim, heads.count * model.head_dim};
  };
  switch (which) {
    case LinearLayer::kQ:
    case LinearLayer::kO:
      return columns(equal_part(model.heads, shard));
    case LinearLayer::kK:
    case LinearLayer::kV:
      return columns(kv_heads(model, shard));
    case LinearLayer::kGate:
    case LinearLayer::kUp:
    case LinearLayer::kDown:
      return equal_part(model.ffn, shard);
  }
  return {};
}

ShardRange vocab_range(const ModelConfig& model, Shard shard) {
  return equal_part(model.vocab, shard);
}

std::unique_ptr<ModelWeights> shard_weights(const ModelConfig& model, const ModelWeights& weights,
                                            Shard shard) {
  return std::make_unique<ShardedWeights>(model, weights, shard);
}

std::shared_ptr<const LoraWeights> shard_adapter(const ModelConfig& model,
                                                 const LoraWeights& adapter, Shard shard) {
  auto part = std::make_shared<LoraWeights>(adapter.name(), adapter.layers());
  for (int layer = 0; layer < adapter.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      const LoraMatrices* const whole = adapter.find(layer, which);
      if (whole == nullptr) continue;
      const ShardRange range = shard_range(model, which, shard);
      LoraMatrices matrices = *whole;
      if (splits_outputs(which)) {
        matrices.b = rows_of(whole->b, range);
      } else {
        matrices.a = columns_of(whole->a, range);
      }
      part->set(layer, which, std::move(matrices));
    }
  }
  return part;
}

}  // namespace servelab

#include <cstdint>

#include "engine/core/check.h"
#include "engine/model/random_tensor.h"
#include "engine/model/weights.h"
#include "kernels/random.h"

namespace servelab {
namespace {

constexpr double kDeviation = 0.02;
constexpr float kStep = kernels::random_step(kernels::RandomKind::kBell, kDeviation);

// Values are generated each time that they are asked for, so that nothing is kept twice.
class RandomWeights final : public ModelWeights {
 public:
  RandomWeights(const ModelConfig& model, std::uint64_t seed) : model_(model), seed_(seed) {}

  Tensor linear(int layer, LinearLayer which) const override {
    const auto index = static_cast<std::size_t>(which);
    const LinearShape shape = linear_shape(model_, kLinearLayerNames[index]);
    return random_bell(shape.out, shape.in, kDeviation, key(kLinear, layer, index));
  }

  Tensor vector(int layer, LayerVector which) const override {
    if (which == LayerVector::kAttentionNorm || which == LayerVector::kFfnNorm) {
      return constant_vector(model_.hidden, 1);
    }
    SL_CHECK(model_.qkv_bias, "this model has no biases");
    const int heads = which == LayerVector::kQBias ? model_.heads : model_.kv_heads;
    return random_bell(1, heads * model_.head_dim, kDeviation,
                       key(kVector, layer, static_cast<std::size_t>(which)));
  }

  Tensor tensor(ModelTensor which) const override {
    if (which == ModelTensor::kFinalNorm) return constant_vector(model_.hidden, 1);
    return random_bell(model_.vocab, model_.hidden, kDeviation, table_key(which));
  }

  std::optional<RandomBell> bell(int layer, LinearLayer which) const override {
    return RandomBell{key(kLinear, layer, static_cast<std::size_t>(which)), kStep, 0};
  }
  std::optional<RandomBell> bell(ModelTensor which) const override {
    if (which == ModelTensor::kFinalNorm) return std::nullopt;
    return RandomBell{table_key(which), kStep, 0};
  }

  kernels::DType type() const override { return kernels::DType::kBf16; }

 private:
  enum Part : std::uint64_t { kLinear, kVector, kTable };
  std::uint64_t key(Part part, int layer, std::size_t which) const {
    return random_key({seed_, part, static_cast<std::uint64_t>(layer), which});
  }
  std::uint64_t table_key(ModelTensor which) const {
    if (model_.tied_embeddings) which = ModelTensor::kEmbedding;
    return key(kTable, 0, static_cast<std::size_t>(which));
  }

  ModelConfig model_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<ModelWeights> random_weights(const ModelConfig& model, std::uint64_t seed) {
  return std::make_unique<RandomWeights>(model, seed);
}

}  // namespace servelab

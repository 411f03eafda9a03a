// A model's weights, wherever they come from: a Hugging Face folder (memory-mapped safetensors) or
// a seeded random generator. Tensors come one at a time, row-major, in the type that they are
// stored in; engines pack them into their own layout.
#ifndef SERVELAB_MODEL_WEIGHTS_H_
#define SERVELAB_MODEL_WEIGHTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace servelab {

// The linear layers of one decoder layer: those that LoRA can adapt.
enum class LinearLayer : std::uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kLinearLayers = 7;
inline constexpr std::array<const char*, kLinearLayers> kLinearLayerNames = {
    "q", "k", "v", "o", "gate", "up", "down"};

enum class LayerVector : std::uint8_t { kAttentionNorm, kFfnNorm, kQBias, kKBias, kVBias };
enum class ModelTensor : std::uint8_t { kEmbedding, kFinalNorm, kLmHead };

// A row-major tensor; a vector has one row. `owner` keeps `data` alive.
struct Tensor {
  kernels::DType type = kernels::DType::kF32;
  int rows = 0;
  int columns = 0;
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};

// Where a tensor's values are random_bell's of this key and step, from element `first` on, they
// need not be copied: a device can generate them (kernels/random.h).
struct RandomBell {
  std::uint64_t key = 0;
  float step = 0;
  std::int64_t first = 0;
};

class ModelWeights {
 public:
  virtual ~ModelWeights() = default;
  virtual Tensor linear(int layer, LinearLayer which) const = 0;  // [out, in]
  virtual Tensor vector(int layer, LayerVector which) const = 0;  // biases only with qkv_bias
  virtual Tensor tensor(ModelTensor which) const = 0;  // kLmHead is the embedding when tied
  // How those tensors are generated; null for stored ones.
  virtual std::optional<RandomBell> bell(int /*layer*/, LinearLayer /*which*/) const { return {}; }
  virtual std::optional<RandomBell> bell(ModelTensor /*which*/) const { return {}; }
  // The narrowest type that holds all matrices as they are stored: theirs, or F32 where they have
  // several.
  virtual kernels::DType type() const = 0;
};

// Normal-like values of standard deviation 0.02 (norms 1, biases small), bf16, from `seed` alone:
// the same on every machine.
std::unique_ptr<ModelWeights> random_weights(const ModelConfig& model, std::uint64_t seed);

// The weights of a Hugging Face folder. SpecError with the file and the tensor for a missing
// tensor, a wrong shape or type, a damaged file, or a value that is not finite.
std::unique_ptr<ModelWeights> load_hf_weights(const std::string& folder, const ModelConfig& model);

}  // namespace servelab

#endif  // SERVELAB_MODEL_WEIGHTS_H_

// The weights of one LoRA adapter, from a PEFT folder or a seeded random generator.
#ifndef SERVELAB_MODEL_LORA_WEIGHTS_H_
#define SERVELAB_MODEL_LORA_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/weights.h"

namespace servelab {

// A and B of one linear layer: delta W = scale * B * A.
struct LoraMatrices {
  int rank = 0;
  float scale = 0;  // lora_alpha / r, or lora_alpha / sqrt(r) with rsLoRA
  Tensor a;         // [rank, in]
  Tensor b;         // [out, rank]
};

class LoraWeights {
 public:
  LoraWeights(std::string name, int layers) : name_(std::move(name)), layers_(layers) {
    matrices_.resize(static_cast<std::size_t>(layers * kLinearLayers));
  }

  const std::string& name() const { return name_; }
  int layers() const { return layers_; }
  int rank() const { return rank_; }  // the largest of any layer

  // Null when the adapter leaves that layer alone.
  const LoraMatrices* find(int layer, LinearLayer which) const {
    const LoraMatrices& m = matrices_[static_cast<std::size_t>(layer * kLinearLayers) +
                                      static_cast<std::size_t>(which)];
    return m.rank == 0 ? nullptr : &m;
  }
  void set(int layer, LinearLayer which, LoraMatrices matrices);

  // The layers that it changes somewhere, in order.
  std::vector<LinearLayer> targets() const;

 private:
  std::string name_;
  int layers_;
  int rank_ = 0;
  std::vector<LoraMatrices> matrices_;
};

// A and B uniform, small enough to keep a model's outputs finite and large enough to change them;
// bf16, scale 1. `targets` as in LoraSection: q, k, v, o, gate, up, down.
std::shared_ptr<const LoraWeights> random_adapter(const ModelConfig& model, const std::string& name,
                                                  int rank, const std::vector<std::string>& targets,
                                                  std::uint64_t seed);

// Reads a PEFT folder (adapter_config.json, adapter_model.safetensors) made for `model`. SpecError
// with file and key for anything that is damaged, made for another base, or would change the result
// in a way that servelab does not compute.
std::shared_ptr<const LoraWeights> load_peft_adapter(const std::string& folder,
                                                     const ModelConfig& model);

// Writes an adapter as a PEFT folder, atomically.
void save_peft_adapter(const LoraWeights& adapter, const ModelConfig& model,
                       const std::string& folder);

}  // namespace servelab

#endif  // SERVELAB_MODEL_LORA_WEIGHTS_H_

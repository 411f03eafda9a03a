// The shape of a decoder-only transformer of the Llama family, and the sizes that follow from it.
// Files: experiments/base/model/*.yaml.
#ifndef SERVELAB_MODEL_MODEL_CONFIG_H_
#define SERVELAB_MODEL_MODEL_CONFIG_H_

#include <string>
#include <vector>

#include "engine/core/params.h"
#include "engine/core/units.h"

namespace servelab {

struct ModelConfig {
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  int max_context_tokens = 4096;
  int bytes_per_weight = 2;
  std::string source;  // where the numbers come from

  void fields(ParamFields& f);

  std::int64_t parameters() const;
  Bytes weight_bytes() const { return parameters() * bytes_per_weight; }
  Bytes kv_bytes_per_token() const;  // K and V of every layer

  // Parameters of a LoRA adapter of `rank` over `targets`, each one of: q, k, v, o, gate, up, down.
  std::int64_t lora_parameters(int rank, const std::vector<std::string>& targets) const;
  Bytes lora_bytes(int rank, const std::vector<std::string>& targets) const {
    return lora_parameters(rank, targets) * bytes_per_weight;
  }
};

// The [out, in] shape of one linear layer: one of q, k, v, o, gate, up, down.
struct LinearShape {
  int out = 0;
  int in = 0;
};
LinearShape linear_shape(const ModelConfig& model, const std::string& target);

// Reads and checks one file; SpecError with file, line and column on a bad one.
ModelConfig load_model_config(const std::string& path);

}  // namespace servelab

#endif  // SERVELAB_MODEL_MODEL_CONFIG_H_

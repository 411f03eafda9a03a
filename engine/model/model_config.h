// The shape of a decoder-only transformer of the Llama family, and the sizes that follow from it.
// Files: experiments/base/model/*.yaml.
#ifndef SERVELAB_MODEL_MODEL_CONFIG_H_
#define SERVELAB_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/params.h"
#include "engine/core/units.h"

namespace servelab {

// How rotary frequencies are stretched beyond the context that a model was first trained with.
struct RopeScaling {
  std::string type = "none";  // none, linear, llama3
  double factor = 1;          // linear: positions are divided by it; llama3: slow frequencies are
  // llama3 only, with w the wavelength of a frequency in positions: unchanged where
  // w < original_max_position / high_freq_factor, divided by `factor` where
  // w > original_max_position / low_freq_factor, and a linear blend in 1 / w between the two.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position = 8192;

  bool operator==(const RopeScaling&) const = default;
};

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
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double rms_norm_eps = 1e-5;
  std::string weights = "random";  // or a Hugging Face folder
  std::int64_t weights_seed = 0;   // of random weights
  std::string source;              // where the numbers come from

  void fields(ParamFields& f);  // rope_scaling's as "rope_scaling.type" and so on

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

// Relations between fields that no single field's limits can express. SpecError at `where`.
void check_model(const ModelConfig& model, const SourceMark& where);

// Reads and checks one file; SpecError with file, line and column on a bad one. A relative
// `weights` starts at the file's folder.
ModelConfig load_model_config(const std::string& path);

}  // namespace servelab

#endif  // SERVELAB_MODEL_MODEL_CONFIG_H_

// Small models on disk, for tests of what reads models and adapters.
#ifndef SERVELAB_TESTS_UNIT_MODEL_WEIGHTS_TESTING_H_
#define SERVELAB_TESTS_UNIT_MODEL_WEIGHTS_TESTING_H_

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/hf_model.h"
#include "engine/model/lora_weights.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"
#include "tests/support/program.h"

namespace servelab::test {

inline ModelConfig tiny_model() {
  ModelConfig model;
  model.name = "tiny";
  model.source = "test";
  model.layers = 2;
  model.hidden = 8;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.ffn = 12;
  model.vocab = 20;
  model.max_context_tokens = 64;
  return model;
}

inline std::string golden_folder(const std::string& family) {
  return std::string(SERVELAB_SOURCE_DIR) + "/tests/golden/models/" + family;
}

// config.json of a model of type llama or qwen2; `more` are further members.
inline std::string hf_config(const ModelConfig& m, const std::string& more = "") {
  const auto number = [](int value) { return std::to_string(value); };
  return std::string("{\"model_type\": \"") + (m.qkv_bias ? "qwen2" : "llama") +
         "\", \"num_hidden_layers\": " + number(m.layers) +
         ", \"hidden_size\": " + number(m.hidden) +
         ", \"num_attention_heads\": " + number(m.heads) +
         ", \"num_key_value_heads\": " + number(m.kv_heads) +
         ", \"head_dim\": " + number(m.head_dim) + ", \"intermediate_size\": " + number(m.ffn) +
         ", \"vocab_size\": " + number(m.vocab) + ", \"rms_norm_eps\": 1e-5" +
         ", \"max_position_embeddings\": " + number(m.max_context_tokens) +
         ", \"tie_word_embeddings\": " + (m.tied_embeddings ? "true" : "false") + more + "}";
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Every tensor of a model under its Hugging Face name.
inline NamedTensors hf_tensors(const ModelConfig& model, const ModelWeights& weights) {
  NamedTensors all;
  all.emplace_back("model.embed_tokens.weight", weights.tensor(ModelTensor::kEmbedding));
  all.emplace_back("model.norm.weight", weights.tensor(ModelTensor::kFinalNorm));
  if (!model.tied_embeddings) {
    all.emplace_back("lm_head.weight", weights.tensor(ModelTensor::kLmHead));
  }
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (int i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      all.emplace_back(hf_module(layer, which) + ".weight", weights.linear(layer, which));
    }
    all.emplace_back(prefix + "input_layernorm.weight",
                     weights.vector(layer, LayerVector::kAttentionNorm));
    all.emplace_back(prefix + "post_attention_layernorm.weight",
                     weights.vector(layer, LayerVector::kFfnNorm));
    if (!model.qkv_bias) continue;
    all.emplace_back(prefix + "self_attn.q_proj.bias", weights.vector(layer, LayerVector::kQBias));
    all.emplace_back(prefix + "self_attn.k_proj.bias", weights.vector(layer, LayerVector::kKBias));
    all.emplace_back(prefix + "self_attn.v_proj.bias", weights.vector(layer, LayerVector::kVBias));
  }
  return all;
}

// A Hugging Face folder with random weights.
inline std::string save_hf_model(const TemporaryFolder& folder, const ModelConfig& model,
                                 const NamedTensors& tensors) {
  folder.file("config.json", hf_config(model));
  folder.file("model.safetensors", safetensors_bytes(tensors, true));
  return folder.path();
}

inline std::string bytes_of(const Tensor& tensor) {
  const std::size_t count =
      static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns);
  return {static_cast<const char*>(tensor.data), count * kernels::bytes_of(tensor.type)};
}

inline float value_at(const Tensor& tensor, std::size_t i) {
  switch (tensor.type) {
    case kernels::DType::kF32:
      return static_cast<const float*>(tensor.data)[i];
    case kernels::DType::kBf16:
      return kernels::to_float(static_cast<const kernels::Bf16*>(tensor.data)[i]);
    case kernels::DType::kF16:
      return kernels::to_float(static_cast<const kernels::F16*>(tensor.data)[i]);
  }
  return 0;
}

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_UNIT_MODEL_WEIGHTS_TESTING_H_

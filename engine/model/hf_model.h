// Models in Hugging Face's folders: config.json and model.safetensors (or its shards).
#ifndef SERVELAB_MODEL_HF_MODEL_H_
#define SERVELAB_MODEL_HF_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/weights.h"

namespace servelab {

// Reads <folder>/config.json of LlamaForCausalLM, MistralForCausalLM or Qwen2ForCausalLM; `weights`
// becomes the folder. SpecError with the file and the key for anything that servelab would compute
// differently. A sliding window caps the context, where both give the same result.
ModelConfig load_hf_config(const std::string& folder);

// The same from text; `file` is for messages, `name` becomes the model's name.
ModelConfig parse_hf_config(std::string_view text, const std::string& file,
                            const std::string& name);

// "model.layers.3.self_attn.q_proj": the module of a linear layer.
std::string hf_module(int layer, LinearLayer which);

}  // namespace servelab

#endif  // SERVELAB_MODEL_HF_MODEL_H_

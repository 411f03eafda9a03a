#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/check.h"
#include "engine/model/hf_model.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

namespace servelab {
namespace {

constexpr const char* kLmHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

// A tensor's name and shape; 0 rows for a vector.
struct Wanted {
  std::string name;
  int rows = 0;
  int columns = 0;
};

Wanted wanted_linear(const ModelConfig& model, int layer, LinearLayer which) {
  const LinearShape shape = linear_shape(model, kLinearLayerNames[static_cast<std::size_t>(which)]);
  return {hf_module(layer, which) + ".weight", shape.out, shape.in};
}

Wanted wanted_vector(const ModelConfig& model, int layer, LayerVector which) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int kv = model.kv_heads * model.head_dim;
  switch (which) {
    case LayerVector::kAttentionNorm:
      return {prefix + "input_layernorm.weight", TensorFiles::kVector, model.hidden};
    case LayerVector::kFfnNorm:
      return {prefix + "post_attention_layernorm.weight", TensorFiles::kVector, model.hidden};
    case LayerVector::kQBias:
      return {prefix + "self_attn.q_proj.bias", TensorFiles::kVector, model.heads * model.head_dim};
    case LayerVector::kKBias:
      return {prefix + "self_attn.k_proj.bias", TensorFiles::kVector, kv};
    case LayerVector::kVBias:
      return {prefix + "self_attn.v_proj.bias", TensorFiles::kVector, kv};
  }
  SL_CHECK(false, "a vector of the layer");
  return {};
}

Wanted wanted_tensor(const ModelConfig& model, ModelTensor which) {
  if (which == ModelTensor::kFinalNorm) {
    return {"model.norm.weight", TensorFiles::kVector, model.hidden};
  }
  const bool head = which == ModelTensor::kLmHead && !model.tied_embeddings;
  return {head ? kLmHead : kEmbedding, model.vocab, model.hidden};
}

std::vector<Wanted> all_wanted(const ModelConfig& model) {
  std::vector<Wanted> all;
  for (const auto which :
       {ModelTensor::kEmbedding, ModelTensor::kFinalNorm, ModelTensor::kLmHead}) {
    all.push_back(wanted_tensor(model, which));
  }
  for (int layer = 0; layer < model.layers; ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      all.push_back(wanted_linear(model, layer, static_cast<LinearLayer>(i)));
    }
    all.push_back(wanted_vector(model, layer, LayerVector::kAttentionNorm));
    all.push_back(wanted_vector(model, layer, LayerVector::kFfnNorm));
    if (!model.qkv_bias) continue;
    for (const auto which : {LayerVector::kQBias, LayerVector::kKBias, LayerVector::kVBias}) {
      all.push_back(wanted_vector(model, layer, which));
    }
  }
  return all;
}

// A model file that names a folder of weights must mean what the folder's config.json says.
void check_same_model(const std::string& folder, ModelConfig model) {
  ModelConfig stored = load_hf_config(folder);
  const ConfigNode ours = effective_params(&model);
  const ConfigNode theirs = effective_params(&stored);
  const std::set<std::string> free = {"name",    "source",       "max_context_tokens",
                                      "weights", "weights_seed", "bytes_per_weight"};
  for (const ConfigMember& member : ours.members) {
    const std::string& other = theirs.find(member.key)->scalar;
    // Scaling's parameters say nothing where there is none.
    const bool idle = member.key.rfind("rope_scaling.", 0) == 0 &&
                      stored.rope_scaling.type == "none" && model.rope_scaling.type == "none";
    if (free.count(member.key) > 0 || idle || member.value.scalar == other) continue;
    throw SpecError(folder + "/config.json: means '" + member.key + "' " + other +
                    ", but the model '" + model.name + "' has " + member.value.scalar);
  }
  if (model.max_context_tokens > stored.max_context_tokens) {
    throw SpecError(folder + "/config.json: allows a context of " +
                    std::to_string(stored.max_context_tokens) + " tokens, but the model '" +
                    model.name + "' has 'max_context_tokens' " +
                    std::to_string(model.max_context_tokens));
  }
}

// Rotary frequencies follow from config.json.
bool is_redundant(const std::string& name) {
  constexpr std::string_view kFrequencies = "rotary_emb.inv_freq";
  return name.size() >= kFrequencies.size() &&
         name.compare(name.size() - kFrequencies.size(), kFrequencies.size(), kFrequencies) == 0;
}

class HfWeights final : public ModelWeights {
 public:
  HfWeights(const std::string& folder, const ModelConfig& model)
      : model_(model), files_(TensorFiles::open_folder(folder, "model")) {
    if (model_.tied_embeddings) check_tied();
    std::set<std::string> known;
    std::set<std::string> types;  // of matrices: engines keep vectors in F32
    for (const Wanted& wanted : all_wanted(model_)) {
      const std::string name = stored_name(wanted);
      files_.check(name, wanted.rows, wanted.columns);
      known.insert(name);
      if (wanted.rows != TensorFiles::kVector) types.insert(files_.entries().at(name).stored.type);
    }
    if (model_.tied_embeddings) known.insert(kLmHead);
    for (const auto& entry : files_.entries()) {
      if (known.count(entry.first) > 0 || is_redundant(entry.first)) continue;
      throw SpecError(entry.second.file->path() + ": tensor '" + entry.first +
                      "' has no place in the model that config.json describes");
    }
    if (types == std::set<std::string>{"BF16"}) type_ = kernels::DType::kBf16;
    if (types == std::set<std::string>{"F16"}) type_ = kernels::DType::kF16;
  }

  Tensor linear(int layer, LinearLayer which) const override {
    return take(wanted_linear(model_, layer, which));
  }
  Tensor vector(int layer, LayerVector which) const override {
    return take(wanted_vector(model_, layer, which));
  }
  Tensor tensor(ModelTensor which) const override { return take(wanted_tensor(model_, which)); }
  kernels::DType type() const override { return type_; }

 private:
  // A tied model may be stored with either name of its one table, or with both.
  std::string stored_name(const Wanted& wanted) const {
    const bool under_other_name = wanted.name == kEmbedding && model_.tied_embeddings &&
                                  files_.entries().count(kEmbedding) == 0 &&
                                  files_.entries().count(kLmHead) > 0;
    return under_other_name ? kLmHead : wanted.name;
  }

  void check_tied() const {
    const auto embedding = files_.entries().find(kEmbedding);
    const auto head = files_.entries().find(kLmHead);
    if (embedding == files_.entries().end() || head == files_.entries().end()) return;
    const StoredTensor& a = embedding->second.stored;
    const StoredTensor& b = head->second.stored;
    if (a.type == b.type && std::ranges::equal(a.bytes, b.bytes)) return;
    throw SpecError(head->second.file->path() + ": tensor '" + kLmHead + "' differs from '" +
                    kEmbedding + "', but config.json says 'tie_word_embeddings': true; set it to " +
                    "false, or remove the tensor");
  }

  Tensor take(const Wanted& wanted) const {
    return files_.take(stored_name(wanted), wanted.rows, wanted.columns);
  }

  ModelConfig model_;
  TensorFiles files_;
  kernels::DType type_ = kernels::DType::kF32;
};

}  // namespace

std::unique_ptr<ModelWeights> load_hf_weights(const std::string& folder, const ModelConfig& model) {
  check_same_model(folder, model);
  return std::make_unique<HfWeights>(folder, model);
}

}  // namespace servelab

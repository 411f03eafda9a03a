#include "engine/model/model_config.h"

#include <filesystem>

#include "engine/core/check.h"
#include "engine/core/config_node.h"

namespace servelab {
namespace {

const std::vector<std::string>& linear_targets() {
  static const std::vector<std::string> kTargets = {"q", "k", "v", "o", "gate", "up", "down"};
  return kTargets;
}

// Members of the map `rope_scaling` become members "rope_scaling.<key>" of the model, where they
// are declared, recorded and listed.
ConfigNode flattened(const ConfigNode& node) {
  constexpr const char* kSection = "rope_scaling";
  const ConfigNode* section = node.find(kSection);
  if (section == nullptr || !node.is_map()) return node;
  if (!section->is_map() && !section->is_null()) {
    throw SpecError(section->mark,
                    "'rope_scaling' must be a map with 'type'; leave it out for none");
  }
  if (section->is_map() && section->find("type") == nullptr) {
    throw SpecError(section->mark, "'rope_scaling' needs 'type', one of none, linear, llama3");
  }
  ConfigNode flat = ConfigNode::map();
  flat.mark = node.mark;
  for (const ConfigMember& member : node.members) {
    if (member.key != kSection) flat.members.push_back(member);
  }
  for (const ConfigMember& member : section->members) {
    flat.members.push_back({std::string(kSection) + "." + member.key, member.value});
  }
  return flat;
}

}  // namespace

void ModelConfig::fields(ParamFields& f) {
  f.add("name", &name, "the model's public name").required();
  f.add("layers", &layers, "decoder layers").range(1, 1000).required();
  f.add("hidden", &hidden, "width of the residual stream").range(1, 1 << 20).required();
  f.add("heads", &heads, "query heads").range(1, 4096).required();
  f.add("kv_heads", &kv_heads, "key and value heads").range(1, 4096).required();
  f.add("head_dim", &head_dim, "elements of one head").range(1, 4096).required();
  f.add("ffn", &ffn, "width of gate and up").range(1, 1 << 22).required();
  f.add("vocab", &vocab, "tokens in the vocabulary").range(1, 1 << 24).required();
  f.add("tied_embeddings", &tied_embeddings, "the LM head reuses the embedding table");
  f.add("qkv_bias", &qkv_bias, "q, k and v have a bias (Qwen)");
  f.add("max_context_tokens", &max_context_tokens, "longest context").range(1, 1 << 28);
  f.add("bytes_per_weight", &bytes_per_weight,
        "2 for bf16 and fp16, the widths that the operators are costed at")
      .range(2, 2);
  f.add("rope_theta", &rope_theta, "base of the rotary frequencies").range(1, 1e12);
  f.add("rope_scaling.type", &rope_scaling.type, "how rotary frequencies are stretched")
      .one_of({"none", "linear", "llama3"});
  f.add("rope_scaling.factor", &rope_scaling.factor, "by how much").range(1, 1e6);
  f.add("rope_scaling.low_freq_factor", &rope_scaling.low_freq_factor,
        "llama3: wavelengths above original_max_position / this are stretched in full")
      .range(1e-6, 1e6);
  f.add("rope_scaling.high_freq_factor", &rope_scaling.high_freq_factor,
        "llama3: wavelengths below original_max_position / this are left alone")
      .range(1e-6, 1e6);
  f.add("rope_scaling.original_max_position", &rope_scaling.original_max_position,
        "llama3: context before stretching")
      .range(1, 1 << 28);
  f.add("rms_norm_eps", &rms_norm_eps, "added to the mean square in RMSNorm").range(0, 1);
  f.add("weights", &weights, "'random', or a Hugging Face folder (relative to this file)");
  f.add("weights_seed", &weights_seed, "seed of random weights").range(0, 9e15);
  f.add("source", &source, "where the numbers come from").required();
}

std::int64_t ModelConfig::parameters() const {
  std::int64_t per_layer = 2LL * hidden;  // the two norms
  for (const std::string& target : linear_targets()) {
    const LinearShape shape = linear_shape(*this, target);
    per_layer += static_cast<std::int64_t>(shape.out) * shape.in;
  }
  if (qkv_bias) per_layer += static_cast<std::int64_t>(heads + 2 * kv_heads) * head_dim;
  const std::int64_t table = static_cast<std::int64_t>(vocab) * hidden;
  return per_layer * layers + table * (tied_embeddings ? 1 : 2) + hidden;
}

Bytes ModelConfig::kv_bytes_per_token() const {
  return 2LL * layers * kv_heads * head_dim * bytes_per_weight;
}

std::int64_t ModelConfig::lora_parameters(int rank, const std::vector<std::string>& targets) const {
  std::int64_t per_rank = 0;
  for (const std::string& target : targets) {
    const LinearShape shape = linear_shape(*this, target);
    per_rank += shape.out + shape.in;
  }
  return per_rank * rank * layers;
}

LinearShape linear_shape(const ModelConfig& model, const std::string& target) {
  const int q = model.heads * model.head_dim;
  const int kv = model.kv_heads * model.head_dim;
  if (target == "q") return {q, model.hidden};
  if (target == "k" || target == "v") return {kv, model.hidden};
  if (target == "o") return {model.hidden, q};
  if (target == "gate" || target == "up") return {model.ffn, model.hidden};
  if (target == "down") return {model.hidden, model.ffn};
  throw SpecError("unknown linear layer '" + target + "'; " + suggest(target, linear_targets()));
}

void check_model(const ModelConfig& model, const SourceMark& where) {
  if (model.heads % model.kv_heads != 0) {
    throw SpecError(where, "'heads' (" + std::to_string(model.heads) +
                               ") must be a multiple of 'kv_heads' (" +
                               std::to_string(model.kv_heads) + ")");
  }
  if (model.head_dim % 2 != 0) {
    throw SpecError(where, "'head_dim' (" + std::to_string(model.head_dim) +
                               ") must be even: rotary embedding turns pairs");
  }
  const RopeScaling& rope = model.rope_scaling;
  if (rope.type == "llama3" && rope.high_freq_factor <= rope.low_freq_factor) {
    throw SpecError(where, "'rope_scaling.high_freq_factor' must be above 'low_freq_factor'");
  }
  if (model.name.empty()) throw SpecError(where, "'name' must not be empty");
  if (model.source.empty()) throw SpecError(where, "'source' must say where the numbers come from");
  if (model.weights.empty()) {
    throw SpecError(where, "'weights' must be 'random' or a Hugging Face folder");
  }
}

ModelConfig load_model_config(const std::string& path) {
  const ConfigNode node = parse_yaml_file(path);
  ModelConfig model;
  bind_params(flattened(node), "model", &model);
  check_model(model, SourceMark{path, 1, 1});
  if (model.weights != "random") {
    model.weights = (std::filesystem::path(path).parent_path() / model.weights).lexically_normal();
  }
  return model;
}

}  // namespace servelab

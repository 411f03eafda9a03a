#include "engine/model/model_config.h"

#include "engine/core/check.h"
#include "engine/core/config_node.h"

namespace servelab {
namespace {

const std::vector<std::string>& linear_targets() {
  static const std::vector<std::string> kTargets = {"q", "k", "v", "o", "gate", "up", "down"};
  return kTargets;
}

// Relations between fields that no single field's limits can express.
void check_consistent(const ModelConfig& model, const SourceMark& where) {
  if (model.heads % model.kv_heads != 0) {
    throw SpecError(where, "'heads' (" + std::to_string(model.heads) +
                               ") must be a multiple of 'kv_heads' (" +
                               std::to_string(model.kv_heads) + ")");
  }
  if (model.name.empty()) throw SpecError(where, "'name' must not be empty");
  if (model.source.empty()) throw SpecError(where, "'source' must say where the numbers come from");
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

ModelConfig load_model_config(const std::string& path) {
  const ConfigNode node = parse_yaml_file(path);
  ModelConfig model;
  bind_params(node, "model", &model);
  check_consistent(model, SourceMark{path, 1, 1});
  return model;
}

}  // namespace servelab

#include "engine/model/hf_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "engine/core/check.h"
#include "engine/model/json_file.h"

namespace servelab {
namespace {

constexpr int kLargest = 1 << 24;

// What transformers fills in where config.json says nothing.
struct Family {
  const char* type;
  const char* architecture;
  int kv_heads;  // 0: as many as query heads
  int max_position;
};
constexpr std::array<Family, 3> kFamilies = {{{"llama", "LlamaForCausalLM", 0, 2048},
                                              {"mistral", "MistralForCausalLM", 8, 4096 * 32},
                                              {"qwen2", "Qwen2ForCausalLM", 32, 32768}}};

// Keys without influence on logits at inference: ids of special tokens, training, generation, code.
// Whatever is in none of the lists here is refused, whatever its value: that a key says false or
// null does not tell what it would mean if it were not there.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> kKeys = {"_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_flash_attn_2_enabled",
                                              "_name_or_path",
                                              "architectures",
                                              "attention_dropout",
                                              "auto_map",
                                              "bad_words_ids",
                                              "begin_suppress_tokens",
                                              "bos_token_id",
                                              "cache_implementation",
                                              "chunk_size_feed_forward",
                                              "decoder_start_token_id",
                                              "diversity_penalty",
                                              "do_sample",
                                              "dtype",
                                              "early_stopping",
                                              "encoder_no_repeat_ngram_size",
                                              "eos_token_id",
                                              "finetuning_task",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "hidden_act",
                                              "hidden_size",
                                              "id2label",
                                              "initializer_range",
                                              "intermediate_size",
                                              "is_llama_config",
                                              "label2id",
                                              "length_penalty",
                                              "max_length",
                                              "max_sequence_length",
                                              "max_position_embeddings",
                                              "max_window_layers",
                                              "min_length",
                                              "model_type",
                                              "no_repeat_ngram_size",
                                              "num_attention_heads",
                                              "num_beam_groups",
                                              "num_beams",
                                              "num_hidden_layers",
                                              "num_key_value_heads",
                                              "num_return_sequences",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_scores",
                                              "pad_token_id",
                                              "pretraining_tp",
                                              "prefix",
                                              "problem_type",
                                              "remove_invalid_values",
                                              "repetition_penalty",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "rms_norm_eps",
                                              "sep_token_id",
                                              "suppress_tokens",
                                              "task_specific_params",
                                              "temperature",
                                              "tokenizer_class",
                                              "top_k",
                                              "top_p",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers_version",
                                              "transformers.js_config",
                                              "typical_p",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "use_bfloat16",
                                              "use_cache",
                                              "vocab_size"};
  return kKeys;
}

// Of every model's settings: they change nothing as long as they are not set.
const std::set<std::string>& unset_keys() {
  static const std::set<std::string> kKeys = {"add_cross_attention",
                                              "cross_attention_hidden_size",
                                              "exponential_decay_length_penalty",
                                              "is_decoder",
                                              "is_encoder_decoder",
                                              "pruned_heads",
                                              "quantization_config",
                                              "rope_interleaved",
                                              "tf_legacy_loss",
                                              "tie_encoder_decoder",
                                              "use_mrope"};
  return kKeys;
}

// Keys with handling of their own, below.
const std::set<std::string>& handled_keys() {
  static const std::set<std::string> kKeys = {
      "attention_bias",        "head_dim",          "is_causal",    "layer_types", "mlp_bias",
      "partial_rotary_factor", "rope_parameters",   "rope_scaling", "rope_theta",  "sliding_window",
      "tie_word_embeddings",   "use_sliding_window"};
  return kKeys;
}

const Family& family_of(const JsonObject& config) {
  std::vector<std::string> types;
  std::vector<std::string> architectures;
  for (const Family& family : kFamilies) {
    types.emplace_back(family.type);
    architectures.emplace_back(family.architecture);
  }
  const std::string type = config.text("model_type", "");
  const auto found = std::find(types.begin(), types.end(), type);
  if (found == types.end()) {
    config.refuse("model_type", "is '" + type + "'; " + suggest(type, types));
  }
  const Family& family = kFamilies[static_cast<std::size_t>(found - types.begin())];
  for (const std::string& name : config.texts("architectures")) {
    if (name != family.architecture) {
      config.refuse("architectures", "holds '" + name + "'; " + suggest(name, architectures));
    }
  }
  return family;
}

// `key` must be absent, null or not truthy.
void refuse_truthy(const JsonObject& config, const std::string& key, const std::string& why) {
  const Json* value = config.find(key);
  if (value != nullptr && is_truthy(*value)) {
    config.refuse(key, "is " + shown(*value) + ": " + why);
  }
}

void read_scaling(const JsonObject& rope, const std::string& type, ModelConfig* model) {
  RopeScaling& scaling = model->rope_scaling;
  if (type == "default") return;
  scaling.type = type;
  if (type != "linear" && type != "llama3") {
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
                "is '" + type + "'; " + suggest(type, {"default", "linear", "llama3"}));
  }
  scaling.factor = rope.number("factor", 1, 1e6);
  if (type == "linear") return;
  scaling.low_freq_factor = rope.number("low_freq_factor", 1e-6, 1e6);
  scaling.high_freq_factor = rope.number("high_freq_factor", 1e-6, 1e6);
  scaling.original_max_position = rope.integer("original_max_position_embeddings", 1, 1 << 28);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.refuse("high_freq_factor", "must be above low_freq_factor");
  }
}

// transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters with both; a
// truthy rope_scaling wins there, and rope_theta inside of either over the one outside.
void read_rope(const JsonObject& config, ModelConfig* model) {
  constexpr double kMostTheta = 1e12;
  model->rope_theta = config.number("rope_theta", 1, kMostTheta, 10000);
  const Json* scaling = config.find("rope_scaling");
  const bool old_layout = scaling != nullptr && is_truthy(*scaling);
  const std::string key = old_layout ? "rope_scaling" : "rope_parameters";
  const Json* parameters = config.find(key);
  double partial = config.number("partial_rotary_factor", 0, 1, 1);
  if (parameters != nullptr) {
    const JsonObject rope(*parameters, config.file(), key);
    const std::set<std::string> known = {
        "type",   "rope_type",       "rope_theta",       "partial_rotary_factor",
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
    for (const auto& item : rope.json().items()) {
      const std::string& name = item.key();
      if (known.count(name) == 0) {
        rope.refuse(name, "is unknown; " + suggest(name, {known.begin(), known.end()}));
      }
    }
    model->rope_theta = rope.number("rope_theta", 1, kMostTheta, model->rope_theta);
    partial = rope.number("partial_rotary_factor", 0, 1, partial);
    read_scaling(rope, rope.text("rope_type", rope.text("type", "default")), model);
  }
  if (partial != 1) {
    config.refuse("partial_rotary_factor", "must be 1: servelab rotates whole heads");
  }
}

void read_attention(const JsonObject& config, const Family& family, ModelConfig* model) {
  const std::string type = family.type;
  const int default_kv_heads = family.kv_heads == 0 ? model->heads : family.kv_heads;
  const bool null_kv_heads = config.json().contains("num_key_value_heads");
  model->kv_heads = config.integer("num_key_value_heads", 1, 4096,
                                   null_kv_heads ? model->heads : default_kv_heads);
  if (model->heads % model->kv_heads != 0) {
    config.refuse("num_key_value_heads", "is " + std::to_string(model->kv_heads) +
                                             ", which does not divide num_attention_heads, " +
                                             std::to_string(model->heads));
  }
  if (!config.has("head_dim") && model->hidden % model->heads != 0) {
    config.refuse("num_attention_heads", "does not divide hidden_size, and there is no head_dim");
  }
  model->head_dim = config.integer("head_dim", 1, 4096, std::max(1, model->hidden / model->heads));
  if (model->head_dim % 2 != 0) config.refuse("head_dim", "must be even");
  model->qkv_bias = type == "qwen2";
  if (type == "llama") {
    refuse_truthy(config, "attention_bias",
                  "Llama's has a bias on o_proj too, which servelab does not compute");
  } else if (const Json* bias = config.find("attention_bias")) {
    if (is_truthy(*bias) != model->qkv_bias) {
      config.refuse("attention_bias", "has no meaning for '" + type + "'");
    }
  }
  refuse_truthy(config, "mlp_bias", "servelab computes no biases in the MLP");
}

// Within the window, full attention and sliding attention see the same positions.
void read_window(const JsonObject& config, const Family& family, ModelConfig* model) {
  const std::string type = family.type;
  model->max_context_tokens =
      config.integer("max_position_embeddings", 1, 1 << 28, family.max_position);
  const bool window_given = config.json().contains("sliding_window");
  const bool used = type == "mistral" || config.boolean("use_sliding_window", false);
  if (used) {
    constexpr int kDefaultWindow = 4096;  // of both families, unless it is null
    const int window = config.integer("sliding_window", 1, 1 << 28,
                                      window_given ? model->max_context_tokens : kDefaultWindow);
    model->max_context_tokens = std::min(model->max_context_tokens, window);
  } else if (type == "llama") {
    refuse_truthy(config, "sliding_window", "has no meaning for 'llama'");
  }
  for (const std::string& layer : config.texts("layer_types")) {
    if (layer != "full_attention" && layer != "sliding_attention") {
      config.refuse("layer_types", "holds '" + layer + "'; " +
                                       suggest(layer, {"full_attention", "sliding_attention"}));
    }
    if (layer == "sliding_attention" && !used) {
      config.refuse("layer_types", "holds 'sliding_attention', but no window is in use");
    }
  }
}

void refuse_unknown(const JsonObject& config) {
  refuse_truthy(config, "quantization_config", "servelab reads unquantized weights only");
  for (const auto& item : config.json().items()) {
    const std::string& key = item.key();
    if (harmless_keys().count(key) > 0 || handled_keys().count(key) > 0) continue;
    if (unset_keys().count(key) > 0 && !is_truthy(item.value())) continue;
    config.refuse(key, "is " + shown(item.value()) + ", and servelab does not know what it " +
                           "changes; remove it if it changes nothing");
  }
}

}  // namespace

ModelConfig parse_hf_config(std::string_view text, const std::string& file,
                            const std::string& name) {
  const Json json = parse_json<Json>(text, file);
  const JsonObject config(json, file);
  const Family& family = family_of(config);
  ModelConfig model;
  model.name = name;
  model.source = "config.json of the model's folder";
  model.layers = config.integer("num_hidden_layers", 1, 1000);
  model.hidden = config.integer("hidden_size", 1, 1 << 20);
  model.heads = config.integer("num_attention_heads", 1, 4096);
  model.ffn = config.integer("intermediate_size", 1, 1 << 22);
  model.vocab = config.integer("vocab_size", 1, kLargest);
  model.tied_embeddings = config.boolean("tie_word_embeddings", false);
  model.rms_norm_eps = config.number("rms_norm_eps", 0, 1, 1e-6);
  const std::string activation = config.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.refuse("hidden_act", "is '" + activation + "'; servelab computes 'silu'");
  }
  if (!config.boolean("is_causal", true)) {
    config.refuse("is_causal", "is false: servelab computes causal attention");
  }
  read_attention(config, family, &model);
  read_rope(config, &model);
  read_window(config, family, &model);
  refuse_unknown(config);
  return model;
}

ModelConfig load_hf_config(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string file = fs::path(folder) / "config.json";
  const std::string adapter = fs::path(folder) / "adapter_config.json";
  std::error_code ignored;
  if (fs::exists(adapter, ignored)) {
    throw SpecError(adapter +
                    ": an adapter lies in the model's folder, where transformers adds it to the "
                    "model; move its files to a folder of their own and name that as an adapter");
  }
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  const fs::path last =
      absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
  ModelConfig model = parse_hf_config(read_text_file(file), file, last.string());
  model.weights = folder;
  check_model(model, SourceMark{file, 0, 0});
  return model;
}

std::string hf_module(int layer, LinearLayer which) {
  const std::string name = kLinearLayerNames[static_cast<std::size_t>(which)];
  const bool attention = name.size() == 1;
  return "model.layers." + std::to_string(layer) + (attention ? ".self_attn." : ".mlp.") + name +
         "_proj";
}

}  // namespace servelab

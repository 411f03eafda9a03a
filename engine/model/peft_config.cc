#include "engine/model/peft_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "engine/core/check.h"
#include "engine/model/json_file.h"

namespace servelab {
namespace {

constexpr int kLargestRank = 1 << 16;
constexpr double kLargestAlpha = 1e9;

// Keys that change nothing once an adapter is trained. How A and B were initialised is one of them;
// init_lora_weights, which may tell of changed base weights, is not.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> kKeys = {"auto_mapping",      "base_model_name_or_path",
                                              "corda_config",      "eva_config",
                                              "inference_mode",    "loftq_config",
                                              "lora_dropout",      "lora_ga_config",
                                              "megatron_core",     "peft_version",
                                              "qalora_group_size", "revision",
                                              "runtime_config",    "task_type"};
  return kKeys;
}

const std::set<std::string>& handled_keys() {
  static const std::set<std::string> kKeys = {"alpha_pattern",       "bias",
                                              "exclude_modules",     "fan_in_fan_out",
                                              "init_lora_weights",   "layers_pattern",
                                              "layers_to_transform", "lora_alpha",
                                              "peft_type",           "r",
                                              "rank_pattern",        "target_modules",
                                              "use_rslora"};
  return kKeys;
}

// What servelab does not compute, and what it is.
const std::map<std::string, const char*>& refused_keys() {
  static const std::map<std::string, const char*> kKeys = {
      {"alora_invocation_tokens", "activated LoRA acts on a part of the prompt"},
      {"arrow_config", "Arrow routes between adapters"},
      {"ensure_weight_tying", "it adapts embeddings"},
      {"kasa_config", "KaSA changes the base weights"},
      {"layer_replication", "it changes the base model's layers"},
      {"lora_bias", "LoRA's B has a bias"},
      {"megatron_config", "it adapts Megatron's parallel layers"},
      {"modules_to_save", "it replaces whole modules of the base model"},
      {"monteclora_config", "MonteCLoRA samples weights"},
      {"target_parameters", "it adapts parameters that are no linear layers"},
      {"trainable_token_indices", "it changes token embeddings"},
      {"use_bdlora", "block-diagonal LoRA stores other shapes"},
      {"use_dora", "DoRA scales the base weights"},
      {"use_qalora", "QALoRA pools its inputs"}};
  return kKeys;
}

bool ends_with_name(const std::string& module, const std::string& name) {
  if (module.size() <= name.size()) return false;
  const std::size_t at = module.size() - name.size();
  return module[at - 1] == '.' && module.compare(at, name.size(), name) == 0;
}

}  // namespace

class PeftConfigReader {
 public:
  PeftConfigReader(const JsonObject& json, PeftConfig* out) : json_(json), out_(*out) {}

  void read() {
    const std::string type = json_.text("peft_type", "");
    if (type != "LORA") json_.refuse("peft_type", "is '" + type + "'; servelab serves LORA");
    refuse_others();
    const std::string bias = json_.text("bias", "none");
    if (bias != "none") json_.refuse("bias", "is '" + bias + "'; servelab serves 'none'");
    check_initialisation();
    out_.rank_ = json_.integer("r", 1, kLargestRank);
    out_.alpha_ = json_.number("lora_alpha", -kLargestAlpha, kLargestAlpha);
    out_.rslora_ = json_.boolean("use_rslora", false);
    json_.boolean("fan_in_fan_out", false);  // PEFT ignores it where the base has nn.Linear
    read_patterns();
    read_targets();
    read_layers();
  }

 private:
  std::string where(const std::string& key) const { return json_.file() + ": '" + key + "'"; }

  void refuse_others() const {
    for (const auto& [key, value] : json_.json().items()) {
      if (harmless_keys().count(key) > 0 || handled_keys().count(key) > 0) continue;
      const auto refused = refused_keys().find(key);
      // An empty list of invocation tokens switches aLoRA on, too.
      const bool on = is_truthy(value) || (key == "alora_invocation_tokens" && !value.is_null());
      if (!on) continue;
      if (refused != refused_keys().end()) {
        json_.refuse(
            key, "is " + shown(value) + ", which servelab does not compute: " + refused->second);
      }
      json_.refuse(key, "is " + shown(value) +
                            ", and servelab does not know what it changes; remove it if it " +
                            "changes nothing");
    }
  }

  // PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ change the base weights when PEFT loads the adapter,
  // unless it was converted on saving; PEFT then writes true.
  void check_initialisation() const {
    const Json* value = json_.find("init_lora_weights");
    if (value == nullptr || value->is_boolean()) return;
    const std::string kind = json_.text("init_lora_weights", "");
    if (kind == "gaussian" || kind == "eva" || kind == "orthogonal") return;
    json_.refuse("init_lora_weights", "is '" + kind +
                                          "', which may change the base weights; save it with " +
                                          "path_initial_model_for_weight_conversion");
  }

  const Json* map_of(const std::string& key) const {
    const Json* value = json_.find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) json_.refuse(key, "must be a map; got " + shown(*value));
    return value;
  }

  void read_patterns() {
    if (const Json* map = map_of("rank_pattern")) {
      const JsonObject ranks(*map, json_.file(), "rank_pattern");
      for (const auto& [key, value] : map->items()) {
        out_.rank_patterns_.emplace_back(NamePattern(key, where("rank_pattern")),
                                         ranks.integer(key, 1, kLargestRank));
      }
    }
    if (const Json* map = map_of("alpha_pattern")) {
      const JsonObject alphas(*map, json_.file(), "alpha_pattern");
      for (const auto& [key, value] : map->items()) {
        out_.alpha_patterns_.emplace_back(NamePattern(key, where("alpha_pattern")),
                                          alphas.number(key, -kLargestAlpha, kLargestAlpha));
      }
    }
  }

  PeftConfig::Selection selection(const std::string& key) const {
    PeftConfig::Selection selection;
    const Json* value = json_.find(key);
    if (value == nullptr) return selection;
    if (value->is_string()) {
      const std::string text = value->get<std::string>();
      if (!text.empty()) selection.pattern.emplace(text, where(key));
    } else {
      selection.names = json_.texts(key);
    }
    return selection;
  }

  void read_targets() {
    const Json* value = json_.find("target_modules");
    if (value == nullptr || !is_truthy(*value)) {
      json_.refuse("target_modules", "is missing or empty; it names the layers that are adapted");
    }
    if (value->is_string()) {
      std::string text = value->get<std::string>();
      std::transform(text.begin(), text.end(), text.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      out_.all_linear_ = text == "all-linear";
    }
    if (!out_.all_linear_) out_.target_ = selection("target_modules");
    out_.exclude_ = selection("exclude_modules");
  }

  void read_layers() {
    const Json* layers = json_.find("layers_to_transform");
    const Json* patterns = json_.find("layers_pattern");
    if (layers == nullptr) {
      if (patterns != nullptr && is_truthy(*patterns)) {
        json_.refuse("layers_pattern", "needs layers_to_transform");
      }
      return;
    }
    if (out_.target_.pattern.has_value() || out_.all_linear_) {
      json_.refuse("layers_to_transform", "cannot go with target_modules that are a text");
    }
    const Json list = layers->is_array() ? *layers : Json::array({*layers});
    for (const Json& item : list) {
      if (!item.is_number_unsigned() || item.get<double>() > 1e6) {
        json_.refuse("layers_to_transform", "must hold whole numbers; got " + shown(item));
      }
      if (!out_.layers_) out_.layers_.emplace();
      out_.layers_->insert(item.get<int>());
    }
    if (patterns == nullptr || !is_truthy(*patterns)) return;
    const std::vector<std::string> texts =
        patterns->is_string() ? std::vector<std::string>{patterns->get<std::string>()}
                              : json_.texts("layers_pattern");
    for (const std::string& text : texts) {
      const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '.';
      });
      if (!plain) json_.refuse("layers_pattern", "must be names; got '" + text.substr(0, 60) + "'");
      out_.layers_patterns_.emplace_back("(?:^|.*?\\.)" + text + "\\.\\d+\\..*",
                                         where("layers_pattern"));
    }
  }

  const JsonObject& json_;
  PeftConfig& out_;
};

PeftConfig::PeftConfig(std::string_view text, const std::string& file) {
  const Json json = parse_json<Json>(text, file);
  const JsonObject object(json, file);
  PeftConfigReader(object, this).read();
}

bool PeftConfig::Selection::exactly(const std::string& module) const {
  return std::find(names.begin(), names.end(), module) != names.end();
}

bool PeftConfig::Selection::matches(const std::string& module) const {
  if (pattern) return pattern->matches(module);
  return exactly(module) || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
           return ends_with_name(module, name);
         });
}

bool PeftConfig::layer_is_transformed(const std::string& module) const {
  if (!layers_) return true;
  const bool named = layers_patterns_.empty() ||
                     std::any_of(layers_patterns_.begin(), layers_patterns_.end(),
                                 [&](const NamePattern& p) { return p.matches(module); });
  constexpr std::string_view kLayers = "model.layers.";
  if (!named || module.compare(0, kLayers.size(), kLayers) != 0) return false;
  const std::string digits =
      module.substr(kLayers.size(), module.find('.', kLayers.size()) - kLayers.size());
  const auto has_number = [&](int layer) { return std::to_string(layer) == digits; };
  return std::any_of(layers_->begin(), layers_->end(), has_number);
}

bool PeftConfig::targets(const std::string& module) const {
  if (exclude_.matches(module)) return false;
  constexpr std::string_view kLayers = "model.layers.";
  if (all_linear_) return module.compare(0, kLayers.size(), kLayers) == 0;
  if (target_.pattern) return target_.pattern->matches(module);
  // PEFT leaves layers_to_transform aside for modules that are named in full.
  if (target_.exactly(module)) return true;
  return target_.matches(module) && layer_is_transformed(module);
}

int PeftConfig::rank(const std::string& module) const {
  for (const auto& [pattern, rank] : rank_patterns_) {
    if (pattern.matches_tail(module)) return rank;
  }
  return rank_;
}

float PeftConfig::scale(const std::string& module) const {
  double alpha = alpha_;
  for (const auto& [pattern, value] : alpha_patterns_) {
    if (!pattern.matches_tail(module)) continue;
    alpha = value;
    break;
  }
  const double r = rank(module);
  return static_cast<float>(alpha / (rslora_ ? std::sqrt(r) : r));
}

}  // namespace servelab

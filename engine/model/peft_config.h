// adapter_config.json: which linear layers a PEFT LoRA adapter changes, with which rank and scale.
// The rules are those of PEFT's LoraConfig and of its matching of module names.
#ifndef SERVELAB_MODEL_PEFT_CONFIG_H_
#define SERVELAB_MODEL_PEFT_CONFIG_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/name_pattern.h"

namespace servelab {

class PeftConfig {
 public:
  // SpecError with `file` and the key for settings that servelab does not compute, or does not know
  // and that are not at a default that says "off".
  PeftConfig(std::string_view text, const std::string& file);

  // `module` is a full name in the base model, such as model.layers.0.self_attn.q_proj.
  bool targets(const std::string& module) const;
  int rank(const std::string& module) const;
  float scale(const std::string& module) const;  // lora_alpha / r, or / sqrt(r) with rsLoRA

 private:
  friend class PeftConfigReader;

  // A list of names, each of which also matches as a dotted suffix; or one pattern for whole names.
  struct Selection {
    std::vector<std::string> names;
    std::optional<NamePattern> pattern;
    bool exactly(const std::string& module) const;
    bool matches(const std::string& module) const;
  };
  bool layer_is_transformed(const std::string& module) const;

  int rank_ = 0;
  double alpha_ = 0;
  bool rslora_ = false;
  bool all_linear_ = false;
  Selection target_;
  Selection exclude_;
  std::optional<std::set<int>> layers_;       // layers_to_transform
  std::vector<NamePattern> layers_patterns_;  // any matches; none: any name does
  std::vector<std::pair<NamePattern, int>> rank_patterns_;
  std::vector<std::pair<NamePattern, double>> alpha_patterns_;
};

}  // namespace servelab

#endif  // SERVELAB_MODEL_PEFT_CONFIG_H_

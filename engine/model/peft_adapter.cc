#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/core/check.h"
#include "engine/model/hf_model.h"
#include "engine/model/json_file.h"
#include "engine/model/lora_weights.h"
#include "engine/model/peft_config.h"
#include "engine/model/safetensors.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";

std::string tensor_name(const std::string& module, const char* matrix) {
  return "base_model.model." + module + ".lora_" + matrix + ".weight";
}

TensorFiles open_tensors(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / kWeightsFile, ignored)) {
    const bool pickled = fs::exists(folder / "adapter_model.bin", ignored);
    throw SpecError(folder.string() + ": holds no " + kWeightsFile +
                    (pickled ? "; save it again with safe_serialization=True" : ""));
  }
  return TensorFiles::open_file(folder / kWeightsFile);
}

// Why a tensor that belongs to no targeted linear layer cannot be left aside.
std::string reason_of_extra(const std::string& name, const ModelConfig& model) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("lora_embedding") || has("embed_tokens")) return "it adapts the embedding";
  if (has("lm_head")) return "it adapts the LM head";
  if (has("lora_magnitude_vector")) return "it is DoRA's magnitude";
  constexpr std::string_view kPrefix = "base_model.model.model.layers.";
  if (name.compare(0, kPrefix.size(), kPrefix) == 0) {
    const std::string digits =
        name.substr(kPrefix.size(), name.find('.', kPrefix.size()) - kPrefix.size());
    const bool numeric = !digits.empty() && digits.size() < 9 &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
    if (numeric && std::stoi(digits) >= model.layers) {
      return "the model has " + std::to_string(model.layers) + " layers";
    }
  }
  return "adapter_config.json does not target it, or it is no linear layer of the model";
}

void check_nothing_else_is_targeted(const PeftConfig& config, const std::string& file) {
  for (const char* module : {"lm_head", "model.embed_tokens"}) {
    if (!config.targets(module)) continue;
    throw SpecError(file + ": 'target_modules' includes " + module +
                    ", but servelab adapts the layers' linear modules only");
  }
}

LoraMatrices take_matrices(const TensorFiles& tensors, const PeftConfig& config,
                           const std::string& module, const LinearShape& shape) {
  LoraMatrices matrices;
  matrices.rank = config.rank(module);
  matrices.scale = config.scale(module);
  matrices.a = tensors.take(tensor_name(module, "A"), matrices.rank, shape.in);
  matrices.b = tensors.take(tensor_name(module, "B"), shape.out, matrices.rank);
  return matrices;
}

// adapter_config.json of an adapter in memory: what most layers have in common is not repeated.
class ConfigWriter {
 public:
  explicit ConfigWriter(const ModelConfig& model) {
    json_["peft_type"] = "LORA";
    json_["task_type"] = "CAUSAL_LM";
    json_["base_model_name_or_path"] = model.name;
    json_["bias"] = "none";
    json_["use_rslora"] = false;
    json_["inference_mode"] = true;
  }

  void add(const std::string& module, int rank, float scale) {
    const double alpha = static_cast<double>(scale) * rank;
    if (modules_.empty()) {
      rank_ = rank;
      alpha_ = alpha;
    }
    modules_.push_back(module);
    if (rank != rank_) ranks_[escaped(module)] = rank;
    if (alpha != alpha_) alphas_[escaped(module)] = alpha;
  }

  // `layers` of the model; short names suffice where each layer has the same modules.
  std::string text(int layers) {
    std::set<std::string> names;
    for (const std::string& module : modules_) names.insert(module.substr(module.rfind('.') + 1));
    const bool uniform = modules_.size() == names.size() * static_cast<std::size_t>(layers);
    json_["r"] = rank_;
    json_["lora_alpha"] = alpha_;
    json_["target_modules"] = uniform ? Json(names) : Json(modules_);
    json_["rank_pattern"] = ranks_;
    json_["alpha_pattern"] = alphas_;
    return json_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  static std::string escaped(const std::string& module) {
    std::string text;
    for (const char c : module) text += c == '.' ? std::string("\\.") : std::string(1, c);
    return text;
  }

  Json json_ = Json::object();
  Json ranks_ = Json::object();
  Json alphas_ = Json::object();
  std::vector<std::string> modules_;
  int rank_ = 1;
  double alpha_ = 1;
};

void write_file(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) {
    throw SpecError(path.string() + ": cannot be written: " + std::strerror(errno));
  }
  const int handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (handle < 0) return;
  ::fsync(handle);
  ::close(handle);
}

}  // namespace

std::shared_ptr<const LoraWeights> load_peft_adapter(const std::string& folder,
                                                     const ModelConfig& model) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) throw SpecError(folder + ": no such folder");
  const std::string config_file = fs::path(folder) / kConfigFile;
  const PeftConfig config(read_text_file(config_file), config_file);
  check_nothing_else_is_targeted(config, config_file);
  const TensorFiles tensors = open_tensors(folder);
  const fs::path plain = fs::absolute(folder).lexically_normal();
  auto adapter = std::make_shared<LoraWeights>(
      (plain.has_filename() ? plain : plain.parent_path()).filename().string(), model.layers);
  std::set<std::string> used;
  for (int layer = 0; layer < model.layers; ++layer) {
    for (std::size_t i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      const std::string module = hf_module(layer, which);
      if (!config.targets(module)) continue;
      const LinearShape shape = linear_shape(model, kLinearLayerNames[i]);
      adapter->set(layer, which, take_matrices(tensors, config, module, shape));
      used.insert({tensor_name(module, "A"), tensor_name(module, "B")});
    }
  }
  for (const auto& [name, entry] : tensors.entries()) {
    if (used.count(name) > 0) continue;
    throw SpecError(tensors.path() + ": tensor '" + name +
                    "' is not used: " + reason_of_extra(name, model));
  }
  if (used.empty()) {
    throw SpecError(config_file + ": 'target_modules' match no linear layer of the model");
  }
  return adapter;
}

void save_peft_adapter(const LoraWeights& adapter, const ModelConfig& model,
                       const std::string& folder) {
  ConfigWriter config(model);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (int layer = 0; layer < adapter.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const LoraMatrices* m = adapter.find(layer, static_cast<LinearLayer>(i));
      if (m == nullptr) continue;
      const std::string module = hf_module(layer, static_cast<LinearLayer>(i));
      config.add(module, m->rank, m->scale);
      tensors.emplace_back(tensor_name(module, "A"), m->a);
      tensors.emplace_back(tensor_name(module, "B"), m->b);
    }
  }
  const fs::path place = fs::absolute(folder).lexically_normal();
  const fs::path target = place.has_filename() ? place : place.parent_path();
  const fs::path temporary = target.string() + "." + std::to_string(::getpid()) + ".servelab-tmp";
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) throw SpecError(folder + ": cannot be made: " + error.message());
  try {
    write_file(temporary / kWeightsFile, safetensors_bytes(tensors));
    write_file(temporary / kConfigFile, config.text(adapter.layers()));
    fs::rename(temporary, target, error);
    if (error) {
      throw SpecError(folder + ": cannot be written: " + error.message() +
                      "; choose a folder that does not exist yet");
    }
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

}  // namespace servelab

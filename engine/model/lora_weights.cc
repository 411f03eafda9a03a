#include "engine/model/lora_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/check.h"
#include "engine/model/random_tensor.h"

namespace servelab {

void LoraWeights::set(int layer, LinearLayer which, LoraMatrices matrices) {
  SL_CHECK(layer >= 0 && layer < layers_, "an adapter's layer is one of its model's");
  SL_CHECK(
      matrices.rank > 0 && matrices.a.rows == matrices.rank && matrices.b.columns == matrices.rank,
      "A is [rank, in] and B is [out, rank]");
  matrices_[static_cast<std::size_t>(layer * kLinearLayers) + static_cast<std::size_t>(which)] =
      std::move(matrices);
  rank_ = 0;
  for (const LoraMatrices& each : matrices_) rank_ = std::max(rank_, each.rank);
}

std::vector<LinearLayer> LoraWeights::targets() const {
  std::vector<LinearLayer> targets;
  for (int i = 0; i < kLinearLayers; ++i) {
    const auto which = static_cast<LinearLayer>(i);
    bool used = false;
    for (int layer = 0; layer < layers_; ++layer) used = used || find(layer, which) != nullptr;
    if (used) targets.push_back(which);
  }
  return targets;
}

std::shared_ptr<const LoraWeights> random_adapter(const ModelConfig& model, const std::string& name,
                                                  int rank, const std::vector<std::string>& targets,
                                                  std::uint64_t seed) {
  if (rank < 1) throw SpecError("adapter '" + name + "': the rank must be at least 1");
  for (const std::string& target : targets) linear_shape(model, target);  // knows the name
  auto adapter = std::make_shared<LoraWeights>(name, model.layers);
  for (int layer = 0; layer < model.layers; ++layer) {
    for (std::size_t i = 0; i < kLinearLayers; ++i) {
      const char* target = kLinearLayerNames[i];
      if (std::find(targets.begin(), targets.end(), target) == targets.end()) continue;
      const LinearShape shape = linear_shape(model, target);
      const auto key = [&](std::uint64_t part) {
        return random_key({seed, static_cast<std::uint64_t>(layer), i, part});
      };
      // A keeps the size of its input's elements; B makes the result a quarter of what weights of
      // standard deviation 0.02 add. A uniform value's deviation is its bound / sqrt(3).
      const double root3 = std::sqrt(3.0);
      const double b = 0.25 * 0.02 * std::sqrt(static_cast<double>(shape.in) / rank);
      LoraMatrices matrices;
      matrices.rank = rank;
      matrices.scale = 1;
      matrices.a = random_uniform(rank, shape.in, root3 / std::sqrt(shape.in), key(0));
      matrices.b = random_uniform(shape.out, rank, root3 * b, key(1));
      adapter->set(layer, static_cast<LinearLayer>(i), std::move(matrices));
    }
  }
  return adapter;
}

}  // namespace servelab

#include "engine/backend/device/rope_table.h"

#include <cmath>
#include <numbers>

namespace servelab {
namespace {

float stretched(float frequency, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.type == "linear") return frequency / factor;
  if (scaling.type != "llama3") return frequency;
  const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
  const double original = scaling.original_max_position;
  const float slow = frequency / factor;
  if (wavelength > static_cast<float>(original / scaling.low_freq_factor)) return slow;
  if (wavelength < static_cast<float>(original / scaling.high_freq_factor)) return frequency;
  const float blend = (1 / wavelength * static_cast<float>(original) -
                       static_cast<float>(scaling.low_freq_factor)) /
                      static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / factor + blend * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& model) {
  std::vector<float> frequencies;
  const auto theta = static_cast<float>(model.rope_theta);
  for (int i = 0; i < model.head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(model.head_dim);
    const auto power = static_cast<float>(std::pow(double{theta}, double{exponent}));
    frequencies.push_back(stretched(1 / power, model.rope_scaling));
  }
  return frequencies;
}

RopeTable::RopeTable(const ModelConfig& model) {
  const std::vector<float> frequencies = rope_frequencies(model);
  const auto size = static_cast<std::size_t>(model.max_context_tokens) * frequencies.size();
  cos.reserve(size);
  sin.reserve(size);
  for (int position = 0; position < model.max_context_tokens; ++position) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace servelab

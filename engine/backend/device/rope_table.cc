#include "engine/backend/device/rope_table.h"

#include <cmath>
#include <numbers>

namespace servelab {
namespace {

double stretched(double frequency, const RopeScaling& scaling) {
  if (scaling.type == "linear") return frequency / scaling.factor;
  if (scaling.type != "llama3") return frequency;
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = scaling.original_max_position;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (original / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

// Frequencies and angles are rounded to f32 where Hugging Face rounds them: at long positions that
// rounding is larger than the tolerance of a comparison.
RopeTable::RopeTable(const ModelConfig& model) {
  const int half = model.head_dim / 2;
  std::vector<float> frequencies;
  for (int i = 0; i < half; ++i) {
    const double plain = std::pow(model.rope_theta, -2.0 * i / model.head_dim);
    frequencies.push_back(static_cast<float>(stretched(plain, model.rope_scaling)));
  }
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

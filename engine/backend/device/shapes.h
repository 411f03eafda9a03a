// Shapes that follow from a model: its fused matrices, and where each linear layer lies in them, in
// all engines alike.
#ifndef SERVELAB_BACKEND_DEVICE_SHAPES_H_
#define SERVELAB_BACKEND_DEVICE_SHAPES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model/model_config.h"
#include "engine/model/weights.h"

namespace servelab {

// The matrices of a layer as they are multiplied: q, k, v in one, gate and up in one.
enum class Fused : std::uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr std::size_t kFusedMatrices = 4;
inline constexpr std::array kAllFused = {Fused::kQkv, Fused::kO, Fused::kGateUp, Fused::kDown};

struct FusedShape {
  int n = 0;  // outputs: rows of the matrix
  int k = 0;  // inputs
};

struct Shapes {
  explicit Shapes(const ModelConfig& model);

  FusedShape fused(Fused which) const { return all[static_cast<std::size_t>(which)]; }

  int hidden, heads, kv_heads, head_dim, ffn, vocab, layers;
  int q, kv, qkv;  // columns
  std::array<FusedShape, kFusedMatrices> all;
};

// The linear layers in a fused matrix, in order.
std::span<const LinearLayer> members(Fused which);
Fused matrix_of(LinearLayer which);
// The first of its rows in the fused matrix, and how many.
struct FusedPlace {
  int begin = 0;
  int rows = 0;
};
FusedPlace place_of(const Shapes& shapes, LinearLayer which);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_SHAPES_H_

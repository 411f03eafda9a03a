#include "engine/backend/device/shapes.h"

namespace servelab {
namespace {

constexpr std::array kQkvMembers = {LinearLayer::kQ, LinearLayer::kK, LinearLayer::kV};
constexpr std::array kOMembers = {LinearLayer::kO};
constexpr std::array kGateUpMembers = {LinearLayer::kGate, LinearLayer::kUp};
constexpr std::array kDownMembers = {LinearLayer::kDown};

}  // namespace

Shapes::Shapes(const ModelConfig& model)
    : hidden(model.hidden),
      heads(model.heads),
      kv_heads(model.kv_heads),
      head_dim(model.head_dim),
      ffn(model.ffn),
      vocab(model.vocab),
      layers(model.layers),
      q(model.heads * model.head_dim),
      kv(model.kv_heads * model.head_dim),
      qkv(q + 2 * kv),
      all{FusedShape{qkv, hidden}, FusedShape{hidden, q}, FusedShape{2 * ffn, hidden},
          FusedShape{hidden, ffn}} {}

std::span<const LinearLayer> members(Fused which) {
  switch (which) {
    case Fused::kQkv:
      return kQkvMembers;
    case Fused::kO:
      return kOMembers;
    case Fused::kGateUp:
      return kGateUpMembers;
    case Fused::kDown:
      return kDownMembers;
  }
  return {};
}

Fused matrix_of(LinearLayer which) {
  switch (which) {
    case LinearLayer::kQ:
    case LinearLayer::kK:
    case LinearLayer::kV:
      return Fused::kQkv;
    case LinearLayer::kO:
      return Fused::kO;
    case LinearLayer::kGate:
    case LinearLayer::kUp:
      return Fused::kGateUp;
    case LinearLayer::kDown:
      return Fused::kDown;
  }
  return Fused::kQkv;
}

FusedPlace place_of(const Shapes& shapes, LinearLayer which) {
  switch (which) {
    case LinearLayer::kQ:
      return {0, shapes.q};
    case LinearLayer::kK:
      return {shapes.q, shapes.kv};
    case LinearLayer::kV:
      return {shapes.q + shapes.kv, shapes.kv};
    case LinearLayer::kGate:
      return {0, shapes.ffn};
    case LinearLayer::kUp:
      return {shapes.ffn, shapes.ffn};
    case LinearLayer::kO:
    case LinearLayer::kDown:
      return {0, shapes.hidden};
  }
  return {};
}

}  // namespace servelab

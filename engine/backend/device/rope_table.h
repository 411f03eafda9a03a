// Rotary position embedding: the angles of every position, with the scaling that a model asks for.
#ifndef SERVELAB_BACKEND_DEVICE_ROPE_TABLE_H_
#define SERVELAB_BACKEND_DEVICE_ROPE_TABLE_H_

#include <vector>

#include "engine/model/model_config.h"

namespace servelab {

// [head_dim / 2], radians per position. Rounded to f32 after every operation, in the order of
// transformers' modeling_rope_utils: the angle at position p has p times the difference.
std::vector<float> rope_frequencies(const ModelConfig& model);

struct RopeTable {
  explicit RopeTable(const ModelConfig& model);
  // [max_context_tokens][head_dim / 2]
  std::vector<float> cos;
  std::vector<float> sin;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_ROPE_TABLE_H_

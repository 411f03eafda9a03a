// A model's weights on the device.
#ifndef SERVELAB_BACKEND_CUDA_DEVICE_WEIGHTS_H_
#define SERVELAB_BACKEND_CUDA_DEVICE_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <vector>

#include "engine/backend/cuda/memory_plan.h"
#include "engine/backend/cuda/runtime.h"
#include "engine/backend/device/shapes.h"
#include "engine/model/shard.h"
#include "kernels/dtype.h"

namespace servelab::cuda {

using Matrices = std::array<void*, kFusedMatrices>;  // [n, k] row-major each, by Fused

struct LayerWeights {
  Matrices base = {};
  const float* attention_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* qkv_bias = nullptr;  // null without bias
};

struct DeviceWeights {
  // What it takes, as add()ed to a plan.
  static void plan(const ModelConfig& model, ShardRange head, kernels::DType type,
                   MemoryPlan* plan);

  // Copies the weights, or has the device generate those that are random. `head`: the tokens of
  // the LM head's rows.
  DeviceWeights(const ModelConfig& model, const ModelWeights& weights, ShardRange head,
                kernels::DType type, Arena* arena, PinnedPool* pinned, cudaStream_t stream);

  std::vector<LayerWeights> layers;
  const void* embedding = nullptr;  // [vocab, hidden]
  const void* lm_head = nullptr;    // [head.count, hidden]; rows of the embedding when tied
  const float* final_norm = nullptr;
  const float* cos = nullptr;  // [max_context_tokens][head_dim / 2]
  const float* sin = nullptr;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_DEVICE_WEIGHTS_H_

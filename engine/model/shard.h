// Tensor parallelism as in Megatron-LM (Shoeybi et al., 2019): which part of a model's weights and
// of its adapters each rank holds.
//
// q, k, v, gate and up are split by outputs, so that a rank's heads and its part of the FFN need no
// other rank; o and down by inputs, so that the sum of all ranks' outputs is the layer's output.
// The LM head is split by the vocabulary; embedding and norms are on every rank. An adapter follows
// its layer: beside outputs that are split, A is whole and B split; beside inputs that are split, A
// is split and B whole, and since B is linear the sum over ranks carries the adapter's share too.
#ifndef SERVELAB_MODEL_SHARD_H_
#define SERVELAB_MODEL_SHARD_H_

#include <memory>

#include "engine/model/lora_weights.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"

namespace servelab {

struct Shard {
  int rank = 0;
  int ranks = 1;
};

// Rows [begin, begin + rows) of a matrix's outputs or inputs.
struct ShardRange {
  int begin = 0;
  int count = 0;
};

bool splits_outputs(LinearLayer which);

// What a rank computes: its heads, KV heads and FFN columns. Everything else is the model's,
// `vocab` too (the embedding's). Where there are fewer KV heads than ranks, neighbouring ranks hold
// the same one. Throws SpecError when the model cannot be split so.
ModelConfig shard_model(const ModelConfig& model, Shard shard);

// The outputs (splits_outputs) or inputs of a layer that a rank holds, in the whole layer's
// numbers.
ShardRange shard_range(const ModelConfig& model, LinearLayer which, Shard shard);
// The part of the vocabulary whose logits a rank computes.
ShardRange vocab_range(const ModelConfig& model, Shard shard);

// One rank's weights, with the shapes of shard_model(); kLmHead has vocab_range().count rows.
// `weights` outlives it.
std::unique_ptr<ModelWeights> shard_weights(const ModelConfig& model, const ModelWeights& weights,
                                            Shard shard);

// One rank's part of an adapter. What is not split shares the adapter's memory.
std::shared_ptr<const LoraWeights> shard_adapter(const ModelConfig& model,
                                                 const LoraWeights& adapter, Shard shard);

}  // namespace servelab

#endif  // SERVELAB_MODEL_SHARD_H_

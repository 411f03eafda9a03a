// One rank's part of an adapter on its way to the rank. Adapters go by content, because where they
// come from (a folder of this machine, a generator, a registry that changes) is rank 0's affair
// alone: what the others get is what it has, and they check that by digest.
#ifndef SERVELAB_BACKEND_RANKS_ADAPTER_CONTENT_H_
#define SERVELAB_BACKEND_RANKS_ADAPTER_CONTENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/backend/ranks/socket.h"
#include "engine/backend/ranks/wire.h"
#include "engine/model/lora_weights.h"
#include "engine/model/model_config.h"

namespace servelab::ranks {

// Of shapes and values; the same on both sides. Not cryptographic: it guards against mistakes.
std::uint64_t content_digest(const LoraWeights& weights);

// As frames of Message::kContent.
void send_content(const LoraWeights& weights, Connection* connection, Deadline deadline);

// The shapes alone: what the first frame holds. Throws SpecError for those that are not an adapter
// of `model` (shard_model()'s).
struct ContentShape {
  struct Matrix {
    int layer = 0;
    LinearLayer which{};
    LoraMatrices matrices;  // without data
  };
  int layers = 0;
  std::vector<Matrix> matrices;
  std::size_t bytes = 0;  // of all tensors, each filled up to kTensorGrain
};
inline constexpr std::size_t kTensorGrain = 16;
ContentShape decode_shape(std::span<const std::byte> message, const ModelConfig& model);

// Throws GroupError where the content is not of that digest.
std::shared_ptr<const LoraWeights> receive_content(Connection* connection, const ModelConfig& model,
                                                   const std::string& name, std::uint64_t digest,
                                                   Deadline deadline);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_ADAPTER_CONTENT_H_

// Whether a replica has room for a request that is being routed.
#ifndef SERVELAB_BASELINES_SHARED_ROOM_H_
#define SERVELAB_BASELINES_SHARED_ROOM_H_

#include "engine/serve/view.h"

namespace servelab {

// Free KV blocks now for its prompt and the first token.
inline bool has_kv_for(const ReplicaView& replica, const RoutedRequest& request) {
  return replica.kv().free_blocks() >= replica.blocks_for(request.model, request.prompt_tokens + 1);
}

// Fewer unfinished requests than a step takes.
inline bool has_batch_slot(const ReplicaView& replica) {
  return replica.unfinished() < static_cast<std::size_t>(replica.limits().max_batch);
}

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_ROOM_H_

// A replica of which each rank is a process of its own.
#ifndef SERVELAB_BACKEND_RANKS_RANK_REPLICA_H_
#define SERVELAB_BACKEND_RANKS_RANK_REPLICA_H_

#include <memory>
#include <string>

#include "engine/backend/device/accelerator.h"
#include "engine/backend/ranks/rank_group.h"

namespace servelab::ranks {

// The processes from `first` on, plan.ranks of them, as one replica; process 0 is this one, on
// plan.device. `model_digest` is how the others know the model. SpecError where a rank lacks the
// model or the device cannot hold the plan; the group has failed where the ranks cannot meet.
std::unique_ptr<Device> make_rank_replica(const Accelerator& accelerator, RankGroup* group,
                                          int first, const ModelConfig& model,
                                          const std::string& model_digest,
                                          const ModelWeights& weights, const DevicePlan& plan);

// The device of a process that is the `local_rank`th of its machine's: that one of them, or the
// only one, where the launcher shows each process its own. SpecError where there is none for it.
int rank_device(const Accelerator& accelerator, int rank, int local_rank);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_RANK_REPLICA_H_

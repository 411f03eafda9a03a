// Placement of adapters by burst tolerance (dLoRA 5.1, after SHEPHERD): an adapter's tolerance is
// its peak capacity over its average load, and its peak capacity the memory that is left for
// requests on the replicas that hold it.
#ifndef SERVELAB_BASELINES_SHARED_BURST_TOLERANCE_H_
#define SERVELAB_BASELINES_SHARED_BURST_TOLERANCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/ids.h"
#include "engine/serve/policy.h"

namespace servelab {

// Adapters to hold, by replica.
using Placement = std::vector<std::vector<AdapterId>>;

// Plain numbers, in blocks of a replica's memory; every replica is alike.
struct PlacementProblem {
  std::vector<double> load;                  // [adapters] average load; 0: never preloaded
  std::vector<std::int64_t> adapter_blocks;  // [adapters] memory that a copy takes from requests
  std::size_t replicas = 1;
  std::int64_t replica_blocks = 0;    // of requests and adapters together
  std::int64_t preload_blocks = 0;    // of those, what adapters may take before the run
  std::int64_t preload_adapters = 0;  // how many a replica may hold
};

// The problem of a cluster's equal replicas: loads are the long-term shares. `preload_share` of
// each replica's memory, or of its slots all, may be preloaded.
PlacementProblem placement_problem(const DeploymentView& view, double preload_share);

// Those replicas, with what `placement` says held before the first request.
Deployment deploy_placed(const DeploymentView& view, const Placement& placement);

// Greedy: the adapter with the lowest tolerance (the highest load among those without a copy, whose
// tolerance is 0) goes to the replica without it that has the most memory left, then the least
// load, until the lowest tolerance would fall or nothing fits. Every adapter gets a copy first,
// while there is room.
Placement place_by_burst_tolerance(const PlacementProblem& problem);

// As dLoRA's artifact starts: loads count as equal, so that every adapter has one copy, dealt out
// in turn, and greedy adds none. Then it forces replicas - 1 more copies: of one adapter, `first`,
// which is then on every replica (a slot that migration may fill with another one), or of adapters
// in turn from `first` on.
enum class ArtifactCopies { kOneAdapterEverywhere, kInTurn };
Placement place_as_artifact(const PlacementProblem& problem, ArtifactCopies copies,
                            std::size_t first = 0);

// The lowest tolerance of a placement, in blocks per unit of load; infinite without any load.
double lowest_tolerance(const PlacementProblem& problem, const Placement& placement);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_BURST_TOLERANCE_H_

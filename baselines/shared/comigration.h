// dLoRA's reactive mechanism (OSDI '24, 5.2): when a replica is overloaded, a program decides which
// requests move, with which adapters, between the most and the least loaded replicas.
#ifndef SERVELAB_BASELINES_SHARED_COMIGRATION_H_
#define SERVELAB_BASELINES_SHARED_COMIGRATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "baselines/shared/migration_ilp.h"
#include "engine/serve/policy.h"

namespace servelab {

struct ComigrationParams {
  double interval_s = 10;
  double memory_threshold = 0.9;
  double queue_threshold_s = 1;
  int pairs = 4;
  double eta_s = 0.1;
  double link_gib_per_s = 32;
  int max_nodes = 10;
  std::int64_t max_iterations = 100'000;

  void fields(ParamFields& f);
};

// A replica as the trigger sees it.
struct ReplicaLoad {
  std::size_t replica = 0;
  double pending_s = 0;       // estimated time for the requests that it has
  double longest_wait_s = 0;  // of the requests that wait there
  double memory_used = 0;     // share of its pool
};

// The `pairs` most loaded of the overloaded replicas and the `pairs` least loaded of those below
// the average, in order of replica; empty when either side is. A replica is overloaded when more of
// its memory is in use than the threshold, or when its work is above the average and a request
// there has waited longer than the threshold.
struct Selection {
  std::vector<std::size_t> overloaded, underloaded;
};
Selection select_replicas(std::vector<ReplicaLoad> loads, const ComigrationParams& params);

// A program's data, taken from what a cluster policy sees, and its answer as migrations.
class ComigrationBuilder {
 public:
  using ExecSeconds = std::function<double(AdapterId)>;

  void begin(const ClusterView& view);  // outlives the answer
  MigrationProblem& problem() { return problem_; }

  // A replica with its unfinished requests; `exec_s` gives an adapter's L_i.
  void add_replica(std::size_t replica, bool may_send, bool may_receive, const ExecSeconds& exec_s);
  // The adapters that belong to the replica that was added last.
  void set_resident(const std::vector<AdapterId>& adapters);

  Rebalance answer(const MigrationSolution& solution) const;

 private:
  void add_request(const ReplicaView& replica, RequestId id, const ExecSeconds& exec_s);
  int index_of(AdapterId id);

  const ClusterView* view_ = nullptr;
  MigrationProblem problem_;
  std::vector<RequestId> requests_;  // of problem_.requests
  std::vector<ReplicaId> replicas_;  // of problem_.replicas
  std::vector<AdapterId> adapters_;  // of problem_.adapters
  std::vector<int> adapter_index_;   // by AdapterId; -1: not in the problem
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_COMIGRATION_H_

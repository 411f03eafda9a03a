#include "baselines/shared/comigration.h"

#include <algorithm>
#include <utility>

namespace servelab {
namespace {

// A request's KV, with the tokens that it will compute next.
double held_bytes(const ReplicaView& replica, const RequestView& r) {
  return static_cast<double>(replica.blocks_for(r.model(), r.context() + r.pending())) *
         static_cast<double>(replica.block_bytes());
}

// Recomputing what a migrated request had in its KV cache, as a step of its own.
double recompute_seconds(const ReplicaView& replica, const RequestView& r) {
  if (r.context() == 0) return 0;
  BatchShape shape;
  shape.add_slice(r.context(), 0, false);
  return to_seconds(replica.cost().step(shape, Exec::kMerged, LoraKernel::kEinsum).total());
}

}  // namespace

void ComigrationParams::fields(ParamFields& f) {
  f.add("interval_s", &interval_s, "how often the monitor looks at the replicas").range(1e-3, 1e6);
  f.add("memory_threshold", &memory_threshold, "overloaded: more of the pool is in use")
      .range(0, 1);
  f.add("queue_threshold_s", &queue_threshold_s,
        "overloaded: a request has waited longer, where there is more work than on average (ours; "
        "the artifact compares numbers of requests)")
      .range(0, 1e6);
  f.add("pairs", &pairs,
        "K: migration is between the K most and the K least loaded replicas (ours: what is solved "
        "within milliseconds; the artifact's is 1)")
      .range(1, 1000);
  f.add("eta_s", &eta_s, "affinity: cost of each adapter on a replica").range(0, 1e6);
  f.add("link_gib_per_s", &link_gib_per_s,
        "B: host-to-device bandwidth that swapping is charged at")
      .range(1e-3, 1e6);
  f.add("max_nodes", &max_nodes, "limit of the solver's branch and bound").range(1, 1e9);
  f.add("max_iterations", &max_iterations, "limit of the solver's simplex method").range(1, 1e12);
}

Selection select_replicas(std::vector<ReplicaLoad> loads, const ComigrationParams& params) {
  double mean_s = 0;
  for (const ReplicaLoad& load : loads) {
    mean_s += load.pending_s / static_cast<double>(loads.size());
  }
  std::stable_sort(loads.begin(), loads.end(), [](const ReplicaLoad& a, const ReplicaLoad& b) {
    return a.pending_s > b.pending_s;
  });
  const auto is_full = [&](const ReplicaLoad& load) {
    return load.memory_used > params.memory_threshold;
  };
  const auto most = static_cast<std::size_t>(params.pairs);
  Selection selection;
  for (const ReplicaLoad& load : loads) {
    const bool queues = load.pending_s > mean_s && load.longest_wait_s > params.queue_threshold_s;
    if ((queues || is_full(load)) && selection.overloaded.size() < most) {
      selection.overloaded.push_back(load.replica);
    }
  }
  std::reverse(loads.begin(), loads.end());
  for (const ReplicaLoad& load : loads) {
    const bool has_room = load.pending_s <= mean_s && !is_full(load);
    if (has_room && selection.underloaded.size() < most) {
      selection.underloaded.push_back(load.replica);
    }
  }
  if (selection.overloaded.empty() || selection.underloaded.empty()) return {};
  std::sort(selection.overloaded.begin(), selection.overloaded.end());
  std::sort(selection.underloaded.begin(), selection.underloaded.end());
  return selection;
}

void ComigrationBuilder::begin(const ClusterView& view) {
  view_ = &view;
  problem_ = MigrationProblem{};
  requests_.clear();
  replicas_.clear();
  adapters_.clear();
  adapter_index_.assign(view.adapter_table().size(), -1);
}

void ComigrationBuilder::add_replica(std::size_t replica, bool may_send, bool may_receive,
                                     const ExecSeconds& exec_s) {
  const ReplicaView& from = *view_->replicas()[replica];
  MigrationReplica one;
  one.device_bytes = static_cast<double>(from.kv().total_blocks() * from.block_bytes());
  one.may_send = may_send;
  one.may_receive = may_receive;
  problem_.replicas.push_back(one);
  replicas_.push_back(from.id());
  for (const auto& queue : {from.running(), from.swapped(), from.waiting()}) {
    for (const RequestId id : queue) add_request(from, id, exec_s);
  }
}

void ComigrationBuilder::add_request(const ReplicaView& replica, RequestId id,
                                     const ExecSeconds& exec_s) {
  const RequestView& r = replica.request(id);
  MigrationRequest request;
  request.adapter = index_of(r.adapter());
  request.home = static_cast<int>(replicas_.size()) - 1;
  request.exec_s = exec_s(r.adapter());
  request.move_s = to_seconds(view_->migration_delay()) + recompute_seconds(replica, r);
  request.bytes = held_bytes(replica, r);
  problem_.requests.push_back(request);
  requests_.push_back(id);
}

void ComigrationBuilder::set_resident(const std::vector<AdapterId>& adapters) {
  for (const AdapterId id : adapters) problem_.replicas.back().resident.push_back(index_of(id));
}

int ComigrationBuilder::index_of(AdapterId id) {
  if (id == kBaseModel) return MigrationRequest::kBase;
  int& at = adapter_index_[index(id)];
  if (at < 0) {
    at = static_cast<int>(adapters_.size());
    adapters_.push_back(id);
    problem_.adapters.push_back({static_cast<double>(view_->adapter_table()[index(id)].bytes)});
  }
  return at;
}

Rebalance ComigrationBuilder::answer(const MigrationSolution& solution) const {
  Rebalance decision;
  decision.decision_time = from_seconds(solving_seconds(solution));
  // A solver stopped by its limits that found nothing better than staying has not decided.
  const bool solved = solution.status == MipStatus::kOptimal ||
                      (solution.status == MipStatus::kFeasible && solution.moves);
  decision.outcome = solved ? Rebalance::Outcome::kDecided : Rebalance::Outcome::kFailed;
  if (!solved || !solution.moves) return decision;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const MigrationRequest& request = problem_.requests[i];
    if (solution.replica_of[i] == request.home) continue;
    const ReplicaId to = replicas_[static_cast<std::size_t>(solution.replica_of[i])];
    decision.migrations.push_back({requests_[i], to});
    if (request.adapter == MigrationRequest::kBase) continue;
    const AdapterId adapter = adapters_[static_cast<std::size_t>(request.adapter)];
    const bool planned = std::any_of(
        decision.loads.begin(), decision.loads.end(),
        [&](const AdapterCopy& other) { return other.adapter == adapter && other.to == to; });
    if (!planned && view_->replica(to).adapters().residency(adapter) == Residency::kAbsent) {
      decision.loads.push_back({adapter, to});
    }
  }
  return decision;
}

}  // namespace servelab

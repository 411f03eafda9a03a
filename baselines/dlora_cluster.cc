// dLoRA (OSDI '24) across replicas: adapters placed by burst tolerance and requests dispatched to
// the shortest estimated pending time (5.1), requests and adapters migrated together by an integer
// program (5.2). Three policies: all of it, its proactive half, and the paper's strawman RR (7.4).
// Constants that the paper leaves open come from its artifact, except those marked "ours".
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "baselines/shared/batches.h"
#include "baselines/shared/burst_tolerance.h"
#include "baselines/shared/comigration.h"
#include "baselines/shared/pending_time.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

void add_history_field(ParamFields& f, std::string* history) {
  f.add("history", history,
        "average loads that placement knows: the workload's long-term shares, or none, so that all "
        "adapters count as equal (as in the artifact)")
      .one_of({"long-term", "none"});
}

PlacementProblem problem_of(const DeploymentView& view, double preload_share,
                            const std::string& history) {
  PlacementProblem problem = placement_problem(view, preload_share);
  if (history == "none") {
    const auto n = static_cast<double>(problem.load.size());
    std::fill(problem.load.begin(), problem.load.end(), 1 / n);
  }
  return problem;
}

// The proactive mechanism.
class DloraProactive : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "dLoRA's placement and dispatch by pending time, without migration";
  }
  void fields(ParamFields& f) override {
    f.add("preload_share", &preload_share_,
          "share of a replica's memory that preloaded adapters may take (ours: burst tolerance "
          "stops by itself unless there are more adapters than memory)")
        .range(0, 1);
    add_history_field(f, &history_kind_);
    f.add("prior_exec_s", &prior_exec_s_, "execution time of a request before any has finished")
        .range(1e-6, 1e6);
  }

  Capabilities capabilities() const override { return {.places_adapters = true}; }
  Deployment deploy(const DeploymentView& view) override {
    return deploy_placed(view,
                         place_by_burst_tolerance(problem_of(view, preload_share_, history_kind_)));
  }
  void begin(const ClusterView& view) override {
    history_.open(view.adapter_table().size(), prior_exec_s_);
    merged_ratio_ = merged_speed_ratio(*view.replicas().front(), LoraKernel::kEinsum);
  }

  // The shortest pending time: loading the adapter, if it is not there, and the queue.
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    ReplicaId best{};
    double shortest = 0;
    for (const ReplicaView* replica : view.replicas()) {
      const double pending = load_seconds(*replica, request.adapter) +
                             queueing_seconds(*replica, history_, merged_ratio_);
      if (replica != view.replicas().front() && pending >= shortest) continue;
      shortest = pending;
      best = replica->id();
    }
    return best;
  }
  bool loads_on_dispatch() const override { return true; }

  void on_finished(const FinishedRequest& request) override {
    history_.add(request.adapter, to_seconds(request.execution));
  }

 protected:
  ExecutionHistory history_;
  double merged_ratio_ = 1;

 private:
  double preload_share_ = 0.5;
  std::string history_kind_ = "long-term";
  double prior_exec_s_ = 5;
};

class Dlora final : public DloraProactive {
 public:
  std::string summary() const override {
    return "dLoRA's placement, dispatch by pending time, and co-migration by an integer program";
  }
  void fields(ParamFields& f) override {
    DloraProactive::fields(f);
    params_.fields(f);
  }
  TimeNs rebalance_every() const override { return from_seconds(params_.interval_s); }

  Rebalance rebalance(const ClusterView& view) override {
    std::vector<ReplicaLoad> loads;
    for (const ReplicaView* replica : view.replicas()) {
      ReplicaLoad load;
      load.replica = loads.size();
      load.pending_s = queueing_seconds(*replica, history_, merged_ratio_);
      if (!replica->waiting().empty()) {
        load.longest_wait_s = to_seconds(replica->waited(replica->waiting().front()));
      }
      load.memory_used = static_cast<double>(replica->kv().used_blocks()) /
                         static_cast<double>(replica->kv().total_blocks());
      loads.push_back(load);
    }
    const Selection selection = select_replicas(std::move(loads), params_);
    if (selection.overloaded.empty()) return {};
    builder_.begin(view);
    builder_.problem().eta_s = params_.eta_s;
    builder_.problem().link_bytes_per_s = params_.link_gib_per_s * static_cast<double>(kGiB);
    const auto exec_s = [this](AdapterId id) { return history_.seconds(id); };
    for (const std::size_t j : selection.overloaded) builder_.add_replica(j, true, false, exec_s);
    for (const std::size_t j : selection.underloaded) builder_.add_replica(j, false, true, exec_s);
    MigrationOptions options;
    options.mip.max_nodes = params_.max_nodes;
    options.mip.max_iterations = params_.max_iterations;
    return builder_.answer(solve_migration(builder_.problem(), options));
  }

 private:
  ComigrationParams params_;
  ComigrationBuilder builder_;
};

// The paper's RR: adapters placed as above, each request to the next replica that holds its
// adapter.
class DloraRoundRobin final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "dLoRA's strawman: its placement, then round robin over the replicas with the adapter";
  }
  void fields(ParamFields& f) override {
    f.add("preload_share", &preload_share_,
          "share of a replica's memory that preloaded adapters may take")
        .range(0, 1);
    add_history_field(f, &history_kind_);
  }
  Capabilities capabilities() const override { return {.places_adapters = true}; }
  Deployment deploy(const DeploymentView& view) override {
    const Placement placement =
        place_by_burst_tolerance(problem_of(view, preload_share_, history_kind_));
    holders_.resize(view.adapter_table().size() + 1);  // the base model last
    for (std::size_t j = 0; j < placement.size(); ++j) {
      for (const AdapterId id : placement[j]) holders_[index(id)].replicas.push_back(j);
      holders_.back().replicas.push_back(j);
    }
    for (Holders& holders : holders_) {  // what has no copy is loaded where its turn comes
      if (holders.replicas.empty()) holders.replicas = holders_.back().replicas;
    }
    return deploy_placed(view, placement);
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& /*view*/) override {
    Holders& holders =
        request.adapter == kBaseModel ? holders_.back() : holders_[index(request.adapter)];
    return static_cast<ReplicaId>(holders.replicas[holders.next++ % holders.replicas.size()]);
  }

 private:
  struct Holders {
    std::vector<std::size_t> replicas;
    std::size_t next = 0;
  };
  double preload_share_ = 0.5;
  std::string history_kind_ = "long-term";
  std::vector<Holders> holders_;
};

}  // namespace
}  // namespace servelab

SERVELAB_CLUSTER_POLICY("dlora", Dlora)
SERVELAB_CLUSTER_POLICY("dlora-proactive", DloraProactive)
SERVELAB_CLUSTER_POLICY("dlora-rr", DloraRoundRobin)

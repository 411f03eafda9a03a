// dLoRA's cluster half as its public artifact has it, where that differs from the paper: replicas
// are compared by whole batches, adapters belong to replicas by a table of fixed capacity, a look
// every ten seconds pairs one overloaded replica with one other, and the program charges 0.05 s for
// a move, nothing for affinity, and keeps the table's capacity.
#include <algorithm>
#include <string>
#include <vector>

#include "baselines/shared/burst_tolerance.h"
#include "baselines/shared/comigration.h"
#include "baselines/shared/pending_time.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

struct ArtifactClusterParams {
  double prior_exec_s = 5;
  double merged_ratio = 0.6;
  double interval_s = 10;
  double memory_threshold = 0.9;
  int request_threshold = 16;
  double move_s = 0.05;
  double link_gib_per_s = 32;
  int max_nodes = 10;
  int everywhere = 0;
};

// Which adapters belong to which replicas.
class Holders {
 public:
  void open(const Placement& placement, std::size_t adapters) {
    held_ = placement;
    copies_.assign(adapters, 0);
    for (const auto& adapters_of : held_) {
      for (const AdapterId id : adapters_of) ++copies_[index(id)];
    }
  }
  const std::vector<AdapterId>& of(std::size_t replica) const { return held_[replica]; }
  int copies(AdapterId id) const { return copies_[index(id)]; }
  bool holds(std::size_t replica, AdapterId id) const {
    return std::find(held_[replica].begin(), held_[replica].end(), id) != held_[replica].end();
  }
  void add(std::size_t replica, AdapterId id) {
    held_[replica].push_back(id);
    ++copies_[index(id)];
  }
  void replace(std::size_t replica, AdapterId old, AdapterId id) {
    *std::find(held_[replica].begin(), held_[replica].end(), old) = id;
    --copies_[index(old)];
    ++copies_[index(id)];
  }

 private:
  Placement held_;
  std::vector<int> copies_;
};

// DISPATCH_ONLY, which the paper's figures call RR: the cheapest replica that holds the adapter.
class ArtifactDispatch : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "the artifact's RR: the replica with the adapter and the fewest whole batches";
  }
  void fields(ParamFields& f) override {
    f.add("merged_ratio", &params_.merged_ratio, "assumed time of a merged batch over a mixed one")
        .range(0.01, 10);
  }
  Capabilities capabilities() const override { return {.places_adapters = true}; }
  Deployment deploy(const DeploymentView& view) override {
    const Placement placement =
        place_as_artifact(placement_problem(view, 1.0), copies(), params_.everywhere);
    holders_.open(placement, view.adapter_table().size());
    return deploy_placed(view, placement);
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    if (request.adapter == kBaseModel) return cheapest(request.adapter, view);
    if (holders_.copies(request.adapter) == 0) {
      const auto emptiest = std::min_element(view.replicas().begin(), view.replicas().end(), fewer);
      holders_.add(index((*emptiest)->id()), request.adapter);
    }
    return cheapest(request.adapter, view);
  }
  bool loads_on_dispatch() const override { return true; }

 protected:
  virtual ArtifactCopies copies() const { return ArtifactCopies::kInTurn; }
  // An adapter on `replica` that may give way to another, or kBaseModel.
  virtual AdapterId substitute(const ReplicaView& /*replica*/) const { return kBaseModel; }
  static bool fewer(const ReplicaView* a, const ReplicaView* b) {
    return a->unfinished() < b->unfinished();
  }

  ArtifactClusterParams params_;
  Holders holders_;

 private:
  ReplicaId cheapest(AdapterId adapter, const ClusterView& view) {
    const ReplicaView* best = nullptr;
    AdapterId gives_way = kBaseModel;
    double lowest = 0;
    for (const bool holds : {true, false}) {  // those that hold it come first, as in the artifact
      for (const ReplicaView* replica : view.replicas()) {
        const bool here = adapter == kBaseModel || holders_.holds(index(replica->id()), adapter);
        if (here != holds) continue;
        const AdapterId old = here ? kBaseModel : substitute(*replica);
        if (!here && old == kBaseModel) continue;
        const double cost = whole_batches(*replica, params_.merged_ratio) +
                            (here ? 0 : load_seconds(*replica, adapter));
        if (best != nullptr && cost >= lowest) continue;
        best = replica;
        lowest = cost;
        gives_way = old;
      }
    }
    if (gives_way != kBaseModel) holders_.replace(index(best->id()), gives_way, adapter);
    return best->id();
  }
};

// DISPATCH_MIG, the figures' Proactive: an idle adapter that another replica has as well may give
// way to the request's. It asks each replica's process for its requests, one after the other, and
// blocks the loop that starts steps (engine_manager.py, ray.get); a process answers between steps.
// RR and dLoRA read counts that the last step's end has left.
class ArtifactProactive final : public ArtifactDispatch {
 public:
  std::string summary() const override {
    return "the artifact's Proactive: as its RR, or where an idle copy can give way to the adapter";
  }
  void fields(ParamFields& f) override {
    ArtifactDispatch::fields(f);
    f.add("blocks", &blocks_, "a request is routed between steps, of which none starts meanwhile");
  }
  bool routes_between_steps() const override { return blocks_; }

 protected:
  AdapterId substitute(const ReplicaView& replica) const override {
    for (const AdapterId id : holders_.of(index(replica.id()))) {
      if (replica.requests_of(id).count == 0 && holders_.copies(id) > 1) return id;
    }
    return kBaseModel;
  }

 private:
  bool blocks_ = true;
};

// PERIOD_MIG, the figures' dLoRA: dispatch as RR, and a program over one pair of replicas.
class ArtifactPeriodic final : public ArtifactDispatch {
 public:
  std::string summary() const override {
    return "the artifact's dLoRA: as its RR, with a program over one pair of replicas every 10 s";
  }
  void fields(ParamFields& f) override {
    ArtifactDispatch::fields(f);
    f.add("prior_exec_s", &params_.prior_exec_s, "execution time of an adapter not seen to finish")
        .range(1e-6, 1e6);
    f.add("interval_s", &params_.interval_s, "how often the replicas are looked at")
        .range(1e-3, 1e6);
    f.add("memory_threshold", &params_.memory_threshold, "overloaded: more KV blocks are wanted")
        .range(0, 1);
    f.add("request_threshold", &params_.request_threshold, "overloaded: requests above the average")
        .range(0, 1e6);
    f.add("move_s", &params_.move_s, "what the program charges for a move").range(0, 1e6);
    f.add("link_gib_per_s", &params_.link_gib_per_s, "host-to-device bandwidth of swapping")
        .range(1e-3, 1e6);
    f.add("max_nodes", &params_.max_nodes, "limit of the solver's branch and bound").range(1, 1e9);
    f.add("everywhere", &params_.everywhere,
          "the adapter, by its number, that every replica has at the start: the artifact draws it")
        .range(0, 1e9);
  }
  void begin(const ClusterView& view) override {
    history_.open(view.adapter_table().size(), params_.prior_exec_s);
  }
  void on_finished(const FinishedRequest& request) override {
    history_.add(request.adapter, to_seconds(request.execution));
  }
  TimeNs rebalance_every() const override { return from_seconds(params_.interval_s); }

  Rebalance rebalance(const ClusterView& view) override {
    const Selection pair = choose_pair(view);
    if (pair.overloaded.empty()) return {};
    builder_.begin(view);
    builder_.problem().link_bytes_per_s = params_.link_gib_per_s * static_cast<double>(kGiB);
    for (const std::size_t replica : {pair.overloaded.front(), pair.underloaded.front()}) {
      builder_.add_replica(replica, true, true,
                           [this](AdapterId id) { return history_.own_seconds(id); });
      builder_.set_resident(holders_.of(replica));
    }
    MigrationOptions options;
    options.form = MigrationForm::kArtifact;
    options.artifact_move_s = params_.move_s;
    options.mip.max_nodes = params_.max_nodes;
    const Rebalance decision = builder_.answer(solve_migration(builder_.problem(), options));
    const ReplicaView& a = *view.replicas()[pair.overloaded.front()];
    const ReplicaView& b = *view.replicas()[pair.underloaded.front()];
    for (const Migration& migration : decision.migrations) {
      const bool to_a = migration.to == a.id();
      const AdapterId adapter = (to_a ? b : a).request(migration.request).adapter();
      if (adapter != kBaseModel) take_over(to_a ? a : b, adapter);
    }
    return decision;
  }

 protected:
  ArtifactCopies copies() const override { return ArtifactCopies::kOneAdapterEverywhere; }

 private:
  // The fullest and the emptiest replica when memory runs out on the one and not on the other; else
  // the one with the most requests and the one with the fewest, when the gap is wide.
  Selection choose_pair(const ClusterView& view) const {
    const auto wanted = [](const ReplicaView* replica) {
      std::int64_t blocks = 0;
      for (const auto& queue : {replica->running(), replica->swapped(), replica->waiting()}) {
        for (const RequestId id : queue) {
          const RequestView& r = replica->request(id);
          blocks += replica->blocks_for(r.model(), r.context() + r.pending());
        }
      }
      return static_cast<double>(blocks) / static_cast<double>(replica->kv().total_blocks());
    };
    const auto of = [](const ReplicaView* replica) { return index(replica->id()); };
    const auto& all = view.replicas();
    const auto [emptiest, fullest] =
        std::minmax_element(all.begin(), all.end(),
                            [&](const auto* a, const auto* b) { return wanted(a) < wanted(b); });
    if (wanted(*fullest) >= params_.memory_threshold &&
        wanted(*emptiest) < params_.memory_threshold) {
      return {{of(*fullest)}, {of(*emptiest)}};
    }
    double average = 0;
    for (const ReplicaView* replica : all) {
      average += static_cast<double>(replica->unfinished()) / static_cast<double>(all.size());
    }
    const auto [least, most] = std::minmax_element(all.begin(), all.end(), fewer);
    const auto count = [](const ReplicaView* replica) {
      return static_cast<double>(replica->unfinished());
    };
    if (count(*most) - average < params_.request_threshold || count(*least) >= average) return {};
    return {{of(*most)}, {of(*least)}};
  }

  // A migrated request's adapter takes a place in its new replica's table: that of an adapter which
  // nobody there wants, and if possible of one that another replica has too.
  void take_over(const ReplicaView& replica, AdapterId id) {
    const std::size_t at = index(replica.id());
    if (holders_.holds(at, id)) return;
    AdapterId victim = kBaseModel;
    for (const AdapterId held : holders_.of(at)) {
      if (replica.requests_of(held).count > 0) continue;
      victim = held;
      if (holders_.copies(held) > 1) break;
    }
    if (victim != kBaseModel) {
      holders_.replace(at, victim, id);
    } else {
      holders_.add(at, id);  // every other one is wanted until this decision is carried out
    }
  }

  ExecutionHistory history_;
  ComigrationBuilder builder_;
};

}  // namespace
}  // namespace servelab

SERVELAB_CLUSTER_POLICY("dlora-artifact", ArtifactPeriodic)
SERVELAB_CLUSTER_POLICY("dlora-artifact-proactive", ArtifactProactive)
SERVELAB_CLUSTER_POLICY("dlora-artifact-dispatch", ArtifactDispatch)

// Routing policies that techniques name, and that a spec can cross with any technique
// (`cluster: {route: round-robin}`).
#include <algorithm>

#include "baselines/shared/room.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

class RoundRobin final : public ClusterPolicy {
 public:
  std::string summary() const override { return "each replica in turn"; }
  // The first in turn of those that may serve it.
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto candidates = view.candidates(request);
    const auto found = std::lower_bound(
        candidates.begin(), candidates.end(), next_,
        [](const ReplicaView* replica, std::size_t turn) { return index(replica->id()) < turn; });
    const ReplicaId to = (found != candidates.end() ? *found : candidates.front())->id();
    next_ = (index(to) + 1) % view.replicas().size();
    return to;
  }

 private:
  std::size_t next_ = 0;  // whose turn it is
};

// Each request brings its own draw, so that what others do moves no choice.
class RandomReplica final : public ClusterPolicy {
 public:
  std::string summary() const override { return "any replica, each as likely"; }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto candidates = view.candidates(request);
    const std::uint64_t count = candidates.size();
    return candidates[request.draw * count >> 32]->id();
  }
};

// Fewest unfinished requests; the lowest id among equals.
class LeastLoaded final : public ClusterPolicy {
 public:
  std::string summary() const override { return "the replica with the fewest unfinished requests"; }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    return view.least_loaded(request).id();
  }
};

// A static split: each adapter belongs to one replica, adapters dealt out evenly in id order; where
// there are several models and no adapters, each model.
class ByAdapter final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "a static split: each adapter belongs to one replica";
  }
  // Models that stay on the devices, or start there, are on those of their replica only.
  Deployment deploy(const DeploymentView& view) override {
    Deployment deployment = view.equal_replicas();
    const std::size_t models = view.models().size();
    const bool own = view.adapter_table().empty() &&
                     (view.engine().model_slots == 0 || view.engine().preloaded_models);
    for (std::size_t i = 0; own && models > 1 && i < deployment.units.size(); ++i) {
      Unit& unit = deployment.units[i];
      std::erase_if(unit.models, [&](const UnitModel& entry) {
        return index(entry.model) * deployment.units.size() / models != i;
      });
      unit.off = unit.models.empty();
      unit.model_slots = std::min(unit.model_slots, static_cast<int>(unit.models.size()));
    }
    return deployment;
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto candidates = view.candidates(request);
    const std::size_t replicas = candidates.size();
    const std::size_t models = view.models().size();
    std::size_t at = index(request.id) % replicas;
    if (view.adapter_table().empty() && models > 1) {
      at = index(request.model) * replicas / models;
    } else if (request.adapter != kBaseModel) {
      at = index(request.adapter) * replicas / view.adapter_table().size();
    }
    return candidates[at]->id();
  }
};

// Punica 5: the fullest replica that still has a batch slot and KV for the prompt, so that lightly
// loaded replicas drain; the least loaded when none has.
class FullestFit final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "the fullest replica with room for the prompt (Punica 5)";
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const ReplicaView* best = nullptr;
    const auto candidates = view.candidates(request);
    const ReplicaView* emptiest = candidates.front();
    for (const ReplicaView* replica : candidates) {
      if (replica->unfinished() < emptiest->unfinished()) emptiest = replica;
      const bool fits = has_batch_slot(*replica) && has_kv_for(*replica, request);
      if (fits && (best == nullptr || replica->unfinished() > best->unfinished())) best = replica;
    }
    return (best != nullptr ? best : emptiest)->id();
  }
};

// CaraServe 7.5's First-Fit: the first replica with fewer requests than a bound; the least loaded
// when all are full.
class FirstFit final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "the first replica with fewer requests than a bound (CaraServe 7.5)";
  }
  void fields(ParamFields& f) override {
    f.add("max_requests", &max_requests_, "unfinished requests of a full replica").range(1, 1e6);
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    for (const ReplicaView* replica : view.candidates(request)) {
      if (replica->unfinished() < static_cast<std::size_t>(max_requests_)) return replica->id();
    }
    return least_loaded_.route(request, view);
  }

 private:
  int max_requests_ = 32;  // as the paper's simulator
  LeastLoaded least_loaded_;
};

}  // namespace
}  // namespace servelab

SERVELAB_CLUSTER_POLICY("round-robin", RoundRobin)
SERVELAB_CLUSTER_POLICY("random", RandomReplica)
SERVELAB_CLUSTER_POLICY("least-loaded", LeastLoaded)
SERVELAB_CLUSTER_POLICY("by-adapter", ByAdapter)
SERVELAB_CLUSTER_POLICY("fullest-fit", FullestFit)
SERVELAB_CLUSTER_POLICY("first-fit", FirstFit)

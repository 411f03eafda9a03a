// Routing policies that techniques name, and that a spec can cross with any technique
// (`cluster: {route: round-robin}`).
#include <algorithm>

#include "engine/serve/policy.h"

namespace servelab {
namespace {

class RoundRobin final : public ClusterPolicy {
 public:
  std::string summary() const override { return "each replica in turn"; }
  ReplicaId route(const RoutedRequest& /*request*/, const ClusterView& view) override {
    return static_cast<ReplicaId>(next_++ % view.replicas().size());
  }

 private:
  std::size_t next_ = 0;
};

// Each request brings its own draw, so that what others do moves no choice.
class RandomReplica final : public ClusterPolicy {
 public:
  std::string summary() const override { return "any replica, each as likely"; }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const std::uint64_t replicas = view.replicas().size();
    return static_cast<ReplicaId>(request.draw * replicas >> 32);
  }
};

// Fewest unfinished requests; the lowest id among equals.
class LeastLoaded final : public ClusterPolicy {
 public:
  std::string summary() const override { return "the replica with the fewest unfinished requests"; }
  ReplicaId route(const RoutedRequest& /*request*/, const ClusterView& view) override {
    const auto best = std::min_element(view.replicas().begin(), view.replicas().end(),
                                       [](const ReplicaView* a, const ReplicaView* b) {
                                         return a->unfinished() < b->unfinished();
                                       });
    return (*best)->id();
  }
};

// A static split: each adapter belongs to one replica, adapters dealt out evenly in id order; where
// there are several models and no adapters, each model.
class ByAdapter final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "a static split: each adapter belongs to one replica";
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const std::size_t replicas = view.replicas().size();
    const std::size_t models = view.models().size();
    if (view.adapter_table().empty() && models > 1) {
      return static_cast<ReplicaId>(index(request.model) * replicas / models);
    }
    if (request.adapter == kBaseModel) return static_cast<ReplicaId>(index(request.id) % replicas);
    return static_cast<ReplicaId>(index(request.adapter) * replicas / view.adapter_table().size());
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
    const ReplicaView* emptiest = view.replicas().front();
    for (const ReplicaView* replica : view.replicas()) {
      if (replica->unfinished() < emptiest->unfinished()) emptiest = replica;
      const bool fits =
          replica->unfinished() < static_cast<std::size_t>(replica->limits().max_batch) &&
          replica->kv().free_blocks() >=
              replica->blocks_for(request.model, request.prompt_tokens + 1);
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
    for (const ReplicaView* replica : view.replicas()) {
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

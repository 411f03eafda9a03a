// Routing policies against their definition, worked out naively for each request.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr std::size_t kReplicas = 5;

// What a policy sees of the cluster, and what it did before.
struct Sight {
  RoutedRequest request;
  std::vector<std::size_t> unfinished;  // by replica
  std::vector<bool> has_room;           // for another batch slot, and for the prompt's KV
  std::size_t adapters = 0;
  std::size_t routed = 0;  // requests before
};
using Oracle = std::function<std::size_t(const Sight&)>;

// The policy of that name, each choice of which the oracle foresees.
class Watched final : public ClusterPolicy {
 public:
  Watched(const std::string& name, const std::string& params, Oracle oracle)
      : name_(name),
        policy_(Registry<ClusterPolicy>::instance().make(name)),
        oracle_(std::move(oracle)) {
    ParamFields fields;
    policy_->fields(fields);
    fields.bind(params.empty() ? ConfigNode{} : parse_yaml(params, "test"), "test");
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    Sight sight{request, {}, {}, view.adapter_table().size(), routed_++};
    for (const ReplicaView* replica : view.candidates(request)) {
      sight.unfinished.push_back(replica->unfinished());
      const int wanted = request.prompt_tokens + 1;  // tokens, in whole blocks
      const int block = replica->kv().block_tokens();
      sight.has_room.push_back(replica->unfinished() <
                                   static_cast<std::size_t>(replica->limits().max_batch) &&
                               (wanted + block - 1) / block <= replica->kv().free_blocks());
    }
    const ReplicaId to = policy_->route(request, view);
    EXPECT_EQ(index(to), oracle_(sight)) << name_ << ", request " << sight.routed;
    return to;
  }

 private:
  std::string name_;
  std::unique_ptr<ClusterPolicy> policy_;
  Oracle oracle_;
  std::size_t routed_ = 0;
};

// The first replica with the fewest.
std::size_t emptiest(const std::vector<std::size_t>& unfinished) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < unfinished.size(); ++i) {
    if (unfinished[i] < unfinished[best]) best = i;
  }
  return best;
}

void expect_choices(const std::string& name, const std::string& params, const Oracle& oracle) {
  for (const double rate : {200.0, 3000.0}) {  // mostly ties, and queues
    test::WorkloadShape shape;
    shape.requests = 400;
    shape.adapters = 13;
    shape.rate_per_s = rate;
    test::RunOptions options;
    options.engine = test::small_engine();
    options.replicas = kReplicas;
    options.cluster_policy = [&] { return std::make_unique<Watched>(name, params, oracle); };
    const Workload workload = test::make_workload(shape, 3);
    EXPECT_EQ(test::violation(workload, test::run(workload, options)), "");
  }
}

TEST(Routing, RoundRobinTakesEachInTurn) {
  expect_choices("round-robin", "", [](const Sight& s) { return s.routed % kReplicas; });
}

TEST(Routing, RandomIsTheRequestsOwnDraw) {
  expect_choices("random", "", [](const Sight& s) {
    return static_cast<std::size_t>(static_cast<double>(s.request.draw) / 0x1p32 * kReplicas);
  });
}

TEST(Routing, LeastLoadedIsTheFirstOfTheLeast) {
  expect_choices("least-loaded", "", [](const Sight& s) { return emptiest(s.unfinished); });
}

// Of ties the first; where nobody has room, the emptiest.
TEST(Routing, FullestFitIsTheFullestWithRoom) {
  expect_choices("fullest-fit", "", [](const Sight& s) {
    std::size_t best = kReplicas;
    for (std::size_t i = 0; i < s.unfinished.size(); ++i) {
      if (!s.has_room[i]) continue;
      if (best == kReplicas || s.unfinished[i] > s.unfinished[best]) best = i;
    }
    return best < kReplicas ? best : emptiest(s.unfinished);
  });
}

// Adapters dealt out evenly in id order; the base model's requests go round by their own number.
TEST(Routing, ByAdapterIsAStaticSplit) {
  expect_choices("by-adapter", "", [](const Sight& s) {
    if (s.request.adapter == kBaseModel) return index(s.request.id) % kReplicas;
    return index(s.request.adapter) * kReplicas / s.adapters;
  });
}

TEST(Routing, FirstFitIsTheFirstBelowItsBound) {
  expect_choices("first-fit", "{max_requests: 3}", [](const Sight& s) {
    for (std::size_t i = 0; i < s.unfinished.size(); ++i) {
      if (s.unfinished[i] < 3) return i;
    }
    return emptiest(s.unfinished);
  });
}

}  // namespace
}  // namespace servelab

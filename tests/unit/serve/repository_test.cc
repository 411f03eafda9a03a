// Local repositories: how they are drawn, what breaks I13, and that every routing policy keeps to
// the replicas that have a request's adapter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "engine/core/rng.h"
#include "engine/serve/cluster.h"
#include "engine/serve/deployment.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;

// --- the draw ---

TEST(Repositories, EveryAdapterHasItsCopiesInGroupsOfOneSize) {
  for (const int replicas : {1, 2, 3, 7, 60}) {
    for (const int copies : {1, 2, 3, 7, 59, 60}) {
      for (const std::size_t adapters : {0u, 1u, 5u, 64u, 1000u}) {
        if (copies > replicas) continue;
        SCOPED_TRACE(testing::Message() << adapters << " x " << copies << " on " << replicas);
        const Repositories drawn = draw_repositories(adapters, copies, replicas, 3);
        ASSERT_EQ(drawn.size(), static_cast<std::size_t>(replicas));
        std::map<AdapterId, int> count;
        std::size_t least = drawn[0].size(), most = 0;
        for (const std::vector<AdapterId>& own : drawn) {
          EXPECT_EQ(std::adjacent_find(own.begin(), own.end(), std::greater_equal<>()), own.end());
          for (const AdapterId id : own) ++count[id];
          least = std::min(least, own.size());
          most = std::max(most, own.size());
        }
        EXPECT_LE(most - least, 1u);
        EXPECT_EQ(count.size(), adapters);
        for (const auto& [id, times] : count) EXPECT_EQ(times, copies) << index(id);
      }
    }
  }
}

// Two adapters of a group are in the next draw's groups as often as chance has it.
TEST(Repositories, GroupsAreDrawnAtRandomAndBySeed) {
  EXPECT_EQ(draw_repositories(50, 2, 5, 1), draw_repositories(50, 2, 5, 1));
  EXPECT_NE(draw_repositories(50, 2, 5, 1), draw_repositories(50, 2, 5, 2));
  constexpr int kDraws = 2000, kReplicas = 4, kAdapters = 10;
  int together = 0;
  std::map<std::pair<int, int>, int> at;  // adapter, replica
  for (int seed = 0; seed < kDraws; ++seed) {
    const Repositories drawn =
        draw_repositories(kAdapters, 1, kReplicas, static_cast<std::uint64_t>(seed));
    for (int replica = 0; replica < kReplicas; ++replica) {
      const std::vector<AdapterId>& own = drawn[static_cast<std::size_t>(replica)];
      for (const AdapterId id : own) ++at[{static_cast<int>(index(id)), replica}];
      together += std::binary_search(own.begin(), own.end(), AdapterId{0}) &&
                  std::binary_search(own.begin(), own.end(), AdapterId{kAdapters - 1});
    }
  }
  // Five standard deviations of a binomial.
  const double near = 5 * std::sqrt(kDraws * 0.25 * 0.75);
  for (const auto& [cell, times] : at) {
    EXPECT_NEAR(times, kDraws / kReplicas, near) << cell.first << " on " << cell.second;
  }
  EXPECT_NEAR(together, kDraws / kReplicas, near);
}

// --- I13 ---

// Two adapters, two replicas: each has one of them.
struct Fixture {
  Workload workload;
  ClusterSettings settings;
  Fixture() {
    settings.engine = test::small_engine();
    settings.replicas = 2;
    settings.models[0].memory[1] = {8 * kMiB, kMiB, 2 * kKiB};
    settings.device_memory = 64 * kMiB;
    settings.repositories = {{AdapterId{0}}, {AdapterId{1}}};
    workload.adapters = {Adapter{"first", ModelId{}, 8, 512 * kKiB},
                         Adapter{"second", ModelId{}, 8, 512 * kKiB}};
    for (std::uint32_t i = 0; i < 4; ++i) {
      workload.requests.push_back({from_seconds(i), AdapterId{i % 2}, ModelId{}, 20, 4, 10});
    }
  }
};

// What a test spells out, at the first look or at every request.
struct Scripted final : ClusterPolicy {
  std::function<Deployment(const DeploymentView&)> deployment;
  std::function<ReplicaId(const RoutedRequest&, const ClusterView&)> routing;
  Rebalance decision;
  Deployment deploy(const DeploymentView& view) override {
    return deployment ? deployment(view) : view.equal_replicas();
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    return routing ? routing(request, view) : view.candidates(request).front()->id();
  }
  TimeNs rebalance_every() const override { return from_seconds(0.001); }
  Rebalance rebalance(const ClusterView&) override { return decision; }
};

void run(const Fixture& fixture, std::unique_ptr<ClusterPolicy> policy,
         const test::Planner& planner = nullptr) {
  static const test::LinearCost cost;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  RunRecord record;
  const auto technique = Registry<Technique>::instance().make("template");
  Cluster cluster(
      fixture.settings, fixture.workload,
      [&]() -> std::unique_ptr<ReplicaPolicy> {
        if (planner) return std::make_unique<test::ScriptedPolicy>(planner);
        return technique->replica_policy();
      },
      std::move(policy), backend.get(), &timeline, &record);
  cluster.run();
  EXPECT_EQ(test::violation(fixture.workload, record), "");
}

template <class Action>
std::string broken(const Action& action) {
  try {
    action();
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Invariants, I13RepositoriesThatCannotBe) {
  using Change = std::function<void(Deployment*)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"adapter second is in no repository", [](Deployment* d) { d->units[1].off = true; }},
      {"adapter first is in no repository", [](Deployment* d) { d->units[0].repository->clear(); }},
      {"an adapter that is not in its repository",
       [](Deployment* d) { d->units[0].adapters = {AdapterId{1}}; }},
      {"an adapter that is not in the run",
       [](Deployment* d) { d->units[0].repository->push_back(AdapterId{7}); }},
      {"ascending",
       [](Deployment* d) {
         d->units[0].repository = {AdapterId{1}, AdapterId{0}};
       }},
  };
  for (const auto& [what, change] : cases) {
    const std::string error = broken([&, change = change] {
      auto policy = std::make_unique<Scripted>();
      policy->deployment = [change](const DeploymentView& view) {
        Deployment deployment = view.equal_replicas();
        change(&deployment);
        return deployment;
      };
      run(Fixture(), std::move(policy));
    });
    EXPECT_THAT(error, HasSubstr("I13"));
    EXPECT_THAT(error, HasSubstr(what));
  }
  EXPECT_EQ(broken([] { run(Fixture(), std::make_unique<Scripted>()); }), "nothing");
}

TEST(Invariants, I13RequestsGoWhereTheirAdapterIs) {
  EXPECT_THAT(broken([] { run(Fixture(), std::make_unique<test::ToReplica0>()); }),
              HasSubstr("I13: a request was routed"));
  const auto deciding = [](const Rebalance& decision) {
    return broken([&] {
      auto policy = std::make_unique<Scripted>();
      policy->decision = decision;
      policy->decision.outcome = Rebalance::Outcome::kDecided;
      run(Fixture(), std::move(policy));
    });
  };
  Rebalance migration, there, elsewhere;
  migration.migrations = {{RequestId{0}, ReplicaId{1}}};
  there.loads = {{AdapterId{0}, ReplicaId{0}}};
  elsewhere.loads = {{AdapterId{1}, ReplicaId{0}}};
  EXPECT_THAT(deciding(migration), HasSubstr("I13: a request migrates"));
  EXPECT_THAT(deciding(elsewhere), HasSubstr("I13: a copy"));
  EXPECT_EQ(deciding(there), "nothing");
}

TEST(Invariants, I13AReplicaLoadsOnlyWhatItsRepositoryHas) {
  const auto loads_the_other = [](const ReplicaView& view, StepPlan* out) {
    out->load.push_back(index(view.id()) == 0 ? AdapterId{1} : AdapterId{0});
    return true;
  };
  EXPECT_THAT(broken([&] { run(Fixture(), std::make_unique<Scripted>(), loads_the_other); }),
              HasSubstr("I13: loading an adapter"));
}

// --- on a cluster ---

TEST(Repositories, AnOracleHoldsAndSlotsCountWhatIsStored) {
  Fixture fixture;
  const auto units = [&fixture] {
    return DeploymentView(fixture.settings, fixture.workload).equal_replicas().units;
  };
  EXPECT_EQ(units()[1].adapter_slots, 1);
  EXPECT_TRUE(units()[1].adapters.empty());
  fixture.settings.engine.cached_adapters = true;
  EXPECT_EQ(units()[1].adapters, std::vector<AdapterId>{AdapterId{1}});
  fixture.settings.repositories.clear();
  EXPECT_EQ(units()[1].adapters.size(), 2u);
  EXPECT_EQ(units()[1].adapter_slots, 2);
}

// By their own choice: what a request may not do is checked by I13 while it runs. Each policy
// makes use of every copy in the end.
TEST(Repositories, EveryPolicyChoosesAmongTheReplicasThatHaveTheAdapter) {
  test::WorkloadShape shape;
  shape.requests = 400;
  shape.adapters = 12;
  shape.rate_per_s = 3000;
  Workload workload = test::make_workload(shape, 5);
  RngStream draws(5, "draws");
  for (Request& request : workload.requests) {
    request.draw = static_cast<std::uint32_t>(draws.next() >> 32);
  }
  const auto& policies = Registry<ClusterPolicy>::instance();
  for (const std::string& route : policies.names()) {
    const bool of_tests = route.starts_with("test-");
    if (of_tests || policies.make(route)->capabilities().places_adapters) continue;
    for (const int copies : {1, 2, 4}) {
      SCOPED_TRACE(route + ", copies " + std::to_string(copies));
      test::RunOptions options;
      options.technique = "slora";
      options.engine = test::small_engine();
      options.replicas = 5;
      options.repository_copies = copies;
      options.route = route;
      const RunRecord record = test::run(workload, options);
      EXPECT_EQ(test::violation(workload, record), "");
      std::set<ReplicaId> of_the_most_popular;
      for (std::size_t i = 0; i < workload.requests.size(); ++i) {
        if (workload.requests[i].adapter != AdapterId{0}) continue;
        of_the_most_popular.insert(record.requests[i].replica);
      }
      if (route == "by-adapter") {
        EXPECT_EQ(of_the_most_popular.size(), 1u);
      } else if (route != "first-fit" && route != "fullest-fit") {  // they fill one first
        EXPECT_EQ(of_the_most_popular.size(), static_cast<std::size_t>(copies));
      }
    }
  }
}

TEST(Repositories, RoundRobinGoesOnFromWhereItWas) {
  struct Recorded final : ClusterPolicy {
    std::unique_ptr<ClusterPolicy> policy = Registry<ClusterPolicy>::instance().make("round-robin");
    std::vector<std::size_t>* to;
    explicit Recorded(std::vector<std::size_t>* out) : to(out) {}
    ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
      const ReplicaId chosen = policy->route(request, view);
      to->push_back(index(chosen));
      return chosen;
    }
  };
  Fixture fixture;
  fixture.settings.replicas = 4;
  fixture.settings.repositories = {{AdapterId{0}}, {AdapterId{1}}, {AdapterId{0}}, {AdapterId{1}}};
  fixture.workload.requests.clear();
  for (const std::uint32_t adapter : {0, 0, 0, 1, 1, 0}) {
    const auto at = static_cast<TimeNs>(fixture.workload.requests.size());
    fixture.workload.requests.push_back({at, AdapterId{adapter}, ModelId{}, 20, 4, 10});
  }
  std::vector<std::size_t> to;
  run(fixture, std::make_unique<Recorded>(&to));
  EXPECT_EQ(to, (std::vector<std::size_t>{0, 2, 0, 1, 3, 0}));
}

}  // namespace
}  // namespace servelab

// Deployments: how a unit's memory is divided, what cannot be built, and runs of several models.
#include "engine/serve/deployment.h"

#include <gmock/gmock.h>

#include <functional>

#include "engine/serve/cluster.h"
#include "engine/workload/adapters_as_models.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;
using Deploy = std::function<Deployment(const DeploymentView&)>;

constexpr ModelId kSmall{0}, kLarge{1};
constexpr int kBlockTokens = 16;

// Two models, the larger with twice the weights and three times the KV of the smaller, on four
// devices of 64 MiB, and adapters of ranks 8 and 64 for the smaller one.
struct Fixture {
  Workload workload;
  ClusterSettings settings;
  Fixture() {
    settings.engine = test::small_engine();
    settings.replicas = 4;
    settings.models.resize(2);
    settings.models[0].name = "small";
    settings.models[1].name = "large";
    for (const int devices : {1, 2}) {
      settings.models[0].memory[devices] = {8 * kMiB / devices, kMiB, 2 * kKiB / devices};
      settings.models[1].memory[devices] = {16 * kMiB / devices, 2 * kMiB, 6 * kKiB / devices};
    }
    settings.device_memory = 64 * kMiB;
    workload.adapters = {Adapter{"narrow", kSmall, 8, 512 * kKiB},
                         Adapter{"wide", kSmall, 64, 4 * kMiB}};
    for (int i = 0; i < 12; ++i) {
      const ModelId model = i % 3 == 0 ? kLarge : kSmall;
      const AdapterId adapter = i % 3 == 1 ? AdapterId{0} : kBaseModel;
      workload.requests.push_back({from_seconds(i), adapter, model, 20, 4, 10});
    }
  }
  DeploymentView view() const { return DeploymentView(settings, workload); }
};

Unit unit_of(std::vector<int> devices, std::vector<UnitModel> models) {
  Unit unit;
  unit.devices = std::move(devices);
  unit.models = std::move(models);
  return unit;
}

// Routes to the first replica that serves the model.
class Deployed final : public ClusterPolicy {
 public:
  explicit Deployed(Deploy deploy) : deploy_(std::move(deploy)) {}
  Deployment deploy(const DeploymentView& view) override { return deploy_(view); }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    for (const ReplicaView* replica : view.replicas()) {
      if (replica->serves(request.model)) return replica->id();
    }
    return ReplicaId{};
  }

 private:
  Deploy deploy_;
};

// The oldest request's model, and of its requests as many as fit.
class OldestModel final : public ReplicaPolicy {
 public:
  bool plan(const ReplicaView& view, StepPlan* out) override {
    RequestId oldest = kNoRequest;
    for (const auto ids : {view.running(), view.waiting()}) {
      for (const RequestId id : ids) oldest = std::min(oldest, id);
    }
    if (oldest == kNoRequest) return false;
    out->model = view.request(oldest).model();
    for (const auto ids : {view.running(), view.waiting()}) {
      for (const RequestId id : ids) {
        const RequestView& r = view.request(id);
        if (r.model() != out->model) continue;
        out->slices.push_back({id, r.pending()});
        if (r.adapter() != kBaseModel &&
            view.adapters().residency(r.adapter()) == Residency::kAbsent && out->load.empty()) {
          out->load.push_back(r.adapter());
        }
      }
    }
    return true;
  }
};

RunRecord run(const Fixture& fixture, Deploy deploy, const CostModels& costs) {
  RunRecord record;
  record.options.decision_text = record.options.steps = true;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, costs);
  Cluster cluster(
      fixture.settings, fixture.workload, [] { return std::make_unique<OldestModel>(); },
      std::make_unique<Deployed>(std::move(deploy)), backend.get(), &timeline, &record);
  cluster.run();
  return record;
}

RunRecord run(const Fixture& fixture, Deploy deploy) {
  static const test::LinearCost cost;
  return run(fixture, std::move(deploy), [](ModelId, int) -> const CostModel& { return cost; });
}

TEST(Deployment, EqualReplicasHoldEveryModelAndTheSettingsSlots) {
  Fixture fixture;
  fixture.settings.replicas = 2;
  fixture.settings.tensor_parallel = 2;
  fixture.settings.engine.adapter_slots = 1;
  const DeploymentView view = fixture.view();
  const std::vector<Unit>& units = view.equal_replicas().units;
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1].devices, (std::vector<int>{2, 3}));
  EXPECT_TRUE(units[1].serves(kSmall) && units[1].serves(kLarge));
  EXPECT_EQ(units[0].adapter_slots, 1);
  EXPECT_EQ(units[0].slot_rank, 64);
  EXPECT_TRUE(units[0].adapters.empty());
}

// By hand: 64 MiB less both models' weights, the larger one's activations and two slots of 4 MiB.
TEST(Deployment, MemoryIsDividedAmongModelsSlotsAndKv) {
  const Fixture fixture;
  const DeploymentView view = fixture.view();
  const UnitMemory memory = view.memory(view.equal_replicas().units.front());
  EXPECT_EQ(memory.weights, 24 * kMiB);
  EXPECT_EQ(memory.activations, 2 * kMiB);
  EXPECT_EQ(memory.adapters.slot_bytes, 4 * kMiB);
  EXPECT_EQ(memory.block_bytes, 2 * kKiB * kBlockTokens) << "what both models' blocks consist of";
  EXPECT_EQ(memory.blocks_per_page, (std::vector<int>{1, 3}));
  EXPECT_EQ(memory.kv_blocks, (64 - 24 - 2 - 2 * 4) * kMiB / memory.block_bytes);
  EXPECT_EQ(memory.refused, "");
}

// Half of each model on each of two devices; slots as wide as the unit asks for.
TEST(Deployment, MemoryGoesByDevicesAndByTheWidestRankOfASlot) {
  const Fixture fixture;
  const DeploymentView view = fixture.view();
  Unit unit = unit_of({0, 1}, {{kSmall, 1, false}});
  unit.adapter_slots = 3;
  unit.slot_rank = 8;
  UnitMemory memory = view.memory(unit);
  EXPECT_EQ(memory.weights, 4 * kMiB);
  EXPECT_EQ(memory.adapters.slot_bytes, 512 * kKiB);
  unit.slot_rank = 16;  // wider than any adapter that it takes
  memory = view.memory(unit);
  EXPECT_EQ(memory.adapters.slot_bytes, kMiB);
  unit.devices = {0, 1, 2};
  EXPECT_THROW(view.memory(unit), SpecError) << "small cannot be spread over 3 devices";
}

TEST(Deployment, ModelsThatTakeTurnsShareTheirPlaces) {
  const Fixture fixture;
  const DeploymentView view = fixture.view();
  Unit unit = unit_of({0}, {{kSmall, 1, true}, {kLarge, 1, true}});
  unit.model_slots = 1;
  const UnitMemory memory = view.memory(unit);
  EXPECT_EQ(memory.weights, 0);
  EXPECT_EQ(memory.models.slots, 1);
  EXPECT_EQ(memory.models.slot_bytes, 16 * kMiB);
  EXPECT_EQ(memory.kv_blocks, (64 - 16 - 2) * kMiB / memory.block_bytes);
}

TEST(Deployment, WhatLeavesNoKvIsRefusedInOneLine) {
  Fixture fixture;
  fixture.settings.device_memory = 30 * kMiB;
  const DeploymentView view = fixture.view();
  const std::string refused = view.memory(view.equal_replicas().units.front()).refused;
  EXPECT_THAT(refused,
              HasSubstr("30 MiB for 24 MiB of weights, 2 MiB of activations and 2 adapter"));
  EXPECT_THROW(run(fixture, [](const DeploymentView& v) { return v.equal_replicas(); }), SpecError);
}

TEST(Deployment, ThePolicysOwnReasonIsTheRuns) {
  try {
    run(Fixture(), [](const DeploymentView&) {
      return Deployment{{}, "70 requests/s need 5 devices, and there are 4"};
    });
    FAIL() << "a deployment that was refused ran";
  } catch (const SpecError& error) {
    EXPECT_STREQ(error.what(), "70 requests/s need 5 devices, and there are 4");
  }
}

// Arrivals are a second apart over 11 s: 4 for the larger model, 4 for adapters, 4 for neither.
TEST(Deployment, TheViewKnowsRatesAndLengths) {
  Fixture fixture;
  fixture.workload.adapter_shares = {0.75, 0.25};
  const DeploymentView view = fixture.view();
  EXPECT_DOUBLE_EQ(view.rate(kLarge), 4 / 11.0);
  EXPECT_DOUBLE_EQ(view.rate(kSmall), 4 / 11.0);
  EXPECT_DOUBLE_EQ(view.rate(AdapterId{0}), 3 / 11.0);
  EXPECT_DOUBLE_EQ(view.rate(AdapterId{1}), 1 / 11.0);
  EXPECT_DOUBLE_EQ(view.mean_prompt_tokens(), 20);
  EXPECT_DOUBLE_EQ(view.mean_output_tokens(), 4);
  EXPECT_EQ(view.devices(), 4);
  EXPECT_THROW(view.cost(kSmall, 1), InvariantError) << "nobody gave it any";
  const test::LinearCost cost;
  fixture.settings.costs = [&cost](ModelId, int) -> const CostModel& { return cost; };
  EXPECT_EQ(&fixture.view().cost(kLarge, 2), &cost);
}

TEST(Invariants, I11DeploymentsThatCannotBeBuilt) {
  const UnitModel small{kSmall, 1, false}, large{kLarge, 1, false}, turns{kLarge, 1, true};
  Unit holds_twice = unit_of({0}, {small, large});
  holds_twice.adapters = {AdapterId{0}, AdapterId{0}};
  Unit holds_nothing_that_is = unit_of({0}, {small, large});
  holds_nothing_that_is.adapters = {AdapterId{7}};
  Unit wrong_model = unit_of({0}, {large});
  wrong_model.adapters = {AdapterId{0}};
  Unit off = unit_of({0}, {small, large});
  off.off = true;
  const std::vector<std::pair<std::string, std::vector<Unit>>> cases = {
      {"has no device", {unit_of({}, {small, large})}},
      {"a device that is not there", {unit_of({4}, {small, large})}},
      {"a device that another unit has", {unit_of({0}, {small}), unit_of({1, 0}, {large})}},
      {"serves no model", {unit_of({0}, {}), unit_of({1}, {small, large})}},
      {"a model twice", {unit_of({0}, {small, large, small})}},
      {"a model that is not in the run", {unit_of({0}, {{ModelId{2}, 1, false}})}},
      {"no place for them", {unit_of({0}, {small, turns})}},
      {"an adapter twice", {holds_twice}},
      {"an adapter that is not in the run", {holds_nothing_that_is}},
      {"a model that it does not serve", {wrong_model, unit_of({1}, {small})}},
      {"served nowhere", {unit_of({0}, {small})}},
      {"every unit is off", {off}},
  };
  for (const auto& [what, units] : cases) {
    SCOPED_TRACE(what);
    try {
      run(Fixture(), [&units = units](const DeploymentView&) { return Deployment{units, ""}; });
      FAIL() << "was built";
    } catch (const InvariantError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 4), "I11:") << error.what();
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  }
}

TEST(Invariants, I11RequestsGoWhereTheirModelIs) {
  struct ToTheLast final : ClusterPolicy {
    Deployment deploy(const DeploymentView&) override {
      return {{unit_of({0}, {{kSmall, 1, false}}), unit_of({1}, {{kLarge, 1, false}})}, ""};
    }
    ReplicaId route(const RoutedRequest&, const ClusterView&) override { return ReplicaId{1}; }
  };
  const Fixture fixture;
  const test::LinearCost cost;
  VirtualTimeline timeline;
  const auto backend = make_twin_backend(&timeline, &cost);
  RunRecord record;
  Cluster cluster(
      fixture.settings, fixture.workload, [] { return std::make_unique<OldestModel>(); },
      std::make_unique<ToTheLast>(), backend.get(), &timeline, &record);
  EXPECT_THROW(cluster.run(), InvariantError);
}

TEST(Invariants, I12OneModelPerStepAndOnTheDevice) {
  Fixture fixture;
  for (Request& request : fixture.workload.requests) {
    request.arrival = 0;
    request.adapter = kBaseModel;
  }
  const auto refused = [&](bool takes_turns, std::function<void(StepPlan*)> plan) {
    VirtualTimeline timeline;
    const test::LinearCost cost;
    const auto backend = make_twin_backend(&timeline, &cost);
    RunRecord record;
    Cluster cluster(
        fixture.settings, fixture.workload,
        [&] {
          return std::make_unique<test::ScriptedPolicy>(
              [plan](const ReplicaView& view, StepPlan* out) {
                if (view.waiting().size() < 2) return false;
                plan(out);
                return true;
              });
        },
        std::make_unique<Deployed>([&](const DeploymentView&) {
          Unit unit = unit_of({0}, {{kSmall, 1, takes_turns}, {kLarge, 1, takes_turns}});
          unit.model_slots = takes_turns ? 1 : 0;
          return Deployment{{unit}, ""};
        }),
        backend.get(), &timeline, &record);
    try {
      cluster.run();
      ADD_FAILURE() << "the plan was applied";
    } catch (const InvariantError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 3), "I12") << error.what();
    }
  };
  const RequestId large{0}, small{1};
  refused(false, [&](StepPlan* out) { out->slices = {{small, 1}, {large, 1}}; });
  refused(false, [&](StepPlan* out) { out->slices = {{large, 1}}; });  // of the first model
  refused(false, [&](StepPlan* out) {
    out->model = ModelId{2};
    out->slices = {{large, 1}};
  });
  refused(true, [&](StepPlan* out) { out->slices = {{small, 1}}; });  // its weights are nowhere
}

// Two models on one device: each step is charged by its own model's cost, and each request's KV by
// its own model's size, from one pool.
TEST(SeveralModels, ShareADeviceAndItsBlocks) {
  class Flat final : public CostModel {
   public:
    explicit Flat(TimeNs each) : each_(each) {}
    StepCost step(const BatchShape&, Exec, LoraKernel) const override { return {.dense = each_}; }
    TimeNs merge(int) const override { return 1; }
    TimeNs unmerge(int) const override { return 1; }
    TimeNs host_to_device(Bytes) const override { return 1; }
    TimeNs device_to_host(Bytes) const override { return 1; }

   private:
    TimeNs each_;
  };
  const Flat fast(1000), slow(5000);
  const Fixture fixture;
  const RunRecord record = run(
      fixture,
      [](const DeploymentView& view) {
        Deployment deployment = view.equal_replicas();
        deployment.units.resize(1);
        return deployment;
      },
      [&](ModelId model, int) -> const CostModel& { return model == kLarge ? slow : fast; });
  EXPECT_EQ(test::violation(fixture.workload, record), "");
  ASSERT_FALSE(record.step_log.empty());
  for (const StepRecord& step : record.step_log) {
    EXPECT_EQ(step.timing.cost.dense, step.model == kLarge ? 5000 : 1000);
  }
  // One request at a time: 23 tokens in two pages, of one block or of three.
  EXPECT_EQ(record.replicas.front().kv_blocks_peak, 2 * 3);
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:mbgmv model=1 run=0x20"));
  EXPECT_EQ(record.deployment.units.size(), 1u);
}

TEST(SeveralModels, AUnitThatIsOffHasNoReplica) {
  const RunRecord record = run(Fixture(), [](const DeploymentView& view) {
    Deployment deployment = view.equal_replicas();
    deployment.units[0].off = deployment.units[2].off = true;
    return deployment;
  });
  EXPECT_EQ(record.replicas.size(), 2u);
  EXPECT_EQ(record.deployment.units.size(), 4u);
}

TEST(AdaptersAsModels, AreModelsInTheAdaptersOrderWithTheBaseLast) {
  Workload workload;
  workload.adapters = {Adapter{"a", ModelId{}, 8, 1}, Adapter{"b", ModelId{}, 8, 1}};
  workload.requests = {{0, AdapterId{1}, ModelId{}, 1, 1, 1},
                       {1, AdapterId{0}, ModelId{}, 1, 1, 1}};
  WorkloadOfModels made = adapters_as_models(workload);
  EXPECT_EQ(made.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(made.workload.requests[0].model, ModelId{1});
  EXPECT_EQ(made.workload.requests[0].adapter, kBaseModel);
  EXPECT_TRUE(made.workload.adapters.empty());
  workload.requests.push_back({2, kBaseModel, ModelId{}, 1, 1, 1});
  made = adapters_as_models(workload);
  EXPECT_EQ(made.names.size(), 3u);
  EXPECT_EQ(made.workload.requests[2].model, ModelId{2});
}

}  // namespace
}  // namespace servelab

// LoRA on the host, above the device: what the replica asks of such slices and what it says of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "engine/serve/replica.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using test::Planner;
using test::ScriptedPolicy;
using test::ToReplica0;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RequestId kFirst{0}, kSecond{1}, kThird{2};
constexpr AdapterId kA{0}, kB{1};

// A twin that keeps what it was handed.
class Watched final : public ForwardingBackend {
 public:
  explicit Watched(std::unique_ptr<Backend> backend)
      : ForwardingBackend(backend.get()), twin_(std::move(backend)) {}
  void submit(const StepWork& work) override {
    adapters.emplace_back(work.adapters.begin(), work.adapters.end());
    host_adapters.emplace_back(work.host_adapters.begin(), work.host_adapters.end());
    shapes.push_back(work.shape);
    twin_->submit(work);
  }
  StepTiming collect(ReplicaId replica, std::uint32_t slot) override {
    timings.push_back(twin_->collect(replica, slot));
    return timings.back();
  }

  std::vector<std::vector<AdapterId>> adapters, host_adapters;
  std::vector<BatchShape> shapes;
  std::vector<StepTiming> timings;

 private:
  std::unique_ptr<Backend> twin_;
};

// Three requests of 20 tokens to two adapters of ranks 8 and 16, with one slot.
struct HostLora : ::testing::Test {
  HostLora() {
    workload.adapters = {Adapter{"a", ModelId{}, 8, 16 * kKiB},
                         Adapter{"b", ModelId{}, 16, 16 * kKiB}};
    for (const AdapterId adapter : {kA, kB, kA}) {
      Request r;
      r.adapter = adapter;
      r.prompt_tokens = 20;
      r.output_tokens = 2;
      r.output_limit_tokens = 10;
      workload.requests.push_back(r);
    }
    settings.engine = test::small_engine();
    settings.engine.adapter_slots = 1;
    settings.models[0].memory[1].kv_per_token = kKiB;
    settings.device_memory = 16 * kKiB + 8 * 16 * kKiB;
  }
  void run(Planner planner) {
    record = RunRecord{};
    record.options.decision_text = record.options.steps = true;
    VirtualTimeline timeline;
    backend = std::make_unique<Watched>(make_twin_backend(&timeline, &cost));
    const auto policy = [&] { return std::make_unique<ScriptedPolicy>(planner); };
    Cluster cluster(settings, workload, policy, std::make_unique<ToReplica0>(), backend.get(),
                    &timeline, &record);
    cluster.run();
  }
  // Everything on the host, all in one step.
  static bool all_on_host(const ReplicaView& view, StepPlan* out) {
    for (const RequestId id : {kFirst, kSecond, kThird}) {
      const RequestView& r = view.request(id);
      if (r.phase() != Phase::kDone) out->slices.push_back({id, r.pending(), LoraSite::kHost});
    }
    return !out->slices.empty();
  }

  Workload workload;
  ClusterSettings settings;
  test::LinearCost cost;
  RunRecord record;
  std::unique_ptr<Watched> backend;
};

TEST_F(HostLora, NeedsItsAdapterNeitherResidentNorLoading) {
  run(all_on_host);
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_EQ(record.replicas[0].loads, 0);
  EXPECT_EQ(record.replicas[0].load_wait, 0);
  ASSERT_EQ(backend->shapes.size(), 2u);
  EXPECT_THAT(backend->adapters[0], ElementsAre());
  EXPECT_THAT(backend->host_adapters[0], ElementsAre(kA, kB));
}

TEST_F(HostLora, IsCountedApart) {
  run(all_on_host);
  const BatchShape& prefill = backend->shapes[0];
  EXPECT_EQ(prefill.tokens, 60);
  EXPECT_EQ(prefill.lora_tokens, 0);
  EXPECT_EQ(prefill.lora_adapters, 0);
  EXPECT_EQ(prefill.lora_max_rank, 0);
  EXPECT_EQ(prefill.host_requests, 3);
  EXPECT_EQ(prefill.host_tokens, 60);
  EXPECT_EQ(prefill.host_rank_tokens, 40 * 8 + 20 * 16);
  EXPECT_EQ(prefill.host_adapters, 2);
  EXPECT_EQ(prefill.host_rank_sum, 24);
  EXPECT_EQ(prefill.host_max_rank, 16);
  EXPECT_EQ(record.step_log[0].adapters, 2);
  EXPECT_EQ(record.step_log[0].host_requests, 3);
}

TEST_F(HostLora, IsChargedAsLora) {
  run(all_on_host);
  EXPECT_EQ(backend->timings[0].cost.lora,
            cost.host_lora(backend->shapes[0], HostCopy::kFused).added);
  run([](const ReplicaView& view, StepPlan* out) {
    out->host_copy = HostCopy::kSynced;
    return all_on_host(view, out);
  });
  EXPECT_EQ(backend->timings[0].cost.lora,
            cost.host_lora(backend->shapes[0], HostCopy::kSynced).added);
}

TEST_F(HostLora, IsMarkedInTheDecisionLog) {
  run(all_on_host);
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:mbgmv run=0x20h,1x20h,2x20h\n"));
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:mbgmv run=0h,1h,2h\n"));
  const std::uint64_t fused = record.decision_hash.value();
  run([](const ReplicaView& view, StepPlan* out) {
    out->host_copy = HostCopy::kSynced;
    return all_on_host(view, out);
  });
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:mbgmv:synced run=0x20h,1x20h,2x20h\n"));
  EXPECT_NE(record.decision_hash.value(), fused);
}

// The step does not wait for a load that none of its slices on the device needs; the next one does.
TEST_F(HostLora, StartsWhileItsAdapterLoads) {
  workload.requests.resize(1);
  workload.adapters[0].bytes = 16 * kKiB;
  run([](const ReplicaView& view, StepPlan* out) {
    const RequestView& r = view.request(kFirst);
    if (r.phase() == Phase::kDone) return false;
    const bool cold = view.adapters().residency(kA) == Residency::kAbsent;
    if (cold) out->load = {kA};
    out->slices = {{kFirst, r.pending(), cold ? LoraSite::kHost : LoraSite::kDevice}};
    return true;
  });
  EXPECT_EQ(record.requests[0].prefill_start, 0);
  EXPECT_THAT(record.decisions, HasSubstr("load=0 run=0x20h\n"));
  EXPECT_THAT(backend->adapters[0], ElementsAre());
  EXPECT_THAT(backend->adapters[1], ElementsAre(kA));
  EXPECT_THAT(backend->host_adapters[1], ElementsAre());
}

// Not pinned: with its one slot the replica may take another adapter in for the next plan.
TEST_F(HostLora, PinsNothing) {
  run([](const ReplicaView& view, StepPlan* out) {
    if (view.adapters().resident(kA)) {
      EXPECT_EQ(view.adapters().pins(kA), 0);
      out->evict = {kA};
    }
    if (view.adapters().residency(kA) == Residency::kAbsent && view.request(kFirst).context() == 0)
      out->load = {kA};
    return all_on_host(view, out) || !out->empty();
  });
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_THAT(record.decisions, HasSubstr("evict=0"));
}

// One adapter on both sides of one step: a request that was prefilled on the host beside one that
// finds it on the device.
TEST_F(HostLora, AnAdapterMayBeOnBothSidesOfAStep) {
  run([](const ReplicaView& view, StepPlan* out) {
    if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
    if (!all_on_host(view, out)) return false;
    out->slices[0].lora = LoraSite::kDevice;
    return true;
  });
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_THAT(backend->adapters[0], ElementsAre(kA));
  EXPECT_THAT(backend->host_adapters[0], ElementsAre(kB, kA));
  EXPECT_EQ(backend->shapes[0].lora_tokens, 20);
  EXPECT_EQ(backend->shapes[0].host_tokens, 40);
}

TEST_F(HostLora, OfTheBaseModelIsNothing) {
  for (Request& r : workload.requests) r.adapter = kBaseModel;
  run(all_on_host);
  EXPECT_EQ(backend->shapes[0].host_tokens, 0);
  EXPECT_THAT(backend->host_adapters[0], ElementsAre());
}

TEST_F(HostLora, I3AMergedStepHasNothingOnTheHost) {
  try {
    run([](const ReplicaView&, StepPlan* out) {
      out->load = {kA};
      out->exec = Exec::kMerged;
      out->merged = kA;
      out->slices = {{kFirst, 20}, {kThird, 20, LoraSite::kHost}};
      return true;
    });
    FAIL() << "a merged step had LoRA on the host";
  } catch (const InvariantError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 2), "I3") << error.what();
  }
}

// A LoRA server is nowhere yet: backends say so, and where one does not, the replica does.
TEST_F(HostLora, RemoteIsRefused) {
  const Planner remote = [](const ReplicaView&, StepPlan* out) {
    out->load = {kA};
    out->slices = {{kFirst, 20, LoraSite::kRemote}};
    return true;
  };
  EXPECT_THROW(run(remote), SpecError);
  VirtualTimeline timeline;
  const auto null = make_null_backend(&timeline, 1000);
  test::RunOptions options;
  options.engine = test::small_engine();
  options.replica_policy = [&] { return std::make_unique<ScriptedPolicy>(remote); };
  EXPECT_THROW(test::run_on(workload, options, &timeline, null.get()), InvariantError);
}

// A cost model that does not know LoRA on the host refuses the plan, with its reason.
TEST_F(HostLora, IsRefusedWhereItsCostIsUnknown) {
  struct Plain final : CostModel {
    StepCost step(const BatchShape&, Exec, LoraKernel) const override { return {.dense = 1000}; }
    TimeNs merge(int) const override { return 0; }
    TimeNs unmerge(int) const override { return 0; }
    TimeNs host_to_device(Bytes) const override { return 1; }
    TimeNs device_to_host(Bytes) const override { return 1; }
  };
  const Plain plain;
  VirtualTimeline timeline;
  const auto twin = make_twin_backend(&timeline, &plain);
  test::attach_replicas(twin.get(), 1);
  StepPlan plan;
  plan.slices = {{kFirst, 20}};
  EXPECT_EQ(twin->unsupported(ReplicaId{}, plan), nullptr);
  plan.slices[0].lora = LoraSite::kHost;
  EXPECT_THAT(twin->unsupported(ReplicaId{}, plan), HasSubstr("LoRA on the host"));
  EXPECT_THROW(plain.host_lora(BatchShape{}, HostCopy::kFused), InvariantError);
}

}  // namespace
}  // namespace servelab

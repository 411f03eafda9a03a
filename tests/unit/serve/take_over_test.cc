// Steps on the twin whose layers differ: adapters that come layer by layer, and LoRA that the host
// begins and the device takes over, while results of the host and loads share a link.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/check.h"
#include "engine/serve/replica.h"
#include "tests/support/scripted.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using test::Planner;
using ::testing::HasSubstr;

constexpr RequestId kFirst{0}, kSecond{1};
constexpr AdapterId kA{0};
constexpr TimeNs kLayer = 100'000;   // of the device, without LoRA
constexpr TimeNs kOnHost = 60'000;   // that LoRA on the host adds to a layer, with its results
constexpr TimeNs kResults = 10'000;  // of it
constexpr TimeNs kOnDevice = 20'000;

// A byte takes a nanosecond to load.
class LayerCost final : public CostModel {
 public:
  explicit LayerCost(int layers) : layers_(layers) {}
  StepCost step(const BatchShape& batch, Exec, LoraKernel) const override {
    return {.dense = kLayer * layers_, .lora = batch.lora_tokens > 0 ? kOnDevice * layers_ : 0};
  }
  const char* no_host_lora() const override { return nullptr; }
  HostLoraCost host_lora(const BatchShape&, HostCopy) const override {
    return {kOnHost * layers_, kResults * layers_};
  }
  TimeNs merge(int) const override { return 0; }
  TimeNs unmerge(int) const override { return 0; }
  TimeNs host_to_device(Bytes bytes) const override { return bytes; }
  TimeNs device_to_host(Bytes bytes) const override { return bytes; }
  const char* no_load_path(LoadPath) const override { return nullptr; }
  int copy_pieces() const override { return layers_; }

 private:
  int layers_;
};

// A run on the twin of prompts of 20 tokens, one for each of `adapters`, the first of which takes
// `load` ns to load.
RunRecord run_prompts(int layers, const std::string& path, TimeNs load,
                      const std::vector<AdapterId>& adapters, int output_tokens, Planner planner) {
  Workload workload;
  workload.adapters = {Adapter{"a", ModelId{}, 8, load}};
  for (const AdapterId adapter : adapters) {
    Request request;
    request.adapter = adapter;
    request.prompt_tokens = 20;
    request.output_tokens = request.output_limit_tokens = output_tokens;
    workload.requests.push_back(request);
  }
  const LayerCost cost(layers);
  VirtualTimeline timeline;
  const auto twin = make_twin_backend(&timeline, &cost);
  test::RunOptions options;
  options.engine = test::small_engine();
  options.engine.load_path = path;
  options.record.steps = true;
  options.replica_policy = [planner] { return std::make_unique<test::ScriptedPolicy>(planner); };
  RunRecord record = test::run_on(workload, options, &timeline, twin.get());
  EXPECT_EQ(test::violation(workload, record), "");
  return record;
}

struct Outcome {
  StepTiming first;   // of the first step
  TimeNs loaded = 0;  // when the adapter had come
  TimeNs first_token = 0;
};

// One prompt, whose adapter of `load` ns begins to load with its step.
Outcome one_prompt(int layers, const std::string& path, TimeNs load, LoraSite site,
                   TakeOver take_over = TakeOver::kNever) {
  const RunRecord record =
      run_prompts(layers, path, load, {kA}, 2, [=](const ReplicaView& view, StepPlan* out) {
        const RequestView& r = view.request(kFirst);
        if (r.phase() == Phase::kDone) return false;
        const bool cold = view.adapters().residency(kA) == Residency::kAbsent;
        if (cold) out->load = {kA};
        if (cold && site == LoraSite::kHost) out->take_over = take_over;
        out->slices = {{kFirst, r.pending(), cold ? site : LoraSite::kDevice}};
        return true;
      });
  Outcome outcome{record.step_log.at(0).timing, 0, record.requests[0].first_token};
  for (const EventRecord& event : record.events) {
    if (event.code == EventCode::kLoad) outcome.loaded = event.at;
  }
  EXPECT_EQ(outcome.first.busy() + outcome.first.load_wait, outcome.first_token);
  return outcome;
}

// --- adapters that come layer by layer ---

TEST(LoadPath, PinnedHoldsTheWholeStepBack) {
  const Outcome o = one_prompt(10, "pinned", 400'000, LoraSite::kDevice);
  EXPECT_EQ(o.first.load_wait, 400'000);
  EXPECT_EQ(o.first_token, 400'000 + 10 * (kLayer + kOnDevice));
}

// Layers that come every 40 us are always there, but for the first.
TEST(LoadPath, ByLayersOnlyTheFirstIsWaitedForWhereTheyComeFast) {
  const Outcome o = one_prompt(10, "layers", 400'000, LoraSite::kDevice);
  EXPECT_EQ(o.first.load_wait, 40'000);
  EXPECT_EQ(o.first_token, 40'000 + 10 * (kLayer + kOnDevice));
  EXPECT_EQ(o.loaded, 400'000);
}

// Layers that come every 200 us: the step ends one layer after the last.
TEST(LoadPath, ByLayersEachIsWaitedForWhereTheyComeSlowly) {
  const Outcome o = one_prompt(10, "layers", 2'000'000, LoraSite::kDevice);
  EXPECT_EQ(o.first_token, 2'000'000 + kLayer + kOnDevice);
  EXPECT_EQ(o.first.load_wait, 2'000'000 - 9 * (kLayer + kOnDevice));
}

// A request that needs no adapter waits where the serving loop stands still, and nowhere else.
TEST(LoadPath, RebuildMakesOthersWait) {
  for (const std::string path : {"pinned", "layers", "pageable", "rebuild"}) {
    const RunRecord record = run_prompts(10, path, 700'000, {kBaseModel, kA}, 1,
                                         [](const ReplicaView& view, StepPlan* out) {
                                           if (view.adapters().residency(kA) == Residency::kAbsent)
                                             out->load = {kA};
                                           for (const RequestId id : {kFirst, kSecond}) {
                                             if (view.request(id).phase() != Phase::kWaiting)
                                               continue;
                                             out->slices = {{id, 20}};
                                             return true;
                                           }
                                           return false;
                                         });
    EXPECT_EQ(record.step_log.at(0).timing.load_wait, path == "rebuild" ? 700'000 : 0) << path;
  }
}

// --- taking over ---

TEST(TakeOver, NeverLeavesAllLayersToTheHost) {
  const Outcome o = one_prompt(10, "pinned", 400'000, LoraSite::kHost);
  EXPECT_EQ(o.first.host_layers, 10);
  EXPECT_EQ(o.first.load_wait, 0);
  // Results take twice as long in the layers that begin before the load has ended: those at 0, 170,
  // 340, each of which moves its end by 10 us, to 430.
  EXPECT_EQ(o.loaded, 430'000);
  EXPECT_EQ(o.first_token, 10 * (kLayer + kOnHost) + 3 * kResults);
}

TEST(TakeOver, LoadedFromTheFirstLayerThatBeginsAfterTheLoad) {
  const Outcome o = one_prompt(10, "pinned", 400'000, LoraSite::kHost, TakeOver::kLoaded);
  EXPECT_EQ(o.loaded, 430'000);
  EXPECT_EQ(o.first.host_layers, 3);
  EXPECT_EQ(o.first_token, 3 * (kLayer + kOnHost + kResults) + 7 * (kLayer + kOnDevice));
}

TEST(TakeOver, ALoadThatOutlastsTheStepLeavesAllToTheHost) {
  const Outcome o = one_prompt(10, "pinned", 5'000'000, LoraSite::kHost, TakeOver::kLoaded);
  EXPECT_EQ(o.first.host_layers, 10);
  EXPECT_EQ(o.first_token, 10 * (kLayer + kOnHost + kResults));
  EXPECT_EQ(o.loaded, 5'000'000 + 10 * kResults);
}

// Sixteen layers in the order 8 to 15, 0 to 7, 85 us each: the second group of eight is there long
// before the step comes to it, the first is not when the step leaves it.
TEST(TakeOver, LayersMoveOverInGroupsAsTheyCome) {
  const TimeNs load = 16 * 85'000;
  const Outcome loaded = one_prompt(16, "pageable", load, LoraSite::kHost, TakeOver::kLoaded);
  const Outcome layers = one_prompt(16, "pageable", load, LoraSite::kHost, TakeOver::kLayers);
  EXPECT_EQ(loaded.first.host_layers, 9);
  EXPECT_EQ(layers.first.host_layers, 8);
  EXPECT_LT(layers.first_token, loaded.first_token);
  // One copy has no layers that come before others.
  EXPECT_EQ(one_prompt(16, "pinned", load, LoraSite::kHost, TakeOver::kLayers).first.host_layers,
            9);
}

// Within a group the step moves over when its last layer has come.
TEST(TakeOver, AGroupIsTakenOverWithinItself) {
  const Outcome o = one_prompt(16, "layers", 16 * 40'000, LoraSite::kHost, TakeOver::kLayers);
  // Every layer of the host takes 170 us and moves the end by 10: 640 + 10 l <= 170 l at l = 4.
  EXPECT_EQ(o.first.host_layers, 4);
}

TEST(TakeOver, AnAdapterThatIsThereIsTheDevicesFromTheStart) {
  const RunRecord record =
      run_prompts(10, "pinned", 1000, {kA}, 3, [](const ReplicaView& view, StepPlan* out) {
        const RequestView& r = view.request(kFirst);
        if (r.phase() == Phase::kDone) return false;
        if (view.adapters().residency(kA) == Residency::kAbsent) out->load = {kA};
        if (r.generated() > 0) out->take_over = TakeOver::kLoaded;
        out->slices = {{kFirst, r.pending(), LoraSite::kHost}};
        return true;
      });
  EXPECT_EQ(record.step_log.at(0).timing.host_layers, 10);
  EXPECT_EQ(record.step_log.at(1).timing.host_layers, 0);
  EXPECT_EQ(record.step_log.at(1).timing.busy(), 10 * (kLayer + kOnDevice));
}

// --- what is refused ---

TEST(LoadPath, IsRefusedWhereItsCostIsUnknown) {
  const test::LinearCost cost;
  EXPECT_EQ(cost.no_load_path(LoadPath::kPinned), nullptr);
  for (const LoadPath path : {LoadPath::kLayers, LoadPath::kPageable, LoadPath::kRebuild}) {
    EXPECT_THAT(cost.no_load_path(path), HasSubstr("pinned"));
  }
  VirtualTimeline timeline;
  const auto twin = make_twin_backend(&timeline, &cost);
  ReplicaLayout layout;
  const int device = 0;
  const UnitModel model;
  layout.devices = {&device, 1};
  layout.models = {&model, 1};
  layout.load_path = LoadPath::kRebuild;
  EXPECT_THROW(twin->attach(ReplicaId{}, layout), SpecError);
}

}  // namespace
}  // namespace servelab

// Rank 0 and a worker: what the worker computes is what rank 0 would have computed, and one that
// is silent or holds other adapters ends the group with a message.
#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/remote_device.h"
#include "tests/unit/backend/rank_group_testing.h"

namespace servelab::ranks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelConfig kModel = test::small_model();

std::shared_ptr<const LoraWeights> adapter(const char* name, int rank, std::uint64_t seed) {
  return random_adapter(kModel, name, rank, {"q", "v", "o", "up"}, seed);
}

struct Outcome {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const Outcome&) const = default;
};

// Two prompts at once, the second one with an adapter.
Outcome step(Device* device, AdapterId adapter, Exec exec = Exec::kUnmerged,
             std::size_t context = 0, const std::vector<BlockIndex>& second = {4, 5, 6, 7}) {
  DeviceJob job;
  job.mode.exec = exec;
  job.mode.kernel = LoraKernel::kSgmv;
  job.sampling = {0.8, 0.95, 3};
  job.sequences = {test::sequence(test::prompt(kModel, 9, 1), 0, {0, 1, 2}),
                   test::sequence(test::prompt(kModel, 12, 2), context, second, adapter)};
  job.sequences[0].draw = 5;
  job.sequences[1].draw = 6;
  const DeviceResult result = test::run_job(device, job);
  return {result.sampled, result.logits};
}

// A command on the loads' connection, behind rank 0's back.
void tell(RankGroup* group, Message kind, const LoadRequest& request,
          const LoraWeights* content = nullptr) {
  group->peer(1).call(Purpose::kLoads, kind, encode(request), group->deadline(),
                      [&](Connection* to) {
                        if (content != nullptr) send_content(*content, to, group->deadline());
                      });
}

TEST_F(RankGroupTest, AWorkerComputesWhatRank0Would) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const auto local = small_device();
  for (int round = 0; round < 2; ++round) {  // one device after the other
    RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
    const auto held = adapter("held", 8, 1);
    const auto sent = adapter("sent", 4, 2);
    remote.hold({test::nth(0), 8}, held);
    for (const auto& lora : {held, sent, held}) {
      const AdapterId id = test::nth(lora == held ? 0 : 1);
      for (Device* const device : {local.get(), static_cast<Device*>(&remote)}) {
        test::load(device, id, lora, 8);
      }
      const Outcome expected = step(local.get(), id);
      EXPECT_EQ(step(&remote, id), expected);
      EXPECT_NE(step(local.get(), kBaseModel), expected);
      test::merge(&remote, id);
      test::merge(local.get(), id);
      EXPECT_EQ(step(&remote, kBaseModel, Exec::kMerged),
                step(local.get(), kBaseModel, Exec::kMerged));
      test::unmerge(&remote);
      test::unmerge(local.get());
      EXPECT_EQ(step(&remote, kBaseModel), step(local.get(), kBaseModel));
      remote.evict(id);
      local->evict(id);
    }
  }
  group.goodbye(7);
  EXPECT_EQ(end_of(0), "exit 7");
  EXPECT_EQ(rank_0_.first(), "");
  EXPECT_EQ(worker_.first(), "");
}

TEST_F(RankGroupTest, ContextsAreSwappedInTheWorkersMemory) {
  start(1, 2);
  RankGroup group(group_settings(2));
  {
    RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
    const Outcome expected = step(&remote, kBaseModel);
    test::move(&remote, {test::out_of({4, 5, 6}, 12), test::out_of({4}, 3, 1)});
    test::move(&remote, {test::into({20, 21, 22}, 12)});
    EXPECT_EQ(step(&remote, kBaseModel, Exec::kUnmerged, 11, {20, 21, 22}), expected);
  }
  group.goodbye(0);
  EXPECT_EQ(end_of(0), "exit 0");
}

// Every rank checks that it has the batch's adapters.
TEST_F(RankGroupTest, ALostAdapterIsNamedAndEndsTheGroup) {
  start(1, 2);
  RankGroup group(group_settings(2));
  RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
  test::load(&remote, test::nth(1), adapter("french", 8, 1));
  step(&remote, test::nth(1));
  tell(&group, Message::kEvict, {{test::nth(1)}, true, 0, ""});
  EXPECT_THAT(error_of([&] { step(&remote, test::nth(1)); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has no adapter 1, which the batch uses")));
  EXPECT_THAT(rank_0_.first(), HasSubstr("has no adapter 1"));
  EXPECT_EQ(end_of(0), "exit 1");
  EXPECT_THAT(worker_.first(), HasSubstr("rank 0 ended the run: "));
}

// Also where the batch uses none of those that differ.
TEST_F(RankGroupTest, OtherChangesOfAdaptersAreNoticed) {
  start(1, 2);
  RankGroup group(group_settings(2));
  RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
  test::load(&remote, test::nth(1), adapter("french", 8, 1));
  step(&remote, kBaseModel);
  tell(&group, Message::kEvict, {{test::nth(1)}, true, 0, ""});
  EXPECT_THAT(error_of([&] { step(&remote, kBaseModel); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has changed its adapters 2 times, and rank 0 "
                                                     "1 times")));
}

TEST_F(RankGroupTest, AnAdapterThatRank0DidNotLoadIsNoticed) {
  start(1, 2);
  RankGroup group(group_settings(2));
  RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
  const auto other = adapter("german", 8, 2);
  tell(&group, Message::kLoad, {{test::nth(1)}, false, content_digest(*other), "german"},
       other.get());
  EXPECT_THAT(error_of([&] { step(&remote, test::nth(1)); }),
              HasSubstr("has changed its adapters 1 times, and rank 0 0 times"));
}

TEST_F(RankGroupTest, ContentThatIsNotRank0sIsRefused) {
  start(1, 2);
  RankGroup group(group_settings(2));
  RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
  const auto lora = adapter("french", 8, 1);
  EXPECT_THAT(error_of([&] {
                tell(&group, Message::kLoad,
                     {{test::nth(1)}, false, content_digest(*lora) + 1, "french"}, lora.get());
              }),
              HasSubstr("adapter 'french' is not what rank 0 has: its digest differs"));
}

TEST(RankStates, OtherAdaptersAfterAsManyChangesAreNoticed) {
  StateLog log;
  log.add(test::nth(1), 11);
  log.add(test::nth(1), 0);
  const AdapterState one = next_state({}, test::nth(1), 11);
  log.compare(one);
  log.compare(next_state(one, test::nth(1), 0));
  log.add(test::nth(1), 11);
  EXPECT_THAT(error_of([&] {
                log.compare(next_state(next_state(one, test::nth(1), 0), test::nth(1), 12));
              }),
              HasSubstr("holds other adapters than rank 0 after 3 loads and evictions"));
}

TEST_F(RankGroupTest, AWorkersSignalReachesRank0) {
  std::promise<int> signal;
  GroupSettings settings = group_settings(2);
  settings.on_signal = [&](int number) { signal.set_value(number); };
  start(1, 2);
  RankGroup group(settings);
  stop_ = 15;
  EXPECT_EQ(signal.get_future().get(), 15);
  group.goodbye(143);
  EXPECT_EQ(end_of(0), "exit 143");
}

// A worker that neither answers nor ends.
TEST_F(RankGroupTest, ASilentWorkerEndsTheGroup) {
  WorkerSettings settings = worker_settings(1, 2);
  std::promise<void> let_go;
  settings.device.open = [done = let_go.get_future().share()](const OpenRank&) {
    class Stuck final : public Device {
     public:
      explicit Stuck(std::shared_future<void> done)
          : Device(kModel, test::kSmallLimits), done_(std::move(done)) {}
      const char* unsupported(const StepPlan&) const override { return nullptr; }
      void hold(const Load&, std::shared_ptr<const LoraWeights>) override {}
      void load(const Load&, std::shared_ptr<const LoraWeights>) override {}
      void wait(AdapterId) override {}
      void evict(AdapterId) override {}
      void run(const DeviceJob&, DeviceResult*) override { done_.wait(); }

     private:
      std::shared_future<void> done_;
    };
    return std::make_unique<Stuck>(done);
  };
  start(settings);
  RankGroup group(group_settings(2));
  RemoteDevice remote(&group, &group.peer(1), kModel, open_one());
  const auto began = Clock::now();
  EXPECT_THAT(error_of([&] { step(&remote, kBaseModel); }), HasSubstr("does not answer"));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  EXPECT_THAT(rank_0_.first(), AllOf(HasSubstr("rank 1 ("), HasSubstr("does not answer")));
  let_go.set_value();
}

}  // namespace
}  // namespace servelab::ranks

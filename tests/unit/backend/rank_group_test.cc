// Rank 0 and a worker: what the worker computes is what rank 0 would have computed, and one that
// is silent or holds other adapters ends the group with a message.
#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/remote_executor.h"
#include "engine/core/rng.h"
#include "tests/unit/backend/rank_group_testing.h"

namespace servelab::ranks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::int32_t> prompt(int tokens, std::uint64_t seed) {
  RngStream rng(seed, "prompt");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(rng.below(50)));
  return ids;
}

struct Outcome {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const Outcome&) const = default;
};

// Two prompts at once, the second one with an adapter.
Outcome step(Executor* executor, const DeviceAdapter* adapter, Exec exec = Exec::kUnmerged,
             int context = 0, const std::vector<BlockIndex>& second = {4, 5, 6, 7}) {
  const auto a = prompt(9, 1);
  const auto b = prompt(12, 2);
  const std::vector<BlockIndex> first = {0, 1, 2};
  std::vector<SequenceSlice> slices(2);
  slices[0] = {0, a, first, nullptr, true, 5};
  slices[1] = {context, std::span(b).subspan(static_cast<std::size_t>(context)),
               second,  exec == Exec::kMerged ? nullptr : adapter,
               true,    6};
  Outcome outcome;
  executor->run(slices, {exec, LoraKernel::kSgmv}, {0.8, 0.95, 3}, &outcome.tokens);
  const auto logits = executor->logits();
  outcome.logits.assign(logits.begin(), logits.end());
  return outcome;
}

TEST_F(RankGroupTest, AWorkerComputesWhatRank0Would) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const auto local = cpu_executor();
  const ModelConfig model = small_model();
  for (int round = 0; round < 2; ++round) {  // one executor after the other
    RemoteExecutor remote(&group, &group.peer(1), model, open_one());
    EXPECT_EQ(remote.kv_bytes_per_token(), local->kv_bytes_per_token());
    const std::vector<std::string> targets = {"q", "v", "o", "up"};
    const auto held = random_adapter(model, "held", 8, targets, 1);
    const auto sent = random_adapter(model, "sent", 4, targets, 2);
    remote.hold_on_host(held, 8);
    for (const auto& lora : {held, sent, held}) {
      const auto here = local->pack_adapter(*lora, 8);
      const auto there = remote.pack_adapter(*lora, 8);
      there->wait();
      EXPECT_EQ(there->rank(), here->rank());
      EXPECT_EQ(there->bytes(), here->bytes());
      const Outcome expected = step(local.get(), here.get());
      EXPECT_EQ(step(&remote, there.get()), expected);
      EXPECT_NE(step(local.get(), nullptr), expected);
      remote.merge(*there);
      local->merge(*here);
      EXPECT_EQ(step(&remote, nullptr, Exec::kMerged), step(local.get(), nullptr, Exec::kMerged));
      remote.unmerge();
      local->unmerge();
      EXPECT_EQ(step(&remote, nullptr), step(local.get(), nullptr));
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
  const ModelConfig model = small_model();
  {
    RemoteExecutor remote(&group, &group.peer(1), model, open_one());
    const Outcome expected = step(&remote, nullptr);
    {
      const HostMemory host = remote.host_memory(remote.context_bytes(12));
      const HostMemory unused = remote.host_memory(remote.context_bytes(3));
      remote.copy_out(std::vector<BlockIndex>{4, 5, 6}, 12, host.get());
      remote.finish_copies();
      remote.copy_in(std::vector<BlockIndex>{20, 21, 22}, 12, host.get());
    }
    EXPECT_EQ(step(&remote, nullptr, Exec::kUnmerged, 11, {20, 21, 22}), expected);
  }
  group.goodbye(0);
  EXPECT_EQ(end_of(0), "exit 0");
}

// Every rank checks that it has the batch's adapters.
TEST_F(RankGroupTest, ALostAdapterIsNamedAndEndsTheGroup) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const ModelConfig model = small_model();
  RemoteExecutor remote(&group, &group.peer(1), model, open_one());
  const auto lora = random_adapter(model, "french", 8, {"q"}, 1);
  const auto there = remote.pack_adapter(*lora, 8);
  step(&remote, there.get());
  WireWriter handle;  // behind rank 0's back
  handle.u32(1);
  group.peer(1).call(Purpose::kLoads, Message::kDrop, handle, group.step_deadline());
  EXPECT_THAT(error_of([&] { step(&remote, there.get()); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has no adapter in slot 1")));
  EXPECT_THAT(rank_0_.first(), HasSubstr("has no adapter in slot 1"));
  EXPECT_EQ(end_of(0), "exit 1");
  EXPECT_THAT(worker_.first(), HasSubstr("rank 0 ended the run: "));
}

// Also where the batch uses none of those that differ.
TEST_F(RankGroupTest, OtherChangesOfAdaptersAreNoticed) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const ModelConfig model = small_model();
  RemoteExecutor remote(&group, &group.peer(1), model, open_one());
  const auto lora = random_adapter(model, "french", 8, {"q"}, 1);
  const auto there = remote.pack_adapter(*lora, 8);
  step(&remote, nullptr);
  WireWriter handle;
  handle.u32(1);
  group.peer(1).call(Purpose::kLoads, Message::kDrop, handle, group.step_deadline());
  EXPECT_THAT(error_of([&] { step(&remote, nullptr); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has changed its adapters 2 times, and rank 0 "
                                                     "1 times")));
}

TEST_F(RankGroupTest, AnotherAdapterInTheSameSlotIsNoticed) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const ModelConfig model = small_model();
  RemoteExecutor remote(&group, &group.peer(1), model, open_one());
  const auto lora = random_adapter(model, "french", 8, {"q"}, 1);
  const auto other = random_adapter(model, "german", 8, {"q"}, 2);
  const auto there = remote.pack_adapter(*lora, 8);
  WireWriter handle;
  handle.u32(1);
  group.peer(1).call(Purpose::kLoads, Message::kDrop, handle, group.step_deadline());
  PackRequest request = {1, 8, false, false, content_digest(*other), "german"};
  group.peer(1).call(Purpose::kLoads, Message::kPack, encode(request), group.step_deadline(),
                     [&](Connection* to) { send_content(*other, to, group.step_deadline()); });
  EXPECT_THAT(error_of([&] { step(&remote, there.get()); }),
              HasSubstr("has adapter 'german' in slot 1, where the batch uses another one"));
}

TEST_F(RankGroupTest, ContentThatIsNotRank0sIsRefused) {
  start(1, 2);
  RankGroup group(group_settings(2));
  const ModelConfig model = small_model();
  RemoteExecutor remote(&group, &group.peer(1), model, open_one());
  const auto lora = random_adapter(model, "french", 8, {"q"}, 1);
  const PackRequest request = {1, 8, false, false, content_digest(*lora) + 1, "french"};
  EXPECT_THAT(error_of([&] {
                group.peer(1).call(
                    Purpose::kLoads, Message::kPack, encode(request), group.step_deadline(),
                    [&](Connection* to) { send_content(*lora, to, group.step_deadline()); });
              }),
              HasSubstr("adapter 'french' is not what rank 0 has: its digest differs"));
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
    class Stuck final : public Executor {
     public:
      explicit Stuck(std::shared_future<void> done)
          : inner_(cpu_executor()), done_(std::move(done)) {}
      const ModelConfig& model() const override { return inner_->model(); }
      const ExecutorLimits& limits() const override { return inner_->limits(); }
      const char* unsupported(const StepPlan&) const override { return nullptr; }
      void enter_thread() const override {}
      std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights&, int) override { return {}; }
      std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights&) override { return {}; }
      void hold_on_host(std::shared_ptr<const LoraWeights>, int) override {}
      std::unique_ptr<DeviceAdapter> host_adapter(std::shared_ptr<const LoraWeights>) override {
        return {};
      }
      void finish_copies() override {}
      StepParts run(std::span<const SequenceSlice>, const RunMode&, const SamplingOptions&,
                    std::vector<std::int32_t>*) override {
        done_.wait();
        return {};
      }
      std::span<const float> logits() override { return {}; }
      void merge(const DeviceAdapter&) override {}
      void unmerge() override {}
      Bytes kv_bytes_per_token() const override { return 1; }
      std::size_t context_bytes(int) const override { return 1; }
      HostMemory host_memory(std::size_t bytes) override { return inner_->host_memory(bytes); }
      void copy_out(std::span<const BlockIndex>, int, std::byte*) override {}
      void copy_in(std::span<const BlockIndex>, int, const std::byte*) override {}

     private:
      std::unique_ptr<Executor> inner_;
      std::shared_future<void> done_;
    };
    return std::make_unique<Stuck>(done);
  };
  start(settings);
  RankGroup group(group_settings(2));
  const ModelConfig model = small_model();
  RemoteExecutor remote(&group, &group.peer(1), model, open_one());
  const auto began = Clock::now();
  EXPECT_THAT(error_of([&] { step(&remote, nullptr); }), HasSubstr("does not answer"));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  EXPECT_THAT(rank_0_.first(), AllOf(HasSubstr("rank 1 ("), HasSubstr("does not answer")));
  let_go.set_value();
}

}  // namespace
}  // namespace servelab::ranks

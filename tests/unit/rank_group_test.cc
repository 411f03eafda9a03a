// Rank 0 and its workers over TCP, the workers as threads of the test and their device the CPU
// engine: what a worker computes is what rank 0 would have computed, and whoever does not belong,
// dies or disagrees ends the group with a message.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "engine/backend/cpu/executor.h"
#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/gathering.h"
#include "engine/backend/ranks/remote_executor.h"
#include "engine/backend/ranks/worker.h"
#include "engine/core/rng.h"
#include "tests/support/error_of.h"

namespace servelab::ranks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using test::error_of;

constexpr int kBlocks = 32;
constexpr int kBlockTokens = 4;

ModelConfig small_model() {
  ModelConfig model;
  model.name = "small";
  model.layers = 2;
  model.hidden = 64;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 32;
  model.ffn = 96;
  model.vocab = 50;
  model.max_context_tokens = kBlocks * kBlockTokens;
  model.source = "test";
  return model;
}

// A port that was free a moment ago.
int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ::bind(socket.number(), reinterpret_cast<sockaddr*>(&at), size);
  ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.sin_port);
}

std::unique_ptr<Executor> cpu_executor() {
  CpuExecutorOptions options;
  static_cast<ExecutorLimits&>(options) = {kBlocks, kBlockTokens, 8, 64};
  options.type = kernels::DType::kF32;
  options.isa = kernels::best_isa();
  const ModelConfig model = small_model();
  return std::make_unique<CpuExecutor>(model, *random_weights(model, 7), options);
}

OpenRank open_one() {
  OpenRank open;
  open.model = "small";
  open.plan.limits = {kBlocks, kBlockTokens, 8, 64};
  return open;
}

struct Failures {
  std::mutex mutex;
  std::vector<std::string> texts;
  Failed note() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    };
  }
  std::string first() {
    const std::lock_guard lock(mutex);
    return texts.empty() ? "" : texts.front();
  }
};

class RankGroupTest : public ::testing::Test {
 protected:
  ~RankGroupTest() override {
    for (auto& worker : workers_) worker.wait();
  }

  GroupSettings group_settings(int ranks) {
    GroupSettings settings;
    settings.at = {"127.0.0.1", port_};
    settings.ranks = ranks;
    settings.identity = {"this build", "these models"};
    settings.patience = std::chrono::milliseconds(1500);
    settings.on_failure = rank_0_.note();
    return settings;
  }

  WorkerSettings worker_settings(int rank, int ranks) {
    WorkerSettings settings;
    settings.at = {"127.0.0.1", port_};
    settings.rank = rank;
    settings.ranks = ranks;
    settings.identity = {"this build", "these models"};
    settings.patience = std::chrono::milliseconds(1500);
    settings.device.prepare = [](const OpenRank&) {};
    settings.device.name_group = [] { return "a group"; };
    settings.device.open = [](const OpenRank&) { return cpu_executor(); };
    settings.device.part = [](const OpenRank&) { return small_model(); };
    settings.stop = &stop_;
    settings.on_failure = worker_.note();
    return settings;
  }

  // Serves in the background: "exit N", or the error.
  void start(const WorkerSettings& settings) {
    workers_.push_back(std::async(std::launch::async, [settings] {
      std::string end;
      const std::string error =
          error_of([&] { end = "exit " + std::to_string(serve_rank(settings)); });
      return error.empty() ? end : error;
    }));
  }
  void start(int rank, int ranks) { start(worker_settings(rank, ranks)); }
  std::string end_of(std::size_t worker) { return workers_[worker].get(); }

  const int port_ = free_port();
  std::atomic<int> stop_{0};
  Failures rank_0_, worker_;
  std::vector<std::future<std::string>> workers_;
};

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
  slices[1] = {context, std::span(b).subspan(static_cast<std::size_t>(context)), second,
               exec == Exec::kMerged ? nullptr : adapter, true, 6};
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
      const std::vector<LinearLayer> layers = {LinearLayer::kQ, LinearLayer::kV, LinearLayer::kO,
                                               LinearLayer::kUp};
      remote.reserve_merge(layers);
      remote.merge(*there);
      local->reserve_merge(layers);
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
  EXPECT_THAT(error_of([&] { step(&remote, nullptr); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has changed its adapters 2 times")));
  EXPECT_THAT(error_of([&] { step(&remote, there.get()); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has no adapter in slot 1")));
  EXPECT_THAT(rank_0_.first(), HasSubstr("has changed its adapters"));
  EXPECT_EQ(end_of(0), "exit 1");
  EXPECT_THAT(worker_.first(), HasSubstr("rank 0 ended the run: "));
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

TEST_F(RankGroupTest, RanksThatDoNotComeAreNamed) {
  start(2, 4);
  const auto began = Clock::now();
  EXPECT_THAT(error_of([&] { RankGroup group(group_settings(4)); }),
              AllOf(HasSubstr("ranks 1, 3 of 4 did not come to 127.0.0.1:"),
                    HasSubstr(" within 1 s; --ranks-timeout gives them longer")));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  EXPECT_THAT(end_of(0), AllOf(HasSubstr("rank 0 refused: "), HasSubstr("ranks 1, 3 of 4")));
}

TEST_F(RankGroupTest, AWorkerDoesNotWaitForEverForRank0) {
  start(1, 2);
  EXPECT_THAT(end_of(0), HasSubstr("rank 0 cannot be reached at 127.0.0.1:"));
}

TEST_F(RankGroupTest, WhoDoesNotBelongIsRefusedAndAllAreTold) {
  struct Case {
    std::function<void(WorkerSettings*)> change;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](WorkerSettings* w) { w->identity.build = "another build"; },
       "is of another build of servelab (another build, rank 0 is this build)"},
      {[](WorkerSettings* w) { w->identity.models = "others"; }, "read other models"},
      {[](WorkerSettings* w) { w->ranks = 5; }, "counts 5 ranks, and rank 0 3"},
      {[](WorkerSettings* w) { w->rank = 0; }, "is none of the ranks 1 to 2"},
      {[](WorkerSettings* w) { w->rank = 1; }, "is there twice: process "},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.says);
    workers_.clear();
    start(1, 3);
    WorkerSettings wrong = worker_settings(2, 3);
    each.change(&wrong);
    start(wrong);
    EXPECT_THAT(error_of([&] { RankGroup group(group_settings(3)); }), HasSubstr(each.says));
    const std::string first = end_of(0);
    const std::string second = end_of(1);
    EXPECT_TRUE(first.find(each.says) != std::string::npos ||
                second.find(each.says) != std::string::npos)
        << first << "\n" << second;
    EXPECT_THAT(first + second, Not(HasSubstr("exit ")));
  }
}

// Connections that are not ours, or that say nothing, hold nobody up.
TEST_F(RankGroupTest, StrangersAreTurnedAway) {
  auto gathered = std::async(std::launch::async, [this] {
    return error_of([&] { RankGroup group(group_settings(2)); });
  });
  std::vector<std::unique_ptr<Connection>> strangers;
  const auto connect = [&]() -> Connection& {
    return *strangers.emplace_back(std::make_unique<Connection>(
        connect_to({"127.0.0.1", port_}, Clock::now() + std::chrono::seconds(1))));
  };
  connect();  // says nothing
  WireWriter text;
  text.text("GET / HTTP/1.1");
  connect().send('G', text);
  connect().send(static_cast<std::uint8_t>(Message::kHello), text);
  WireWriter large;
  large.bytes(std::vector<std::byte>(kMostHelloBytes + 1));
  connect().send(static_cast<std::uint8_t>(Message::kHello), large);
  Hello hello = {{"this build", "these models"}, 1, 2, Purpose::kSteps, 1, "here", 1};
  WireWriter old = encode(hello);
  std::vector<std::byte> bytes = old.data();
  bytes[4] = std::byte{99};  // the version
  WireWriter other_version;
  other_version.bytes(bytes);
  connect().send(static_cast<std::uint8_t>(Message::kHello), other_version);
  for (std::size_t i = 1; i < strangers.size(); ++i) {
    EXPECT_EQ(error_of([&] { strangers[i]->receive(Clock::now() + std::chrono::seconds(1)); }).substr(0, 20),
              "the connection ended") << i;
  }
  EXPECT_THAT(gathered.get(), HasSubstr("rank 1 of 2 did not come"));
}

TEST_F(RankGroupTest, AStopEndsTheWaiting) {
  stop_ = 15;
  GroupSettings settings = group_settings(2);
  settings.stop = &stop_;
  EXPECT_EQ(error_of([&] { RankGroup group(settings); }), "stopped");
  start(1, 2);
  EXPECT_EQ(end_of(0), "stopped");
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
      explicit Stuck(std::shared_future<void> done) : inner_(cpu_executor()), done_(std::move(done)) {}
      const ModelConfig& model() const override { return inner_->model(); }
      const ExecutorLimits& limits() const override { return inner_->limits(); }
      const char* unsupported(const StepPlan&) const override { return nullptr; }
      void enter_thread() const override {}
      std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights&, int) override { return {}; }
      std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights&) override { return {}; }
      StepParts run(std::span<const SequenceSlice>, const StepMode&, const SamplingOptions&,
                    std::vector<std::int32_t>*) override {
        done_.wait();
        return {};
      }
      std::span<const float> logits() override { return {}; }
      void merge(const DeviceAdapter&) override {}
      void unmerge() override {}
      void reserve_merge(std::span<const LinearLayer>) override {}
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

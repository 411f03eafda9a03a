// Workers of LoRA on the host: rounds of random shapes against the kernels themselves, and what
// happens when workers stop, die or never start.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "engine/backend/host_lora/team.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "tests/support/device_testing.h"
#include "tests/support/lora_workers.h"

namespace servelab {
namespace {

using host_lora::Group;
using host_lora::Job;
using host_lora::Rows;
using host_lora::Team;
using host_lora::TeamSettings;
using kernels::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMostRows = 64;
constexpr int kMostColumns = 512;
constexpr int kElement = 4;

TeamSettings settings(const HostLoraPlan& plan) {
  TeamSettings settings;
  settings.plan = plan;
  settings.isa = kernels::best_isa();
  settings.most_jobs = 32;
  settings.most_rows = kMostRows;
  settings.x_row_bytes = kMostColumns * kElement;
  settings.out_row_bytes = kMostColumns * kElement;
  return settings;
}

// Rounds over a small model's adapters, and what they should give.
class Rounds {
 public:
  explicit Rounds(const TeamSettings& settings) : team(settings), model_(test::small_model()) {
    for (const int rank : {4, 8, 16}) {
      const auto weights = random_adapter(model_, "a", rank, {"q", "k", "v", "down"},
                                          static_cast<std::uint64_t>(rank));
      adapters_.push_back(
          std::make_unique<PackedAdapter>(*weights, DType::kF32, 0, team.adapters()));
    }
  }

  // A round of random rows of all layers; `between(job)` before each job's x is there.
  void run(RngStream* rng, const std::function<void(int)>& between = {}) {
    std::vector<Group> groups;
    int row = 0;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      const auto count = static_cast<int>(rng->below(12)) + (i == 0 ? 1 : 0);
      if (count > 0) groups.push_back({adapters_[i].get(), row, count});
      row += count + static_cast<int>(rng->below(3));
    }
    const int q = model_.heads * model_.head_dim;
    const int kv = model_.kv_heads * model_.head_dim;
    std::vector<Job> jobs;
    for (int layer = 0; layer < model_.layers; ++layer) {
      Job qkv{layer, model_.hidden, q + 2 * kv, 3, {}};
      qkv.target = {{{0, 0, q}, {1, q, kv}, {2, q + kv, kv}}};
      jobs.push_back(qkv);
      // One matrix that no adapter changes, and one that all do.
      Job down{layer, model_.ffn, model_.hidden, 1, {}};
      down.target[0] = {static_cast<int>(LinearLayer::kDown), 0, model_.hidden};
      jobs.push_back(down);
      Job up{layer, model_.hidden, model_.ffn, 1, {}};
      up.target[0] = {static_cast<int>(LinearLayer::kUp), 0, model_.ffn};
      jobs.push_back(up);
    }
    const Rows rows{DType::kF32, DType::kF32, 0, 0, rng->below(2) == 0};
    team.begin(rows, groups, jobs);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const Job& job = jobs[i];
      auto* const x = reinterpret_cast<float*>(team.x());
      for (int at = 0; at < row * job.k; ++at) x[at] = static_cast<float>(rng->uniform()) - 0.5f;
      if (between) between(static_cast<int>(i));
      team.post(static_cast<int>(i));
      ASSERT_TRUE(team.wait(static_cast<int>(i)));
      for (const Group& group : groups) expect_rows(rows, job, group, x);
    }
    team.finish();
  }

  Team team;

 private:
  void expect_rows(const Rows& rows, const Job& job, const Group& group, const float* x) const {
    for (int t = 0; t < job.targets; ++t) {
      const host_lora::Target& target = job.target[static_cast<std::size_t>(t)];
      const auto* const got = reinterpret_cast<const float*>(team.out());
      std::vector<float> expected(static_cast<std::size_t>(group.count * target.columns), 9);
      host_lora::compute(
          kernels::ops(kernels::best_isa()), rows, target,
          group.adapter->find(job.layer, static_cast<LinearLayer>(target.layer_kind)),
          reinterpret_cast<const std::byte*>(x + group.begin * job.k), job.k, job.k, group.count,
          reinterpret_cast<std::byte*>(expected.data()), target.columns);
      for (int r = 0; r < group.count; ++r) {
        ASSERT_EQ(std::memcmp(got + (group.begin + r) * job.n + target.column,
                              expected.data() + r * target.columns,
                              static_cast<std::size_t>(target.columns) * kElement),
                  0)
            << "layer " << job.layer << ", target " << target.layer_kind << ", row " << r;
      }
    }
  }

  const ModelConfig model_;
  std::vector<std::unique_ptr<PackedAdapter>> adapters_;
};

HostLoraPlan processes(int workers, HostLoraTransport transport = HostLoraTransport::kShared) {
  return test::lora_workers(HostLoraBy::kProcesses, workers, transport);
}

TEST(HostLoraTeam, RoundsOfRandomShapesAreTheKernelsOwnBits) {
  std::vector<HostLoraPlan> plans = {processes(1), processes(3),
                                     processes(2, HostLoraTransport::kSockets)};
  for (const int workers : {1, 2, 5}) {
    plans.push_back(test::lora_workers(HostLoraBy::kThreads, workers));
  }
  for (const HostLoraPlan& plan : plans) {
    Rounds rounds(settings(plan));
    RngStream rng(1, "rounds");
    for (int i = 0; i < 60; ++i) rounds.run(&rng);
    const HostWork work = rounds.team.take_work();
    EXPECT_EQ(work.lost, 0);
    EXPECT_EQ(work.recomputed, 0);
    EXPECT_GT(work.compute, 0);
  }
}

TEST(HostLoraTeam, TheCallerMayHelpAndMayBeAlone) {
  for (const int workers : {0, 2}) {
    TeamSettings helped = settings(test::lora_workers(HostLoraBy::kThreads, workers));
    helped.caller_helps = true;
    helped.wakes = false;
    Rounds rounds(helped);
    RngStream rng(2, "rounds");
    for (int i = 0; i < 30; ++i) rounds.run(&rng);
  }
}

// Whenever workers are killed, no row is lost or different, and others take their places.
TEST(HostLoraTeam, KilledAt20RandomMomentsNothingIsLostOrDifferent) {
  for (const auto transport : {HostLoraTransport::kShared, HostLoraTransport::kSockets}) {
    Rounds rounds(settings(processes(2, transport)));
    RngStream rng(3, "kills");
    std::atomic<bool> over{false};
    std::set<int> killed;
    std::thread killer([&] {
      RngStream moments(4, "kills");
      for (int kills = 0; kills < 20;) {
        const std::set<int> alive = test::lora_workers_of(::getpid());
        if (!alive.empty()) {
          const auto which = static_cast<std::ptrdiff_t>(moments.below(alive.size()));
          const int worker = *std::next(alive.begin(), which);
          ::kill(worker, SIGKILL);
          killed.insert(worker);
          ++kills;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(moments.below(8000)));
      }
      over = true;
    });
    int lost = 0;
    while (!over) {
      rounds.run(&rng);
      lost += rounds.team.take_work().lost;
    }
    killer.join();
    EXPECT_GT(lost, 0);
    // Others are there for all of them in the end.
    const auto others = [&] {
      int count = 0;
      for (const int worker : test::lora_workers_of(::getpid()))
        if (!killed.contains(worker)) ++count;
      return count;
    };
    int last = 1;
    for (int i = 0; i < 5000 && (last > 0 || others() < 2); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      rounds.run(&rng);
      last = rounds.team.take_work().lost;
    }
    EXPECT_EQ(last, 0);
    EXPECT_EQ(others(), 2);
  }
  EXPECT_TRUE(test::lora_workers_of(::getpid()).empty());
}

// A worker that is stopped does not answer: it is ended, its part computed, and another begun.
TEST(HostLoraTeam, AWorkerThatStopsIsReplaced) {
  for (const auto transport : {HostLoraTransport::kShared, HostLoraTransport::kSockets}) {
    HostLoraPlan plan = processes(2, transport);
    plan.patience = std::chrono::milliseconds(200);
    Rounds rounds(settings(plan));
    RngStream rng(5, "stops");
    const std::set<int> before = test::lora_workers_of(::getpid());
    rounds.run(&rng, [&](int job) {
      if (job == 4) ::kill(*before.begin(), SIGSTOP);
    });
    const HostWork work = rounds.team.take_work();
    EXPECT_EQ(work.lost, 1);
    EXPECT_GT(work.recomputed, 0);
    for (int i = 0; i < 5000 && test::lora_workers_of(::getpid()).size() < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(test::lora_workers_of(::getpid()).contains(*before.begin()));
    rounds.run(&rng);
    EXPECT_EQ(rounds.team.take_work().lost, 0);
  }
}

// Dead before its signal, and between that and its reply: its sleeping is what leaves the time.
TEST(HostLoraTeam, AWorkerThatDiesBetweenSignalAndReplyLeavesItsPartToTheCaller) {
  Rounds rounds(settings(processes(1)));
  RngStream rng(6, "deaths");
  int lost = 0;
  for (int i = 0; i < 6; ++i) {
    while (test::lora_workers_of(::getpid()).empty()) std::this_thread::yield();
    const int worker = *test::lora_workers_of(::getpid()).begin();
    rounds.run(&rng, [&](int job) {
      if (job != 3) return;
      ::kill(worker, SIGSTOP);  // it sees no signal any more
      std::thread([worker] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ::kill(worker, SIGKILL);
      }).detach();
    });
    lost += rounds.team.take_work().lost;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  EXPECT_GT(lost, 0);
}

TEST(HostLoraTeam, AnAbandonedRoundEndsAndTheNextIsARoundAgain) {
  for (const HostLoraPlan& plan : {processes(2), processes(2, HostLoraTransport::kSockets),
                                   test::lora_workers(HostLoraBy::kThreads, 3)}) {
    Rounds rounds(settings(plan));
    RngStream rng(7, "abandoned");
    rounds.run(&rng);
    const ModelConfig model = test::small_model();
    const auto weights = random_adapter(model, "a", 8, {"q"}, 1);
    const PackedAdapter adapter(*weights, DType::kF32, 0, rounds.team.adapters());
    Job job{0, model.hidden, model.hidden, 1, {}};
    job.target[0] = {0, 0, model.hidden};
    const std::vector<Job> jobs(4, job);
    const std::vector<Group> groups = {{&adapter, 0, 10}};
    rounds.team.begin({}, groups, jobs);
    rounds.team.post(0);
    ASSERT_TRUE(rounds.team.wait(0));
    rounds.team.post(1);
    std::thread other([&] { rounds.team.abandon(); });
    while (rounds.team.wait(2)) {
    }
    other.join();
    rounds.team.finish();
    for (int i = 0; i < 3; ++i) rounds.run(&rng);
  }
}

std::string refusal(const HostLoraPlan& plan) {
  try {
    const Team team(settings(plan));
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

TEST(HostLoraTeam, AWorkerThatDoesNotStartIsToldAndLeavesNothing) {
  HostLoraPlan plan = processes(2);
  plan.program = "/nowhere/servelab";
  EXPECT_THAT(refusal(plan), HasSubstr("runtime.host_lora: LoRA worker 0 could not be started: "
                                       "No such file or directory"));
  plan.program = "/bin/false";
  EXPECT_THAT(refusal(plan), HasSubstr("did not start: exit code 1"));
  EXPECT_TRUE(test::lora_workers_of(::getpid()).empty());
}

TEST(HostLoraTeam, WithoutSharedMemoryThereAreNoProcesses) {
  TeamSettings huge = settings(processes(1));
  const Bytes rows = 4 * machine_memory() / static_cast<Bytes>(2 * kMostColumns * kElement);
  huge.most_rows = static_cast<int>(std::min<Bytes>(rows, 1 << 30));
  try {
    const Team team(huge);
    FAIL() << "there is no such memory";
  } catch (const SpecError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("shared memory: no "),
                      HasSubstr(" MiB for what LoRA workers read and write: this machine has ")));
  }
  EXPECT_TRUE(test::lora_workers_of(::getpid()).empty());
}

}  // namespace
}  // namespace servelab

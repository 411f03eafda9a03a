// Migration never loses, duplicates or reorders a request's tokens, whatever a cluster policy and a
// replica policy do, and with every technique; a replica that is drained ends empty.
#include <gtest/gtest.h>

#include "tests/support/chaos.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kHistories = 100;
#else
constexpr std::uint64_t kHistories = 1000;
#endif

// A small workload on two to four replicas that are short of memory and of adapter slots.
struct History {
  test::WorkloadShape shape;
  test::RunOptions options;
};

History history(std::uint64_t seed, const std::string& technique) {
  RngStream rng(seed, "history");
  History h;
  h.shape.requests = 30;
  h.shape.adapters = 1 + static_cast<int>(rng.below(7));
  h.shape.max_prompt = 120;
  h.shape.max_output = 20;
  h.shape.rate_per_s = rng.below(2) == 0 ? 300 : 3000;
  h.shape.burst = rng.below(8) == 0;
  h.options.engine.limits.max_batch = 1 + static_cast<int>(rng.below(8));
  h.options.engine.limits.max_batch_tokens = rng.below(2) == 0 ? 64 : 256;
  h.options.engine.adapter_slots = 2 + static_cast<int>(rng.below(3));
  if (rng.below(2) == 0) h.options.engine.adapter_memory = AdapterMemory::kUnified;
  h.options.kv_blocks = 14 + static_cast<std::int64_t>(rng.below(20));  // one to four requests
  h.options.replicas = 2 + static_cast<int>(rng.below(3));
  const TimeNs delays[] = {0, 1'000, 1'000'000, 10'000'000};
  h.options.migration_delay = delays[rng.below(4)];
  h.options.record.token_times = true;
  h.options.technique = technique;
  return h;
}

// `technique` empty: replica policies that do anything.
History history_with(std::uint64_t seed, const std::string& technique) {
  History h = history(seed, technique.empty() ? "template" : technique);
  if (technique.empty()) {
    h.options.replica_policy = [next = seed * 16]() mutable {
      return std::make_unique<test::ChaosReplica>(next++);
    };
  }
  return h;
}

std::string named(std::uint64_t seed, const std::string& technique) {
  return "seed " + std::to_string(seed) + " with " +
         (technique.empty() ? "random replica policies" : technique);
}

// Half of them the empty name.
std::vector<std::string> replica_policies() {
  std::vector<std::string> names = Registry<Technique>::instance().names();
  names.insert(names.begin(), names.size(), "");
  return names;
}

class Histories : public ::testing::Test {
 protected:
  void run(std::uint64_t seed, const std::string& technique, std::int64_t max_waiting = 0) {
    SCOPED_TRACE(named(seed, technique));
    History h = history_with(seed, technique);
    if (seed % 4 == 0) {
      h.options.repository_copies = 1 + static_cast<int>(seed / 4) % h.options.replicas;
    }
    h.options.max_waiting = max_waiting;
    h.options.when_full = seed % 2 == 0 ? WhenFull::kWait : WhenFull::kReject;
    test::ClusterNotes notes;
    h.options.cluster_policy = [&] { return std::make_unique<test::ChaosCluster>(seed, &notes); };
    const Workload workload = test::make_workload(h.shape, seed);
    RunRecord record;
    ASSERT_NO_THROW(record = test::run(workload, h.options));
    EXPECT_EQ(test::history_violation(workload, record, notes), "");
    migrations_ += record.cluster.migrations;
    failures_ += record.cluster.failures;
    held_back_ += std::max<std::int64_t>(0, record.cluster.held_back);
    turned_away_ += std::max<std::int64_t>(0, record.cluster.turned_away);
    looks_ += notes.looks;
    for (const EventRecord& event : record.events) {
      ++events_[static_cast<std::size_t>(event.code)];
    }
    for (const RequestRecord& r : record.requests)
      finished_ += r.status == RequestStatus::kFinished;
  }

  std::int64_t migrations_ = 0, failures_ = 0, looks_ = 0, finished_ = 0;
  std::int64_t held_back_ = 0, turned_away_ = 0;
  std::array<std::int64_t, kEventCodeNames.size()> events_{};
};

TEST_F(Histories, ARandomClusterPolicyBreaksNoTechniqueAndLosesNoToken) {
  const std::vector<std::string> replicas = replica_policies();
  for (std::uint64_t seed = 0; seed < kHistories; ++seed) {
    run(seed, replicas[seed % replicas.size()]);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  // That all of it happened, and often.
  const auto n = static_cast<std::int64_t>(kHistories);
  const auto count = [&](EventCode code) { return events_[static_cast<std::size_t>(code)]; };
  EXPECT_GT(migrations_, 20 * n);
  EXPECT_GT(failures_, n);
  EXPECT_GT(looks_, 10 * n);
  EXPECT_GT(finished_, 25 * n);
  EXPECT_GT(count(EventCode::kPreempt), 20 * n);
  EXPECT_GT(count(EventCode::kEvict), 20 * n);
  EXPECT_GT(count(EventCode::kMerge), 5 * n);
}

// The same where few may wait at a replica, and the others are held back or turned away.
TEST_F(Histories, WhereFewMayWaitNothingBreaksEither) {
  const std::vector<std::string> replicas = replica_policies();
  for (std::uint64_t seed = 0; seed < kHistories / 5; ++seed) {
    run(seed, replicas[seed % replicas.size()], 1 + static_cast<std::int64_t>(seed / 2 % 3));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  const auto n = static_cast<std::int64_t>(kHistories) / 5;
  EXPECT_GT(migrations_, n);
  EXPECT_GT(held_back_, 2 * n);
  EXPECT_GT(turned_away_, 2 * n);
  EXPECT_EQ(events_[static_cast<std::size_t>(EventCode::kEnter)], held_back_);
}

// --- draining ---

struct DrainNotes {
  bool leaving = false;  // since then nothing is sent to it
  bool empty = false;    // since then nothing may be there
  int looks_while_empty = 0;
  int at_start = 0;  // requests there when it began
  std::string violation;
};

// Migrates at random for a while, then empties replica 0 and uses the others only.
class Draining final : public ClusterPolicy {
 public:
  Draining(std::uint64_t seed, DrainNotes* notes) : rng_(seed, "draining"), notes_(notes) {
    start_ = 4 + static_cast<int>(rng_.below(8));
  }
  ReplicaId route(const RoutedRequest&, const ClusterView& view) override {
    return notes_->leaving ? elsewhere(view) : anywhere(view);
  }
  bool loads_on_dispatch() const override { return true; }
  void on_finished(const FinishedRequest& request) override {
    if (notes_->empty && request.replica == ReplicaId{}) {
      notes_->violation = "a request finished at the drained replica";
    }
  }
  TimeNs rebalance_every() const override { return 1'000'000; }
  Rebalance rebalance(const ClusterView& view) override {
    const std::vector<RequestId> there = requests_at(view.replica(ReplicaId{}));
    if (++looks_ == start_) {
      notes_->leaving = true;
      notes_->at_start = static_cast<int>(there.size());
    }
    // Nothing sent there before can be on its way for longer than this.
    constexpr int kLongestWay = 12;
    if (looks_ > start_ + kLongestWay && there.empty()) notes_->empty = true;
    if (notes_->empty) check(view.replica(ReplicaId{}));
    Rebalance decision;
    decision.outcome = Rebalance::Outcome::kDecided;
    if (notes_->leaving) {
      for (const RequestId id : there) decision.migrations.push_back({id, elsewhere(view)});
    } else {
      for (const ReplicaView* replica : view.replicas()) {
        for (const RequestId id : requests_at(*replica)) {
          if (rng_.below(3) == 0) decision.migrations.push_back({id, anywhere(view)});
        }
      }
    }
    return decision;
  }

 private:
  static std::vector<RequestId> requests_at(const ReplicaView& view) {
    std::vector<RequestId> ids(view.waiting().begin(), view.waiting().end());
    ids.insert(ids.end(), view.running().begin(), view.running().end());
    ids.insert(ids.end(), view.swapped().begin(), view.swapped().end());
    return ids;
  }
  ReplicaId anywhere(const ClusterView& view) {
    return static_cast<ReplicaId>(rng_.below(view.replicas().size()));
  }
  ReplicaId elsewhere(const ClusterView& view) {
    return static_cast<ReplicaId>(1 + rng_.below(view.replicas().size() - 1));
  }
  void check(const ReplicaView& view) {
    ++notes_->looks_while_empty;
    std::int64_t pages = 0;
    const AdapterPool& pool = view.adapters();
    for (AdapterId id = pool.oldest(); id != kBaseModel; id = pool.newer(id)) {
      pages += pool.blocks_of(id);
      if (pool.users(id) > 0) notes_->violation = "an adapter has users";
    }
    if (!requests_at(view).empty()) notes_->violation = "requests came back";
    if (!view.active_adapters().empty()) notes_->violation = "an adapter has requests";
    if (view.kv().used_blocks() != pages) notes_->violation = "KV blocks are in use";
    if (view.steps_in_flight() > 0) notes_->violation = "a step runs";
  }

  RngStream rng_;
  DrainNotes* notes_;
  int start_ = 0;
  int looks_ = 0;
};

TEST(Draining, LeavesTheReplicaEmptyForGood) {
  const std::vector<std::string> replicas = replica_policies();
  std::int64_t drained = 0;
  for (std::uint64_t seed = 0; seed < 5 * replicas.size(); ++seed) {
    const std::string& technique = replicas[seed % replicas.size()];
    SCOPED_TRACE(named(seed, technique));
    History h = history_with(seed, technique);
    h.shape.requests = 60;
    h.shape.burst = false;
    h.shape.rate_per_s = 1000;
    DrainNotes notes;
    h.options.cluster_policy = [&] { return std::make_unique<Draining>(seed, &notes); };
    const Workload workload = test::make_workload(h.shape, seed);
    RunRecord record;
    ASSERT_NO_THROW(record = test::run(workload, h.options));
    EXPECT_EQ(test::violation(workload, record), "");
    EXPECT_EQ(notes.violation, "");
    EXPECT_GT(notes.looks_while_empty, 0) << "it was never seen empty";
    drained += notes.at_start;
  }
  EXPECT_GT(drained, static_cast<std::int64_t>(5 * replicas.size())) << "hardly anything to drain";
}

}  // namespace
}  // namespace servelab

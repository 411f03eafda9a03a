// What must hold of a cluster at any moment, and of the record of a run with migrations.
#include <algorithm>
#include <set>

#include "tests/support/chaos.h"
#include "tests/support/test_cluster.h"

namespace servelab::test {
namespace {

// Whether an adapter's, or a model's, waiting requests are found in the order of the queue.
template <class Id>
bool finds_waiting(const ReplicaView& view, Id of, const std::vector<RequestId>& waiting) {
  RequestId id = view.first_waiting(of);
  for (const RequestId expected : waiting) {
    if (id != expected) return false;
    id = view.next_waiting(id);
  }
  return id == kNoRequest;
}

// One replica's queues and counts; adds its requests to `seen`.
std::string disagreement_at(const ReplicaView& view, std::size_t models,
                            std::set<RequestId>* seen) {
  const std::string where = "replica " + std::to_string(index(view.id())) + ": ";
  std::int64_t blocks = 0;
  std::vector<int> users(view.adapter_table().size());
  std::vector<int> unfinished(view.adapter_table().size() + models);
  std::vector<std::vector<RequestId>> queued(unfinished.size());
  RankCounts waiting, all;
  std::string wrong;
  const auto take = [&](std::span<const RequestId> ids, Phase phase, bool sorted) {
    if (sorted && !std::is_sorted(ids.begin(), ids.end()))
      wrong = where + "a queue is out of order";
    for (const RequestId id : ids) {
      const RequestView& r = view.request(id);
      const std::string who = where + "request " + std::to_string(index(id));
      if (!seen->insert(id).second) wrong = who + " is in two queues";
      if (r.phase() != phase) wrong = who + " has another phase than its queue";
      if (phase != Phase::kRunning && (r.blocks() > 0 || r.in_step())) {
        wrong = who + " holds blocks, or runs, off the device";
      }
      if (phase == Phase::kWaiting && r.context() > 0) wrong = who + " waits with a context";
      const int rank = r.adapter() == kBaseModel ? 0 : view.adapter(r.adapter()).rank;
      all.add(rank);
      if (phase == Phase::kWaiting) waiting.add(rank);
      blocks += r.blocks();
      const bool base = r.adapter() == kBaseModel;
      if (phase == Phase::kRunning && !base) ++users[index(r.adapter())];
      const std::size_t at = base ? users.size() + index(r.model()) : index(r.adapter());
      ++unfinished[at];
      if (phase == Phase::kWaiting) queued[at].push_back(id);
    }
  };
  take(view.waiting(), Phase::kWaiting, true);
  take(view.swapped(), Phase::kSwapped, true);
  take(view.running(), Phase::kRunning, false);
  const auto same = [](const RankCounts& a, const RankCounts& b) {
    return a.requests() == b.requests() && a.sum() == b.sum() && a.max() == b.max();
  };
  if (!same(waiting, view.waiting_ranks()) || !same(all, view.unfinished_ranks())) {
    wrong = where + "the ranks of its requests are wrong";
  }
  const AdapterPool& pool = view.adapters();
  std::int64_t held = 0;
  for (AdapterId id = pool.oldest(); id != kBaseModel; id = pool.newer(id)) {
    blocks += pool.blocks_of(id);
    ++held;
  }
  if (held != pool.held()) wrong = where + "adapters were lost";
  if (blocks != view.kv().used_blocks()) wrong = where + "blocks in use have no owner";
  std::size_t active = 0;
  for (std::size_t i = 0; i < unfinished.size(); ++i) {
    const bool base = i >= users.size();
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(i));
    const AdapterQueue& queue =
        base ? view.requests_of(static_cast<ModelId>(i - users.size())) : view.requests_of(id);
    if (queue.count != unfinished[i]) wrong = where + "an adapter's or a model's queue is wrong";
    const auto model = static_cast<ModelId>(base ? i - users.size() : 0);
    if (!(base ? finds_waiting(view, model, queued[i]) : finds_waiting(view, id, queued[i]))) {
      wrong = where + "requests that wait are not found by their adapter or model";
    }
    if (i > users.size()) continue;
    if (!base && pool.users(id) != users[i]) wrong = where + "an adapter's users are wrong";
    active += unfinished[i] > 0 ? 1 : 0;
  }
  if (view.active_adapters().size() != active) wrong = where + "active adapters are wrong";
  return wrong;
}

struct Path {
  ReplicaId at = kNoReplica;
  int migrations = 0;
  int preemptions = 0;
  int ends = 0;
};

}  // namespace

std::string disagreement(const ClusterView& view) {
  std::set<RequestId> seen;
  for (const ReplicaView* replica : view.replicas()) {
    std::string wrong = disagreement_at(*replica, view.models().size(), &seen);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string history_violation(const Workload& workload, const RunRecord& record,
                              const ClusterNotes& notes) {
  if (!notes.violation.empty()) return notes.violation;
  std::string wrong = violation(workload, record);
  if (!wrong.empty()) return wrong;
  std::vector<Path> paths(workload.requests.size());
  for (const EventRecord& event : record.events) {
    const auto subject = static_cast<std::size_t>(event.subject);
    if (event.code == EventCode::kPreempt) ++paths[subject].preemptions;
    if (event.code == EventCode::kReject) {
      ++paths[subject].ends;
      if (record.requests[subject].replica != event.replica) return "rejected somewhere else";
    }
    if (event.code != EventCode::kMigrate) continue;
    Path& path = paths[subject];
    if (path.migrations++ > 0 && path.at != event.replica) return "left where it was not";
    path.at = static_cast<ReplicaId>(static_cast<std::uint32_t>(event.value));
    if (path.at == event.replica) return "migrated to where it was";
  }
  for (const FinishedRequest& end : notes.finished) {
    const RequestRecord& r = record.requests[index(end.id)];
    ++paths[index(end.id)].ends;
    // Of a technique that serves adapters as models, the model stands for the adapter.
    const AdapterId asked = workload.requests[index(end.id)].adapter;
    const bool is_same = end.adapter == asked || index(end.model) == index(asked);
    if (end.replica != r.replica || !is_same || end.output_tokens != r.generated ||
        end.execution != r.last_token - r.admitted) {
      return "request " + std::to_string(index(end.id)) + " was reported otherwise than it ended";
    }
  }
  std::int64_t migrations = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const RequestRecord& r = record.requests[i];
    const std::string who = "request " + std::to_string(i);
    migrations += paths[i].migrations;
    if (paths[i].ends != 1) return who + " ended " + std::to_string(paths[i].ends) + " times";
    if (paths[i].migrations != r.migrations) return who + " has other migrations than its events";
    if (paths[i].preemptions != r.preemptions) return who + " has other preemptions than events";
    if (r.migrations > 0 && r.replica != paths[i].at) return who + " ended where it did not go";
    const auto first = record.token_times.begin() + record.token_offsets[i];
    const auto last = record.token_times.begin() + record.token_offsets[i + 1];
    if (last - first != r.generated) return who + " has more or fewer stamps than tokens";
    if (std::adjacent_find(first, last, std::greater_equal<>()) != last) {
      return who + " has tokens out of order";
    }
    if (r.generated > 0 &&
        (*first != r.first_token || (r.last_token != kUnset && *(last - 1) != r.last_token))) {
      return who + " has other stamps than its tokens";
    }
  }
  return migrations == record.cluster.migrations ? "" : "migrations were not counted";
}

}  // namespace servelab::test

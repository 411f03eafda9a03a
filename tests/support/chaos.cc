#include "tests/support/chaos.h"

#include <algorithm>

namespace servelab::test {

ChaosCluster::ChaosCluster(std::uint64_t seed, ClusterNotes* notes)
    : rng_(seed, "chaos cluster"), notes_(notes) {
  loads_on_dispatch_ = rng_.below(2) == 0;
  period_ = 200'000 + static_cast<TimeNs>(rng_.below(5'000'000));
  most_moves_ = 1 + rng_.below(12);
  routes_between_steps_ = rng_.below(4) == 0;
}

Deployment ChaosCluster::deploy(const DeploymentView& view) {
  Deployment deployment = view.equal_replicas();
  for (Unit& unit : deployment.units) {
    const UnitMemory memory = view.memory(unit);
    std::vector<AdapterId> ids;
    for (std::size_t a = 0; a < view.adapter_table().size(); ++a) {
      ids.push_back(static_cast<AdapterId>(static_cast<std::uint32_t>(a)));
    }
    rng_.shuffle(&ids);
    std::int64_t slots = memory.adapters.slots, blocks = memory.kv_blocks;
    for (const AdapterId id : ids) {
      if (rng_.below(3) == 0) break;
      if (!unit.stores(id)) continue;
      blocks -= memory.adapters.blocks_of(view.adapter_table()[index(id)].bytes);
      if (memory.adapters.memory == AdapterMemory::kSlots ? --slots < 0 : blocks < 0) break;
      unit.adapters.push_back(id);
    }
  }
  return deployment;
}

ReplicaId ChaosCluster::route(const RoutedRequest& request, const ClusterView& view) {
  notes_->routed.push_back(request.id);
  notes_->adapters.push_back(request.adapter);
  const auto candidates = view.candidates(request);
  return candidates[rng_.below(candidates.size())]->id();
}

Rebalance ChaosCluster::rebalance(const ClusterView& view) {
  ++notes_->looks;
  if (notes_->violation.empty()) notes_->violation = disagreement(view);
  Rebalance decision;
  if (decisions_ == kMostDecisions || notes_->routed.empty() || rng_.below(10) == 0) {
    return decision;
  }
  ++decisions_;
  decision.outcome =
      rng_.below(10) == 0 ? Rebalance::Outcome::kFailed : Rebalance::Outcome::kDecided;
  if (rng_.below(3) != 0) {
    decision.decision_time =
        static_cast<TimeNs>(rng_.below(3 * static_cast<std::uint64_t>(period_)));
  }
  const std::size_t replicas = view.replicas().size();
  for (std::uint64_t n = rng_.below(3); n > 0 && !view.adapter_table().empty(); --n) {
    const auto id = static_cast<AdapterId>(rng_.below(view.adapter_table().size()));
    const auto to = static_cast<ReplicaId>(rng_.below(replicas));
    if (view.replica(to).unit().stores(id)) decision.loads.push_back({id, to});
  }
  for (std::uint64_t n = rng_.below(most_moves_ + 1); n > 0; --n) {
    const std::size_t of = rng_.below(notes_->routed.size());
    const auto to = static_cast<ReplicaId>(rng_.below(replicas));
    if (view.replica(to).unit().stores(notes_->adapters[of])) {
      decision.migrations.push_back({notes_->routed[of], to});
    }
  }
  return decision;
}

// --- the replica ---

void ChaosReplica::begin(const ReplicaView& view, StepPlan* out) {
  out->clear();
  all_.assign(view.running().begin(), view.running().end());
  all_.insert(all_.end(), view.swapped().begin(), view.swapped().end());
  all_.insert(all_.end(), view.waiting().begin(), view.waiting().end());
  free_blocks_ = view.kv().free_blocks();
  free_slots_ = view.adapters().slots() - view.adapters().held();
  tokens_left_ = view.limits().max_batch_tokens;
}

// It gives its blocks back, and this plan does not run it.
void ChaosReplica::free(const ReplicaView& view, RequestId id) {
  free_blocks_ += view.request(id).blocks();
  std::erase(all_, id);
}

void ChaosReplica::evict(const ReplicaView& view, AdapterId id, StepPlan* out) {
  out->evict.push_back(id);
  ++free_slots_;
  free_blocks_ += view.adapters().blocks_of(id);
}

bool ChaosReplica::used(const ReplicaView& view, AdapterId id, const StepPlan& plan) const {
  return id == plan.merged ||
         std::any_of(plan.slices.begin(), plan.slices.end(), [&](const Slice& slice) {
           return view.request(slice.request).adapter() == id;
         });
}

bool ChaosReplica::fits(const ReplicaView& view, AdapterId id) const {
  return view.adapters().memory() == AdapterMemory::kSlots
             ? free_slots_ > 0
             : view.adapters().blocks_of(id) <= free_blocks_;
}

bool ChaosReplica::acquire(const ReplicaView& view, AdapterId id, StepPlan* out) {
  const AdapterPool& pool = view.adapters();
  const auto in = [](const std::vector<AdapterId>& ids, AdapterId wanted) {
    return std::find(ids.begin(), ids.end(), wanted) != ids.end();
  };
  if (id == kBaseModel || in(out->load, id)) return true;
  if (pool.residency(id) != Residency::kAbsent && !in(out->evict, id)) return true;
  for (AdapterId old = pool.oldest(); old != kBaseModel && !fits(view, id); old = pool.newer(old)) {
    if (pool.evictable(old) && !in(out->evict, old) && !used(view, old, *out)) {
      evict(view, old, out);
    }
  }
  if (!fits(view, id)) return false;
  out->load.push_back(id);
  --free_slots_;
  free_blocks_ -= pool.blocks_of(id);
  return true;
}

void ChaosReplica::add(const ReplicaView& view, RequestId id, int tokens, StepPlan* out) {
  const RequestView& r = view.request(id);
  free_blocks_ -=
      std::max<std::int64_t>(0, view.kv().blocks_for(r.context() + tokens) - r.blocks());
  tokens_left_ -= tokens;
  out->slices.push_back(Slice{id, tokens});
}

// Preemptions, rejections, evictions and loads for no reason.
void ChaosReplica::give_way(const ReplicaView& view, StepPlan* out) {
  for (const RequestId id : view.running()) {
    if (!chance(0.1)) continue;
    out->preempt.push_back({id, mode()});
    free(view, id);
  }
  const std::vector<RequestId> left = all_;
  for (const RequestId id : left) {
    if (!chance(0.001)) continue;
    out->reject.push_back(id);
    free(view, id);
  }
  const AdapterPool& pool = view.adapters();
  for (AdapterId id = pool.oldest(); id != kBaseModel; id = pool.newer(id)) {
    if (pool.evictable(id) && chance(0.05)) evict(view, id, out);
  }
  if (chance(0.1) && !view.adapter_table().empty()) {
    const auto id = static_cast<AdapterId>(rng_.below(view.adapter_table().size()));
    if (view.unit().stores(id)) acquire(view, id, out);
  }
}

bool ChaosReplica::plan(const ReplicaView& view, StepPlan* out) {
  begin(view, out);
  if (all_.empty()) return false;
  give_way(view, out);
  rng_.shuffle(&all_);
  if (chance(0.2) && !all_.empty()) {
    const AdapterId target = view.request(all_.front()).adapter();
    if (target != kBaseModel && acquire(view, target, out)) {
      out->exec = Exec::kMerged;
      out->merged = target;
    }
  }
  const std::size_t most = 1 + rng_.below(static_cast<std::uint64_t>(view.limits().max_batch));
  const std::vector<RequestId> order = all_;
  for (const RequestId id : order) {
    if (out->slices.size() == most || tokens_left_ == 0) break;
    if (std::find(all_.begin(), all_.end(), id) == all_.end()) continue;  // gave way meanwhile
    const RequestView& r = view.request(id);
    if (out->exec == Exec::kMerged && r.adapter() != out->merged) continue;
    if (!acquire(view, r.adapter(), out)) continue;
    const int pending = std::min(r.pending(), tokens_left_);
    const int tokens = chance(0.6)
                           ? pending
                           : 1 + static_cast<int>(rng_.below(static_cast<std::uint64_t>(pending)));
    const auto missing = [&] {
      return view.kv().blocks_for(r.context() + tokens) - r.blocks() - free_blocks_;
    };
    for (std::size_t i = 0; i < view.running().size() && missing() > 0; ++i) {
      const RequestId victim = view.running()[i];
      const bool may_run = std::find(all_.begin(), all_.end(), victim) != all_.end();
      if (victim == id || !may_run || chance(0.5)) continue;
      out->preempt.push_back({victim, mode()});
      free(view, victim);
    }
    if (missing() > 0) continue;
    add(view, id, tokens, out);
    std::erase(all_, id);
  }
  if (out->slices.empty() && (out->empty() || chance(0.5))) serve_oldest(view, out);
  return !out->empty();
}

// Everybody else gives way. Empty when adapters that are still loading hold the room: asked again
// when they have come.
void ChaosReplica::serve_oldest(const ReplicaView& view, StepPlan* out) {
  begin(view, out);
  const RequestId oldest = *std::min_element(all_.begin(), all_.end());
  const RequestView& r = view.request(oldest);
  for (const RequestId id : view.running()) {
    if (id == oldest) continue;
    out->preempt.push_back({id, mode()});
    free_blocks_ += view.request(id).blocks();
  }
  const AdapterPool& pool = view.adapters();
  for (AdapterId id = pool.oldest(); id != kBaseModel; id = pool.newer(id)) {
    if (id != r.adapter() && pool.evictable(id)) evict(view, id, out);
  }
  if (!acquire(view, r.adapter(), out)) return;
  const std::int64_t room = (free_blocks_ + r.blocks()) * view.kv().block_tokens() - r.context();
  const auto tokens =
      static_cast<int>(std::min<std::int64_t>({room, r.pending(), view.limits().max_batch_tokens}));
  if (tokens >= 1) add(view, oldest, tokens, out);
}

}  // namespace servelab::test

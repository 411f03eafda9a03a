// Requests and adapters that come to a replica, leave it, or give way on it.
#include <algorithm>

#include "engine/serve/replica.h"

namespace servelab {

RejectReason Replica::why_never(const RequestView& r, int limit) const {
  std::int64_t room = kv_->total_blocks();
  if (r.adapter_ != kBaseModel) {
    if (!adapters_->can_ever_fit(r.adapter_)) return RejectReason::kNoAdapterRoom;
    room -= adapters_->blocks_of(r.adapter_);
  }
  // The last output token needs no KV. The client's limit decides for every technique, also for one
  // that knows the true length: all serve the same requests.
  const std::int64_t tokens = std::int64_t{r.prompt_tokens_} + limit;
  if (tokens > shared_.models[index(r.model_)].max_context_tokens ||
      view_.blocks_for(r.model_, tokens - 1) > room) {
    return RejectReason::kTooLong;
  }
  return RejectReason::kNone;
}

void Replica::take_in(RequestId id) {
  RequestView& r = request(id);
  SL_CHECK(r.phase_ == Phase::kPending, "I2: a request was admitted twice");
  r.replica_ = id_;
  record_of(id).replica = id_;
  r.phase_ = Phase::kWaiting;
  wait(id, r);
  queue_insert(id, &r);
}

void Replica::admit(RequestId id) {
  end_unless_full();
  take_in(id);
  const int limit = (*view_.arrivals_)[index(id)].output_limit_tokens;
  const RejectReason never = why_never(request(id), limit);
  if (never != RejectReason::kNone) reject(id, never);
}

void Replica::turn_away(RequestId id) {
  take_in(id);
  reject(id, RejectReason::kQueueFull);
}

void Replica::release(RequestId id) {
  RequestView& r = request(id);
  if (r.is_member_) dissolve_batch();
  SL_CHECK(!r.in_step_ && r.phase_ != Phase::kDone && r.phase_ != Phase::kPending,
           "I9: only an unfinished request outside a step can leave a replica");
  end_repeats();
  leave(id, &r);
  r.context_ = 0;
  r.phase_ = Phase::kPending;
  r.replica_ = kNoReplica;
}

void Replica::preload() {
  for (const AdapterId id : view_.unit_->adapters) {
    adapters_->begin_load(id);
    shared_.backend->preload(id_, id);
    adapters_->finish_load(id);
  }
  int places = preloaded_models_;
  for (const UnitModel& entry : view_.unit_->models) {
    if (!entry.takes_turns || places-- <= 0) continue;
    models_->begin_load(entry.model);
    models_->finish_load(entry.model);
  }
}

bool Replica::load_ahead(AdapterId id) {
  if (id == kBaseModel || adapters_->residency(id) != Residency::kAbsent) return true;
  if (!adapters_->can_ever_fit(id)) return false;
  const bool slots = adapters_->memory() == AdapterMemory::kSlots;
  std::int64_t missing = slots ? adapters_->held() + 1 - adapters_->slots()
                               : adapters_->blocks_of(id) - kv_->free_blocks();
  victims_.clear();
  for (AdapterId old = adapters_->oldest(); old != kBaseModel && missing > 0;
       old = adapters_->newer(old)) {
    if (!adapters_->evictable(old) || wanted(old)) continue;
    victims_.push_back(old);
    missing -= slots ? 1 : adapters_->blocks_of(old);
  }
  if (missing > 0) return false;  // and nobody has given way for nothing
  end_repeats();
  for (const AdapterId old : victims_) evict(old);
  begin_load(id);
  return true;
}

// By a request that is here: the policy may be about to run it.
bool Replica::wanted(AdapterId id) const { return view_.requests_of(id).count > 0; }

void Replica::evict(AdapterId id) {
  adapters_->evict(id);
  shared_.backend->evict(id_, id);
  note_event(EventCode::kEvict, static_cast<std::int64_t>(index(id)), 0);
}

void Replica::evict(ModelId id) {
  SL_CHECK(index(id) < turns_.size() && takes_turns(id), "I5: only models that take turns leave");
  models_->evict(id);
  shared_.backend->evict(id_, id);
  note_event(EventCode::kEvict, static_cast<std::int64_t>(index(id)), 0);
}

void Replica::leave(RequestId id, RequestView* r) {
  switch (r->phase_) {
    case Phase::kWaiting:
      stop_waiting(id, *r);
      break;
    case Phase::kSwapped:
      view_.swapped_.erase(id);
      drop_swapped(id);
      break;
    case Phase::kRunning:
      view_.running_.erase(std::find(view_.running_.begin(), view_.running_.end(), id));
      kv_->release(&r->blocks_);
      count_user(*r, -1);
      break;
    case Phase::kPending:
    case Phase::kDone:
      SL_CHECK(false, "I8: a request ended twice");
  }
  queue_erase(id, r);
}

void Replica::reject(RequestId id, RejectReason reason) {
  SL_CHECK(index(id) < shared_.table->size(), "I9: rejecting an unknown request");
  RequestView& r = request(id);
  if (r.is_member_) dissolve_batch();
  SL_CHECK(!r.in_step_ && (r.phase_ == Phase::kWaiting || r.phase_ == Phase::kRunning ||
                           r.phase_ == Phase::kSwapped),
           "I9: only an unfinished request outside a step can be rejected");
  leave(id, &r);
  r.phase_ = Phase::kDone;
  RequestRecord& record = record_of(id);
  SL_CHECK(record.replica == id_, "I9: rejecting another replica's request");
  record.status = RequestStatus::kRejected;
  record.reject_reason = reason;
  record.generated = r.generated_;
  ++*shared_.done;
  shared_.backend->forget(id);
  note_event(EventCode::kReject, static_cast<std::int64_t>(index(id)),
             static_cast<double>(static_cast<int>(reason)));
}

void Replica::preempt(const Preemption& preemption) {
  SL_CHECK(index(preemption.request) < shared_.table->size(), "I9: preempting an unknown request");
  RequestView& r = request(preemption.request);
  if (r.is_member_) dissolve_batch();
  RequestRecord& record = record_of(preemption.request);
  SL_CHECK(r.phase_ == Phase::kRunning && !r.in_step_ && record.replica == id_,
           "I9: only a running request outside a step can be preempted");
  view_.running_.erase(std::find(view_.running_.begin(), view_.running_.end(), preemption.request));
  if (preemption.mode == PreemptMode::kSwap && r.context_ > 0) {
    note_move(preemption.request, r, true);
  }
  kv_->release(&r.blocks_);
  count_user(r, -1);
  ++record.preemptions;
  note_event(EventCode::kPreempt, static_cast<std::int64_t>(index(preemption.request)), r.context_);
  if (preemption.mode == PreemptMode::kSwap && r.context_ > 0) {
    swap_out_ += r.context_ * kv_per_token_[index(r.model_)];
    r.phase_ = Phase::kSwapped;
    view_.swapped_.insert(preemption.request);
  } else {
    r.context_ = 0;
    r.phase_ = Phase::kWaiting;
    wait(preemption.request, r);
  }
}

void Replica::note_move(RequestId id, const RequestView& r, bool to_host) {
  const std::span<const BlockIndex> blocks = r.blocks_.blocks();
  moves_.push_back(KvMove{id, to_host, r.context_, {blocks.begin(), blocks.end()}});
}

// A swapped request leaves: what has not been copied to the host yet never will be.
void Replica::drop_swapped(RequestId id) {
  std::erase_if(moves_, [&](const KvMove& move) {
    if (move.request != id) return false;
    swap_out_ -= move.tokens * kv_per_token_[index(request(id).model_)];
    return true;
  });
  shared_.backend->drop_swapped(id_, id);
}

void Replica::begin_load(AdapterId id) {
  SL_CHECK(index(id) < view_.adapter_table_.size(), "I5: loading an unknown adapter");
  SL_CHECK(view_.unit_->stores(id), "I13: loading an adapter that the repository lacks");
  adapters_->begin_load(id);
  const Bytes bytes = view_.adapter(id).bytes;
  loading_.push_back({load_subject(id), shared_.timeline->now()});
  ++totals_.loads;
  totals_.loaded_bytes += bytes;
  shared_.backend->load(id_, id, bytes);
}

void Replica::begin_load(ModelId id) {
  SL_CHECK(index(id) < turns_.size() && takes_turns(id), "I5: only models that take turns load");
  models_->begin_load(id);
  const Bytes bytes = models_->bytes_of(id);
  loading_.push_back({load_subject(id), shared_.timeline->now()});
  ++totals_.loads;
  totals_.loaded_bytes += bytes;
  shared_.backend->load(id_, id, bytes);
}

void Replica::on_load_done(std::uint32_t what) {
  end_unless_full();
  if (is_model(what)) {
    models_->finish_load(loaded_model(what));
    end_load(what, view_.requests_of(loaded_model(what)).tail);
  } else {
    const auto id = static_cast<AdapterId>(what);
    adapters_->finish_load(id);
    end_load(what, view_.requests_of(id).tail);
  }
}

void Replica::end_load(std::uint32_t what, RequestId newest) {
  const auto found = std::find_if(loading_.begin(), loading_.end(),
                                  [&](const Loading& loading) { return loading.what == what; });
  SL_CHECK(found != loading_.end(), "I5: a load ended that never began");
  const TimeNs now = shared_.timeline->now();
  // A cold start: every request that was waiting for these weights while they loaded. Those that an
  // earlier load stamped are older, so the walk from the newest ends at the first of them; what
  // happened to a migrated request elsewhere says nothing about the others.
  for (RequestId r = newest; r != kNoRequest; r = request(r).previous_of_adapter_) {
    RequestRecord& record = record_of(r);
    if (record.load_start != kUnset || record.prefill_start != kUnset) {
      if (record.migrations > 0) continue;
      break;
    }
    record.load_start = std::max(found->since, (*view_.arrivals_)[index(r)].arrival);
    record.load_end = now;
  }
  note_event(EventCode::kLoad,
             is_model(what) ? static_cast<std::int64_t>(index(loaded_model(what)))
                            : static_cast<std::int64_t>(what),
             to_seconds(now - found->since));
  loading_.erase(found);
}

}  // namespace servelab

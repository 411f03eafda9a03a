#include "engine/serve/replica.h"

#include <algorithm>

namespace servelab {
namespace {

constexpr int kMaxPlansWithoutStep = 1000;

// Device memory split into KV blocks and adapter slots. Throws SpecError when it does not work out.
struct MemorySplit {
  std::int64_t blocks = 0;
  AdapterPool::Options adapters;
};

Bytes largest_adapter(const std::vector<Adapter>& adapters) {
  Bytes largest = 0;
  for (const Adapter& adapter : adapters) largest = std::max(largest, adapter.bytes);
  return largest;
}

MemorySplit split_memory(const ClusterSettings& settings, const std::vector<Adapter>& adapters) {
  const EngineSettings& engine = settings.engine;
  const ReplicaMemory& memory = settings.memory;
  const bool whole = engine.adapter_form == AdapterForm::kWholeModel;
  const Bytes block_bytes = memory.kv_per_token * engine.block_tokens;
  SL_CHECK(block_bytes > 0, "a KV block has a size");
  MemorySplit split;
  split.adapters.memory = engine.adapter_memory;
  split.adapters.block_bytes = block_bytes;
  Bytes left = memory.device - memory.activations - (whole ? 0 : memory.weights);
  if (engine.adapter_memory == AdapterMemory::kSlots) {
    const auto served = static_cast<std::int64_t>(adapters.size());
    split.adapters.slots =
        engine.adapter_slots > 0 ? std::min<std::int64_t>(engine.adapter_slots, served) : served;
    split.adapters.slot_bytes = whole ? memory.weights : largest_adapter(adapters);
    left -= split.adapters.slots * split.adapters.slot_bytes;
  }
  split.blocks = left > 0 ? left / block_bytes : 0;
  if (split.blocks < 1) {
    throw SpecError("device memory is too small: " + std::to_string(memory.device / kMiB) +
                    " MiB for " + std::to_string(memory.weights / kMiB) + " MiB of weights, " +
                    std::to_string(memory.activations / kMiB) + " MiB of activations and " +
                    std::to_string(split.adapters.slots) + " adapter slots of " +
                    std::to_string(split.adapters.slot_bytes / kMiB) +
                    " MiB leaves no KV block; lower engine.adapter_slots or the model's size");
  }
  split.blocks = std::min<std::int64_t>(split.blocks, INT32_MAX - 1);
  return split;
}

}  // namespace

Replica::Replica(ReplicaId id, const ClusterSettings& settings, const SharedState& shared,
                 std::unique_ptr<ReplicaPolicy> policy)
    : id_(id),
      shared_(shared),
      policy_(std::move(policy)),
      form_(settings.engine.adapter_form),
      reveal_output_length_(settings.reveal_output_length),
      kv_per_token_(settings.memory.kv_per_token),
      whole_model_bytes_(settings.memory.weights),
      max_context_tokens_(settings.memory.max_context_tokens) {
  const Workload& workload = *shared.workload;
  const MemorySplit split = split_memory(settings, workload.adapters);
  kv_ = std::make_unique<KvPool>(split.blocks, settings.engine.block_tokens);
  adapters_ = std::make_unique<AdapterPool>(split.adapters, workload.adapters, kv_.get());

  view_.id_ = id;
  view_.limits_ = settings.engine.limits;
  view_.cost_ = &shared.backend->cost();
  view_.table_ = shared.table;
  view_.arrivals_ = &workload.requests;
  view_.adapter_table_ = workload.adapters;
  view_.queues_.resize(workload.adapters.size() + 1);
  view_.active_position_.resize(workload.adapters.size() + 1);
  view_.kv_ = kv_.get();
  view_.adapters_ = adapters_.get();

  steps_.resize(static_cast<std::size_t>(shared.backend->max_steps_in_flight()));
  totals_.kv_blocks_total = split.blocks;
  bin_.replica = id;
  bin_end_ = shared.record->options.bin;
  gauges_ = policy_->gauges();
  first_gauge_ = shared.record->gauges.size();
  for (const Gauge& gauge : gauges_) {
    shared.record->gauges.push_back(GaugeSeries{gauge.name, id, {}, {}});
  }
}

RejectReason Replica::why_never(const RequestView& r, int max_context_tokens) const {
  std::int64_t room = kv_->total_blocks();
  if (r.adapter_ != kBaseModel) {
    if (!adapters_->can_ever_fit(r.adapter_)) return RejectReason::kNoAdapterRoom;
    room -= adapters_->blocks_of(r.adapter_);
  }
  const std::int64_t tokens = std::int64_t{r.prompt_tokens_} + r.output_limit_;
  if (tokens > max_context_tokens || kv_->blocks_for(tokens) > room) return RejectReason::kTooLong;
  return RejectReason::kNone;
}

void Replica::admit(RequestId id) {
  RequestView& r = request(id);
  SL_CHECK(r.phase_ == Phase::kPending, "I2: a request was admitted twice");
  record_of(id).replica = id_;
  r.phase_ = Phase::kWaiting;
  view_.waiting_.insert(id);
  queue_insert(id, &r);
  const RejectReason never = why_never(r, max_context_tokens_);
  if (never != RejectReason::kNone) reject(id, never);
}

void Replica::release(RequestId id) {
  RequestView& r = request(id);
  SL_CHECK(!r.in_step_ && r.phase_ != Phase::kDone && r.phase_ != Phase::kPending,
           "I9: only an unfinished request outside a step can leave a replica");
  leave(id, &r);
  r.context_ = 0;
  r.phase_ = Phase::kPending;
}

void Replica::preload(AdapterId id) {
  adapters_->begin_load(id);
  adapters_->finish_load(id);
}

void Replica::plan() {
  int without_step = 0;
  while (view_.steps_in_flight_ < static_cast<int>(steps_.size())) {
    plan_.clear();
    view_.decided_at_ = shared_.timeline->now();
    if (!policy_->plan(view_, &plan_) || plan_.empty()) return;
    const bool starts_step = !plan_.slices.empty();
    apply(&plan_);
    SL_CHECK(starts_step || ++without_step < kMaxPlansWithoutStep,
             "the policy keeps planning without ever starting a step");
  }
}

void Replica::apply(StepPlan* plan) {
  if (const char* why = shared_.backend->unsupported(*plan)) {
    throw SpecError(std::string("the backend cannot carry this plan out: ") + why);
  }
  log_plan(*plan);
  swap_in_ = swap_out_ = 0;
  for (const RequestId id : plan->reject) reject(id, RejectReason::kPolicy);
  for (const Preemption& preemption : plan->preempt) preempt(preemption);
  for (const AdapterId id : plan->evict) {
    adapters_->evict(id);
    note_event(EventCode::kEvict, static_cast<std::int64_t>(index(id)), 0);
  }
  for (const AdapterId id : plan->load) begin_load(id);
  if (plan->slices.empty()) return;

  std::uint32_t slot = 0;
  while (steps_[slot].active) ++slot;
  Step& step = steps_[slot];
  ++step_count_;
  ++view_.steps_in_flight_;
  step.active = true;
  step.slices.swap(plan->slices);
  step.adapters.clear();
  step.shape = BatchShape{};
  step.exec = plan->exec;
  step.merged = plan->exec == Exec::kMerged ? plan->merged : kBaseModel;
  SL_CHECK(step.slices.size() <= static_cast<std::size_t>(view_.limits_.max_batch),
           "I7: the step has more requests than max_batch");
  for (const Slice& slice : step.slices) add_slice(slice, &step);
  SL_CHECK(step.shape.tokens <= view_.limits_.max_batch_tokens,
           "I7: the step has more tokens than max_batch_tokens");

  StepWork work;
  switch_weights(*plan, &step, &work);
  work.replica = id_;
  work.slot = slot;
  work.slices = step.slices;
  work.adapters = step.adapters;
  work.shape = step.shape;
  work.exec = form_ == AdapterForm::kWholeModel ? Exec::kMerged : step.exec;
  work.kernel = plan->kernel;
  work.device_share = plan->device_share;
  work.swap_in = swap_in_;
  work.swap_out = swap_out_;
  shared_.backend->submit(work);
}

void Replica::add_slice(const Slice& slice, Step* step) {
  SL_CHECK(index(slice.request) < shared_.table->size(), "I2: the slice names no request");
  RequestView& r = request(slice.request);
  SL_CHECK(!r.in_step_, "I2: the request is already in a step");
  SL_CHECK(slice.tokens >= 1 && slice.tokens <= r.pending(),
           "I6: a slice computes between one and all of the pending tokens");
  SL_CHECK(step->exec != Exec::kMerged || r.adapter_ == step->merged,
           "I3: a merged step runs only its adapter's requests");
  if (r.phase_ != Phase::kRunning) enter_running(slice.request, &r);
  const std::int32_t context = r.context_ + slice.tokens;
  if (r.blocks_.count * kv_->block_tokens() < context) {
    SL_CHECK(kv_->grow(&r.blocks_, kv_->blocks_for(context)),
             "I4: the step needs more KV blocks than are free");
  }
  r.in_step_ = true;

  BatchShape& shape = step->shape;
  shape.tokens += slice.tokens;
  if (slice.tokens == r.pending()) ++shape.sampled;
  if (slice.tokens == 1 && r.context_ > 0) {
    ++shape.decode_requests;
    shape.decode_context += context;
  } else {
    const std::int64_t n = slice.tokens;
    ++shape.prefill_requests;
    shape.prefill_tokens += n;
    shape.prefill_pairs += n * r.context_ + n * (n + 1) / 2;
    shape.prefill_context += context;
  }
  if (r.adapter_ == kBaseModel) return;
  if (adapters_->touch(r.adapter_, step_count_)) use_adapter(r.adapter_, step);
  shape.lora_tokens += slice.tokens;
  shape.lora_rank_tokens += std::int64_t{slice.tokens} * r.rank_;
}

void Replica::use_adapter(AdapterId id, Step* step) {
  SL_CHECK(adapters_->residency(id) != Residency::kAbsent,
           "I1: a step uses an adapter that is neither resident nor loading");
  adapters_->pin(id);
  step->adapters.push_back(id);
  const int rank = view_.adapter(id).rank;
  ++step->shape.lora_adapters;
  step->shape.lora_rank_sum += rank;
  step->shape.lora_max_rank = std::max(step->shape.lora_max_rank, rank);
}

void Replica::switch_weights(const StepPlan& plan, Step* step, StepWork* work) {
  if (form_ == AdapterForm::kWholeModel) {
    SL_CHECK(plan.exec == Exec::kMerged, "I3: whole models run one at a time, merged");
    return;
  }
  if (step->merged == view_.merged_) return;
  SL_CHECK(view_.steps_in_flight_ == 1, "I3: weights may not change under a step in flight");
  if (view_.merged_ != kBaseModel) {
    work->unmerge = view_.merged_;
    work->unmerge_rank = view_.adapter(view_.merged_).rank;
    adapters_->unpin(view_.merged_);
  }
  if (step->merged != kBaseModel) {
    SL_CHECK(adapters_->residency(step->merged) != Residency::kAbsent,
             "I1: merging an adapter that is neither resident nor loading");
    work->merge = step->merged;
    work->merge_rank = view_.adapter(step->merged).rank;
    adapters_->pin(step->merged);
  }
  view_.merged_ = step->merged;
  ++totals_.switches;
  note_event(EventCode::kMerge,
             step->merged == kBaseModel ? -1 : static_cast<std::int64_t>(index(step->merged)), 0);
}

void Replica::enter_running(RequestId id, RequestView* r) {
  SL_CHECK(r->phase_ == Phase::kWaiting || r->phase_ == Phase::kSwapped,
           "I2: the request is not at this replica, or has ended");
  RequestRecord& record = record_of(id);
  SL_CHECK(record.replica == id_, "I2: the request is at another replica");
  if (r->phase_ == Phase::kWaiting) {
    view_.waiting_.erase(id);
  } else {
    view_.swapped_.erase(id);
    swap_in_ += r->context_ * kv_per_token_;
    SL_CHECK(kv_->grow(&r->blocks_, kv_->blocks_for(r->context_)),
             "I4: swapping in needs more KV blocks than are free");
  }
  r->phase_ = Phase::kRunning;
  view_.running_.push_back(id);
  if (r->adapter_ != kBaseModel) adapters_->add_user(r->adapter_, 1);
  if (record.admitted == kUnset) record.admitted = shared_.timeline->now();
}

void Replica::leave(RequestId id, RequestView* r) {
  switch (r->phase_) {
    case Phase::kWaiting:
      view_.waiting_.erase(id);
      break;
    case Phase::kSwapped:
      view_.swapped_.erase(id);
      break;
    case Phase::kRunning:
      view_.running_.erase(std::find(view_.running_.begin(), view_.running_.end(), id));
      kv_->release(&r->blocks_);
      if (r->adapter_ != kBaseModel) adapters_->add_user(r->adapter_, -1);
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
  note_event(EventCode::kReject, static_cast<std::int64_t>(index(id)),
             static_cast<double>(static_cast<int>(reason)));
}

void Replica::preempt(const Preemption& preemption) {
  RequestView& r = request(preemption.request);
  RequestRecord& record = record_of(preemption.request);
  SL_CHECK(r.phase_ == Phase::kRunning && !r.in_step_ && record.replica == id_,
           "I9: only a running request outside a step can be preempted");
  view_.running_.erase(std::find(view_.running_.begin(), view_.running_.end(), preemption.request));
  kv_->release(&r.blocks_);
  if (r.adapter_ != kBaseModel) adapters_->add_user(r.adapter_, -1);
  ++record.preemptions;
  note_event(EventCode::kPreempt, static_cast<std::int64_t>(index(preemption.request)), r.context_);
  if (preemption.mode == PreemptMode::kSwap && r.context_ > 0) {
    swap_out_ += r.context_ * kv_per_token_;
    r.phase_ = Phase::kSwapped;
    view_.swapped_.insert(preemption.request);
  } else {
    r.context_ = 0;
    r.phase_ = Phase::kWaiting;
    view_.waiting_.insert(preemption.request);
  }
}

void Replica::begin_load(AdapterId id) {
  SL_CHECK(index(id) < view_.adapter_table_.size(), "I5: loading an unknown adapter");
  adapters_->begin_load(id);
  loading_.push_back({id, shared_.timeline->now()});
  const Bytes bytes =
      form_ == AdapterForm::kWholeModel ? whole_model_bytes_ : view_.adapter(id).bytes;
  ++totals_.loads;
  totals_.loaded_bytes += bytes;
  shared_.backend->load(id_, id, bytes);
}

void Replica::on_load_done(AdapterId id) {
  adapters_->finish_load(id);
  const auto found = std::find_if(loading_.begin(), loading_.end(),
                                  [&](const Loading& loading) { return loading.adapter == id; });
  SL_CHECK(found != loading_.end(), "I5: a load ended that never began");
  const TimeNs now = shared_.timeline->now();
  // A cold start: every request that was waiting for this adapter while it loaded. Those that an
  // earlier load stamped are older, so the walk from the newest ends at the first of them.
  for (RequestId r = view_.requests_of(id).tail; r != kNoRequest;
       r = request(r).previous_of_adapter_) {
    RequestRecord& record = record_of(r);
    if (record.load_start != kUnset || record.prefill_start != kUnset) break;
    record.load_start = std::max(found->since, (*view_.arrivals_)[index(r)].arrival);
    record.load_end = now;
  }
  note_event(EventCode::kLoad, static_cast<std::int64_t>(index(id)),
             to_seconds(now - found->since));
  loading_.erase(found);
}

void Replica::on_step_done(std::uint32_t slot) {
  Step& step = steps_[slot];
  SL_CHECK(step.active, "a step ended that never began");
  const StepTiming timing = shared_.backend->collect(id_, slot);
  const TimeNs now = shared_.timeline->now();
  const TimeNs started = now - timing.busy();
  finished_.clear();
  std::int64_t sampled = 0;
  TimeNs gap = 0;  // inter-token gaps come in runs of equal values
  std::int64_t gap_count = 0;
  for (const Slice& slice : step.slices) {
    RequestView& r = request(slice.request);
    r.in_step_ = false;
    if (r.context_ == 0) {
      RequestRecord& record = record_of(slice.request);
      if (record.prefill_start == kUnset) record.prefill_start = started;
    }
    r.context_ += slice.tokens;
    if (r.pending() > 0) continue;
    ++sampled;
    ++r.generated_;
    if (r.generated_ == 1) {
      record_of(slice.request).first_token = now;
    } else if (now - r.last_token_ == gap) {
      ++gap_count;
    } else {
      if (gap_count > 0) shared_.record->itl.add(gap, gap_count);
      gap = now - r.last_token_;
      gap_count = 1;
    }
    r.last_token_ = now;
    if (shared_.token_log != nullptr) shared_.token_log->emplace_back(slice.request, now);
    if (r.generated_ >= r.true_output_tokens_) finish_request(slice.request, &r);
  }
  if (gap_count > 0) shared_.record->itl.add(gap, gap_count);
  for (const AdapterId id : step.adapters) adapters_->unpin(id);
  step.active = false;
  --view_.steps_in_flight_;
  note_step(step, timing, sampled);

  view_.decided_at_ = now;
  StepReport report;
  report.slices = step.slices;
  report.finished = finished_;
  report.exec = step.exec;
  report.merged = step.merged;
  report.duration = timing.busy();
  report.switch_time = timing.switching;
  policy_->on_step_done(view_, report);
}

void Replica::finish_request(RequestId id, RequestView* r) {
  SL_CHECK(r->generated_ == r->true_output_tokens_, "I8: a request produced the wrong length");
  leave(id, r);
  r->phase_ = Phase::kDone;
  RequestRecord& record = record_of(id);
  record.status = RequestStatus::kFinished;
  record.last_token = r->last_token_;
  record.generated = r->generated_;
  finished_.push_back(id);
  ++*shared_.done;
}

void Replica::finish() {
  close_bin();
  totals_.kv_blocks_peak = kv_->peak_used_blocks();
  shared_.record->replicas.push_back(totals_);
  std::int64_t held = 0;
  for (const RequestId id : view_.running_) held += request(id).blocks_.count;
  for (AdapterId id = adapters_->oldest(); id != kBaseModel; id = adapters_->newer(id)) {
    held += adapters_->blocks_of(id);
  }
  SL_CHECK(held == kv_->used_blocks(), "I4: KV blocks were lost or handed out twice");
}

// --- queues by adapter ---

void Replica::queue_insert(RequestId id, RequestView* r) {
  AdapterQueue& queue = view_.queues_[view_.queue_index(r->adapter_)];
  RequestId after = queue.tail;  // almost always the place: requests come in order
  while (after != kNoRequest && id < after) after = request(after).previous_of_adapter_;
  const RequestId before = after == kNoRequest ? queue.head : request(after).next_of_adapter_;
  r->previous_of_adapter_ = after;
  r->next_of_adapter_ = before;
  (after == kNoRequest ? queue.head : request(after).next_of_adapter_) = id;
  (before == kNoRequest ? queue.tail : request(before).previous_of_adapter_) = id;
  if (queue.count++ == 0) {
    view_.active_position_[view_.queue_index(r->adapter_)] =
        static_cast<std::uint32_t>(view_.active_.size());
    view_.active_.push_back(r->adapter_);
  }
}

void Replica::queue_erase(RequestId id, RequestView* r) {
  AdapterQueue& queue = view_.queues_[view_.queue_index(r->adapter_)];
  const RequestId after = r->previous_of_adapter_;
  const RequestId before = r->next_of_adapter_;
  SL_CHECK((after == kNoRequest ? queue.head : request(after).next_of_adapter_) == id,
           "I8: an adapter's queue does not hold the request");
  (after == kNoRequest ? queue.head : request(after).next_of_adapter_) = before;
  (before == kNoRequest ? queue.tail : request(before).previous_of_adapter_) = after;
  r->previous_of_adapter_ = r->next_of_adapter_ = kNoRequest;
  if (--queue.count == 0) {
    const std::uint32_t position = view_.active_position_[view_.queue_index(r->adapter_)];
    const AdapterId last = view_.active_.back();
    view_.active_[position] = last;
    view_.active_position_[view_.queue_index(last)] = position;
    view_.active_.pop_back();
  }
}

}  // namespace servelab

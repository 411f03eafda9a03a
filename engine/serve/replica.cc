#include "engine/serve/replica.h"

#include <algorithm>
#include <chrono>

namespace servelab {
namespace {

constexpr int kMaxPlansWithoutStep = 1000;

}  // namespace

// Adds the wall time of its own life to the replica's scheduling time, where that is measured.
class Replica::SchedulingWatch {
 public:
  explicit SchedulingWatch(Replica* replica) : replica_(replica) {
    if (replica_->shared_.record->options.measure_scheduling) {
      since_ = std::chrono::steady_clock::now();
    }
  }
  ~SchedulingWatch() {
    if (!replica_->shared_.record->options.measure_scheduling) return;
    replica_->totals_.scheduling += std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now() - since_)
                                        .count();
  }
  SchedulingWatch(const SchedulingWatch&) = delete;
  SchedulingWatch& operator=(const SchedulingWatch&) = delete;

 private:
  Replica* replica_;
  std::chrono::steady_clock::time_point since_;
};

void Replica::plan() {
  const SchedulingWatch watch(this);
  int without_step = 0;
  while (view_.steps_in_flight_ < static_cast<int>(steps_.size())) {
    plan_.clear();
    plan_.device_share = view_.unit_->models.front().share;
    if (!policy_->plan(view_, &plan_) || plan_.empty()) return;
    const bool starts_step = plan_.runs();
    apply(&plan_);
    SL_CHECK(starts_step || ++without_step < kMaxPlansWithoutStep,
             "the policy keeps planning without ever starting a step");
  }
}

// Inlined by force: as a call it costs 8 % of a whole run.
[[gnu::always_inline]] inline void Replica::add_slice(const Slice& slice, Step* step) {
  SL_CHECK(index(slice.request) < shared_.table->size(), "I2: the slice names no request");
  RequestView& r = request(slice.request);
  if (r.is_member_) [[unlikely]] {
    SL_CHECK(!step->decodes_all, "I2: the request is already in a step");
    dissolve_batch();
  }
  SL_CHECK(!r.in_step_, "I2: the request is already in a step");
  SL_CHECK(slice.tokens >= 1 && slice.tokens <= r.pending(),
           "I6: a slice computes between one and all of the pending tokens");
  SL_CHECK(slice.padding >= 0, "I6: a row is not shorter than its request");
  SL_CHECK(step->mode.exec != Exec::kMerged || r.adapter_ == step->merged,
           "I3: a merged step runs only its adapter's requests");
  if (r.phase_ != Phase::kRunning) enter_running(slice.request, &r);
  const std::int32_t context = r.context_ + slice.tokens;
  if (r.blocks_.count * kv_->block_tokens() < context * step->blocks_per_page) {
    SL_CHECK(kv_->grow(&r.blocks_, view_.blocks_for(r.model_, context)),
             "I4: the step needs more KV blocks than are free");
  }
  r.in_step_ = true;
  if (repeats_.possible) {
    const int pages =
        step->blocks_per_page == 1 ? r.blocks_.count : r.blocks_.count / step->blocks_per_page;
    batch_.add(r.true_output_tokens_ - r.generated_, pages * kv_->block_tokens() - context,
               r.last_token_);
    repeats_.possible = r.generated_ > 0;
  }

  step->shape.add_slice(slice.tokens, r.context_, slice.tokens == r.pending(), slice.padding);
  if (r.adapter_ == kBaseModel) return;
  if (slice.lora != LoraSite::kDevice) return add_host_rows(slice, r, step);
  if (adapters_->touch(r.adapter_, step_count_)) use_adapter(r.adapter_, step);
  const bool is_decode = slice.tokens == 1 && r.context_ > 0;
  step->shape.add_lora_rows(slice.tokens + (is_decode ? 0 : slice.padding), r.context_, r.rank_);
}

// The step of a plan, with nobody in it yet.
std::uint32_t Replica::take_slot(StepPlan* plan) {
  std::uint32_t slot = 0;
  while (steps_[slot].active) ++slot;
  Step& step = steps_[slot];
  ++step_count_;
  ++view_.steps_in_flight_;
  step.active = true;
  step.slices.swap(plan->slices);
  step.decodes_all = plan->decode_all;
  step.requests = static_cast<std::int64_t>(step.slices.size());
  step.adapters.clear();
  step.host_adapters.clear();
  step.taken_over.clear();
  step.shape = BatchShape{};
  step.model = plan->model;
  step.blocks_per_page = view_.blocks_per_page_[index(plan->model)];
  step.merged = plan->exec == Exec::kMerged ? plan->merged : kBaseModel;
  step.mode = *plan;
  return slot;
}

// The batch by which the step may be repeated, if it may; of a plan that decodes all, it joins.
void Replica::begin_batch(const StepPlan& plan, Step* step) {
  const bool may_repeat = can_repeat_ && plan.repeats > 0 && plan.only_runs();
  if (step->decodes_all) {
    repeats_.begin(may_repeat && step->slices.empty());
    return add_decodes(step);
  }
  repeats_.begin(may_repeat);
  if (!may_repeat) return;
  if (batch_.stands()) dissolve_batch();
  batch_.begin(kv_->block_tokens(), step->blocks_per_page, false);
  batch_.start_first();
}

void Replica::apply(StepPlan* plan) {
  SL_CHECK(!plan->runs() || (index(plan->model) < turns_.size() && view_.serves(plan->model)),
           "I12: the step is of a model that this replica does not serve");
  if (const char* why = shared_.backend->unsupported(id_, *plan)) {
    throw SpecError(std::string("the backend cannot carry this plan out: ") + why);
  }
  log_plan(*plan);
  for (const RequestId id : plan->reject) reject(id, RejectReason::kPolicy);
  SL_CHECK(!plan->decode_all || plan->preempt.empty(),
           "I9: a plan runs a request that it preempts");
  for (const Preemption& preemption : plan->preempt) {
    preempt(preemption);
    for (const Slice& slice : plan->slices) {
      SL_CHECK(slice.request != preemption.request, "I9: a plan runs a request that it preempts");
    }
  }
  for (const AdapterId id : plan->evict) {
    SL_CHECK(index(id) < view_.adapter_table_.size(), "I5: evicting an unknown adapter");
    evict(id);
  }
  for (const AdapterId id : plan->load) begin_load(id);
  for (const ModelId id : plan->evict_models) evict(id);
  for (const ModelId id : plan->load_models) begin_load(id);
  if (!plan->runs()) return;
  SL_CHECK(plan->device_share > 0 && plan->device_share <= 1,
           "I7: a step's share of the device is in (0, 1]");

  const std::uint32_t slot = take_slot(plan);
  Step& step = steps_[slot];
  begin_batch(*plan, &step);
  SL_CHECK(step.requests <= view_.limits_.max_batch,
           "I7: the step has more requests than max_batch");
  if (takes_turns(step.model)) use_model(step.model);
  for (const Slice& slice : step.slices) add_slice(slice, &step);
  if (view_.unit_->models.size() > 1) check_models(step);
  step.shape.served_adapters = static_cast<std::int64_t>(view_.adapter_table_.size());
  step.shape.adapter_slots = adapters_->slots();
  SL_CHECK(step.shape.tokens <= view_.limits_.max_batch_tokens,
           "I7: the step has more tokens than max_batch_tokens");

  expect_repeats(*plan, step);
  StepWork work;
  switch_weights(&step, &work);
  work.swap_in = swap_in_;
  work.swap_out = swap_out_;
  work.moves = moves_;
  submit(slot, &work);
  swap_in_ = swap_out_ = 0;
  moves_.clear();
}

void Replica::submit(std::uint32_t slot, StepWork* work) {
  Step& step = steps_[slot];
  step.shape.waiting = static_cast<std::int64_t>(view_.waiting_.size() + view_.swapped_.size());
  work->replica = id_;
  work->slot = slot;
  work->slices = step.slices;
  work->adapters = step.adapters;
  work->host_adapters = step.host_adapters;
  work->shape = step.shape;
  work->model = step.model;
  work->mode = step.mode;
  work->view = &view_;
  shared_.backend->submit(*work);
}

// Apart from the rest: where there is one model, a step costs nothing more for it.
void Replica::check_models(const Step& step) const {
  for (const Slice& slice : step.slices) {
    SL_CHECK((*shared_.table)[index(slice.request)].model_ == step.model,
             "I12: a step runs requests of one model");
  }
}

// A step has few adapters on the host, as new requests bring them: looked up one by one.
void Replica::add_host_rows(const Slice& slice, const RequestView& r, Step* step) {
  SL_CHECK(slice.lora == LoraSite::kHost, "I1: no LoRA server is known to this replica");
  SL_CHECK(step->mode.exec == Exec::kUnmerged, "I3: a merged step computes no LoRA on the host");
  step->shape.add_host_rows(slice.tokens, r.rank_);
  std::vector<AdapterId>& used = step->host_adapters;
  if (std::find(used.begin(), used.end(), r.adapter_) != used.end()) return;
  used.push_back(r.adapter_);
  step->shape.add_host_adapter(r.rank_);
  if (step->mode.take_over == TakeOver::kNever ||
      adapters_->residency(r.adapter_) == Residency::kAbsent) {
    return;
  }
  adapters_->pin(r.adapter_);
  step->taken_over.push_back(r.adapter_);
}

void Replica::use_adapter(AdapterId id, Step* step) {
  SL_CHECK(adapters_->residency(id) != Residency::kAbsent,
           "I1: a step uses an adapter that is neither resident nor loading");
  adapters_->pin(id);
  step->adapters.push_back(id);
  step->shape.add_lora_adapter(view_.adapter(id).rank);
}

void Replica::use_model(ModelId id) {
  SL_CHECK(models_->residency(id) != Residency::kAbsent,
           "I12: the step's model is neither on the device nor loading");
  models_->touch(id, step_count_);
  models_->pin(id);
}

void Replica::switch_weights(Step* step, StepWork* work) {
  AdapterId& merged = view_.merged_[index(step->model)];
  if (step->merged == merged) return;
  SL_CHECK(view_.steps_in_flight_ == 1, "I3: weights may not change under a step in flight");
  if (merged != kBaseModel) {
    work->unmerge = merged;
    work->unmerge_rank = view_.adapter(merged).rank;
    adapters_->unpin(merged);
  }
  if (step->merged != kBaseModel) {
    SL_CHECK(adapters_->residency(step->merged) != Residency::kAbsent,
             "I1: merging an adapter that is neither resident nor loading");
    work->merge = step->merged;
    work->merge_rank = view_.adapter(step->merged).rank;
    adapters_->pin(step->merged);
  }
  merged = step->merged;
  ++totals_.switches;
  note_event(EventCode::kMerge,
             step->merged == kBaseModel ? -1 : static_cast<std::int64_t>(index(step->merged)), 0);
}

void Replica::enter_running(RequestId id, RequestView* r) {
  SL_CHECK(r->phase_ == Phase::kWaiting || r->phase_ == Phase::kSwapped,
           "I2: the request is not at this replica, or has ended");
  SL_CHECK(r->replica_ == id_, "I2: the request is at another replica");
  RequestRecord& record = record_of(id);
  if (r->phase_ == Phase::kWaiting) {
    stop_waiting(id, *r);
  } else {
    view_.swapped_.erase(id);
    swap_in_ += r->context_ * kv_per_token_[index(r->model_)];
    SL_CHECK(kv_->grow(&r->blocks_, view_.blocks_for(r->model_, r->context_)),
             "I4: swapping in needs more KV blocks than are free");
    note_move(id, *r, false);
  }
  r->phase_ = Phase::kRunning;
  view_.running_.push_back(id);
  count_user(*r, 1);
  if (record.admitted == kUnset) record.admitted = shared_.timeline->now();
}

// Moves the requests of a step that has ended on by it; those of the batch are told later. Returns
// how many sampled a token.
std::int64_t Replica::advance(const Step& step, TimeNs now, TimeNs started) {
  std::int64_t sampled = 0;
  if (step.decodes_all) {
    sampled = static_cast<std::int64_t>(batch_.size());
    end_decodes(now);
  } else if (!batch_.stands()) {
    settle();
  }
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
  if (!batch_.stands()) return sampled;
  for (const Slice& slice : step.slices) join_batch(slice.request);
  return sampled;
}

bool Replica::on_step_done(std::uint32_t slot, bool may_repeat) {
  const SchedulingWatch watch(this);
  Step& step = steps_[slot];
  SL_CHECK(step.active, "a step ended that never began");
  const StepTiming timing = shared_.backend->collect(id_, slot);
  finished_.clear();
  if (may_repeat && repeats_.left > 0 && batch_.first_end() > batch_.ended() + 1 &&
      repeat(slot, timing)) {
    return true;
  }
  if (timing.host_work.lost > 0) {
    note_event(EventCode::kWorkerLost, timing.host_work.lost, timing.host_work.recomputed);
  }
  if (shared_.record->options.keep_delivered) shared_.record->step_timings.push_back(timing);
  const TimeNs now = shared_.timeline->now();
  const std::int64_t sampled = advance(step, now, now - timing.busy());
  for (const AdapterId id : step.adapters) adapters_->unpin(id);
  for (const AdapterId id : step.taken_over) adapters_->unpin(id);
  if (takes_turns(step.model)) models_->unpin(step.model);
  step.active = false;
  --view_.steps_in_flight_;
  note_step(step, timing, sampled);
  report(step, timing);
  return false;
}

// Tells the policy of a step, with those before it that it has not been told of.
void Replica::report(const Step& step, const StepTiming& timing) {
  StepReport report;
  report.steps = repeats_.steps + 1;
  report.repeats = repeats_.repeated;
  report.slices = step.slices;
  report.finished = finished_;
  report.model = step.model;
  report.exec = step.mode.exec;
  report.merged = step.merged;
  report.duration = repeats_.duration + timing.busy();
  report.switch_time = repeats_.switching + timing.switching;
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
  shared_.backend->forget(id);
}

void Replica::finish() {
  settle();
  close_bin();
  close_logged();
  shared_.record->decision_hash.add(decision_hash_.value());
  totals_.kv_blocks_peak = kv_->peak_used_blocks();
  shared_.record->replicas.push_back(totals_);
  std::int64_t held = 0;
  for (const RequestId id : view_.running_) held += request(id).blocks_.count;
  for (AdapterId id = adapters_->oldest(); id != kBaseModel; id = adapters_->newer(id)) {
    held += adapters_->blocks_of(id);
  }
  SL_CHECK(held == kv_->used_blocks(), "I4: KV blocks were lost or handed out twice");
}

}  // namespace servelab

// Steps that repeat their plan (StepPlan::repeats): a batch that decodes a token each, until
// someone ends or something comes. A step is then a few sums, whatever its batch; its requests are
// told of it when somebody looks at them (settle()), which no result can tell from stepping.
#include <algorithm>

#include "engine/serve/replica.h"

namespace servelab {

void ReplicaView::settle() const { replica_->settle(); }

std::int64_t ReplicaView::blocks_to_decode_all() const { return replica_->blocks_to_decode_all(); }

// A plan is about to be submitted as `step`: how often may it be repeated? Not where the step
// itself changes what the next plan finds: whom it brings in, and which weights it lets go.
void Replica::expect_repeats(const StepPlan& plan, const Step& step) {
  Repeats& next = repeats_;
  const BatchShape& shape = step.shape;
  const bool decodes = shape.decode_requests == step.requests && shape.sampled == step.requests &&
                       shape.host_requests == 0;
  const bool settles = step.merged == view_.merged(step.model) && swap_in_ + swap_out_ == 0;
  next.left = next.possible && decodes && settles ? plan.repeats : 0;
  next.when_full = plan.repeats_when_full;
}

// A step has ended in which no request ends. Starts it again where blocks suffice.
bool Replica::repeat(std::uint32_t slot, const StepTiming& timing) {
  Step& step = steps_[slot];
  Repeats& next = repeats_;
  const std::int64_t blocks = batch_.next_blocks();
  if (blocks > kv_->free_blocks()) return false;

  batch_.end(shared_.timeline->now(), &shared_.record->itl);
  view_.unsettled_ = true;
  ++next.steps;
  next.duration += timing.busy();
  next.switching += timing.switching;
  note_step(step, timing, step.requests);
  SL_CHECK(kv_->take(blocks), "I4: the step needs more KV blocks than are free");
  batch_.start();
  start_again(slot);
  return true;
}

void Replica::start_again(std::uint32_t slot) {
  Step& step = steps_[slot];
  Repeats& next = repeats_;
  --next.left;
  ++next.repeated;
  ++step_count_;
  ++shared_.record->repeated_steps;
  step.shape.decode_context += step.shape.decode_requests;
  log_plan_again();
  StepWork work;
  submit(slot, &work);
}

// --- what requests are told of steps ---

// `steps` of its batch, up to the latest.
void Replica::settle(RequestView* r, std::int64_t steps) {
  if (steps > 0) {
    r->context_ += static_cast<std::int32_t>(steps);
    r->generated_ += static_cast<std::int32_t>(steps);
    r->last_token_ = batch_.last_end();
  }
  const std::int32_t tokens = r->context_ + (batch_.in_step() ? 1 : 0);
  if (r->blocks_.count * kv_->block_tokens() >= tokens * batch_.page_blocks()) return;
  const std::int64_t blocks = view_.blocks_for(r->model_, tokens) - r->blocks_.count;
  KvPool::give(&r->blocks_, blocks);
  batch_.pay(blocks);
}

void Replica::settle() {
  if (!view_.unsettled_) return;
  view_.unsettled_ = false;
  if (batch_.stands()) {
    for (DecodeBatch::Member& member : batch_.members()) {
      RequestView& r = request(member.id);
      r.in_step_ = batch_.in_step();
      settle(&r, batch_.ended() - member.since);
      member.since = batch_.ended();
    }
  } else {
    const std::int64_t steps = batch_.untold();
    for (const Slice& slice : steps_.front().slices) settle(&request(slice.request), steps);
  }
  SL_CHECK(batch_.owed_blocks() == 0,
           "I4: repeated steps took blocks that none of their requests needs");
}

// --- a batch that stands ---

Decoding Replica::decoding(RequestId id, const RequestView& r) const {
  const std::int32_t pages = r.blocks_.count / batch_.page_blocks();
  return {id,
          r.adapter_,
          r.rank_,
          r.context_,
          r.true_output_tokens_ - r.generated_,
          pages * kv_->block_tokens() - r.context_,
          r.last_token_};
}

// Every running request joins, if all decode. Where steps are looked at one by one, and where
// models share the replica, none stands.
bool Replica::stand_batch() {
  constexpr int kPlansBetween = 8;  // where it does not last
  if (!can_repeat_ || shared_.models.size() > 1 || --plans_before_batch_ > 0) return false;
  for (const RequestId id : view_.running_) {
    const RequestView& r = request(id);
    if (!r.decoding() || r.generated_ == 0) return false;
  }
  plans_before_batch_ = kPlansBetween;
  unfold_logged();
  batch_.begin(kv_->block_tokens(), view_.blocks_per_page_.front(), true);
  for (const RequestId id : view_.running_) join_batch(id);
  return true;
}

// A request that has just begun to decode. The batch is in the order in which requests run: one
// that began before others and decodes after them ends it.
void Replica::join_batch(RequestId id) {
  RequestView& r = request(id);
  if (!batch_.stands() || r.phase_ != Phase::kRunning || !r.decoding() || r.generated_ == 0) return;
  if (view_.running_[batch_.size()] != id) return dissolve_batch();
  r.is_member_ = true;
  batch_.join(decoding(id, r));
}

void Replica::dissolve_batch() {
  settle();
  unfold_logged();
  for (const DecodeBatch::Member& member : batch_.members()) request(member.id).is_member_ = false;
  batch_.clear();
}

std::int64_t Replica::blocks_to_decode_all() {
  if (view_.running_.empty() || view_.steps_in_flight_ > 0) return -1;
  if (!batch_.stands() && !stand_batch()) return -1;
  if (batch_.size() != view_.running_.size()) return -1;
  bool are_there = true;
  batch_.for_each_adapter(
      [&](AdapterId id) { are_there &= adapters_->residency(id) != Residency::kAbsent; });
  return are_there ? batch_.next_blocks() : -1;
}

void Replica::add_decodes(Step* step) {
  SL_CHECK(batch_.stands() && batch_.size() == view_.running_.size() && batch_.size() > 0,
           "I6: a plan decodes all where some have more to compute");
  SL_CHECK(step->mode.exec == Exec::kUnmerged,
           "I3: a merged step runs only its adapter's requests");
  SL_CHECK(kv_->take(batch_.next_blocks()), "I4: the step needs more KV blocks than are free");
  step->requests += static_cast<std::int64_t>(batch_.size());
  batch_.add_to(&step->shape);
  batch_.start();
  batch_.for_each_adapter([&](AdapterId id) {
    if (adapters_->touch(id, step_count_)) use_adapter(id, step);
  });
  view_.unsettled_ = true;
}

void Replica::end_decodes(TimeNs now) {
  batch_.end(now, &shared_.record->itl);
  view_.unsettled_ = true;
  for (RequestId id = batch_.pop_ended(); id != kNoRequest; id = batch_.pop_ended()) end_member(id);
  if (batch_.size() == 0) settle();
}

void Replica::end_member(RequestId id) {
  const std::span<const DecodeBatch::Member> members = batch_.members();
  const auto found = std::find_if(members.begin(), members.end(),
                                  [id](const DecodeBatch::Member& one) { return one.id == id; });
  const DecodeBatch::Member member = *found;
  RequestView& r = request(id);
  settle(&r, batch_.ended() - member.since);
  r.in_step_ = r.is_member_ = false;
  const Decoding as_it_ends = decoding(id, r);
  finish_request(id, &r);
  if (logged_.decode_all && member.seq < logged_.until) logged_.left.push_back(member);
  batch_.leave(static_cast<std::size_t>(found - members.begin()), as_it_ends,
               r.adapter_ == kBaseModel || adapters_->users(r.adapter_) == 0);
}

}  // namespace servelab

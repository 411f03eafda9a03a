// Steps that repeat their plan (StepPlan::repeats): a batch that decodes a token each, until
// someone ends or something comes. A step is then a few sums, whatever its batch; its requests are
// told of it when somebody looks at them (settle()), which no result can tell from stepping.
#include "engine/serve/replica.h"

namespace servelab {

void ReplicaView::settle() const { replica_->settle(); }

// A plan is about to be submitted as `step`: how often may it be repeated? Not where the step
// itself changes what the next plan finds: whom it brings in, and which weights it lets go.
void Replica::expect_repeats(const StepPlan& plan, const Step& step) {
  Repeats& next = repeats_;
  const auto requests = static_cast<std::int64_t>(step.slices.size());
  const BatchShape& shape = step.shape;
  const bool decodes =
      shape.decode_requests == requests && shape.sampled == requests && shape.host_requests == 0;
  const bool settles = step.merged == view_.merged(step.model) && swap_in_ + swap_out_ == 0;
  next.left = next.possible && decodes && settles ? plan.repeats : 0;
  next.when_full = plan.repeats_when_full;
}

// A step has ended in which no request ends. Starts it again where blocks suffice.
bool Replica::repeat(std::uint32_t slot, const StepTiming& timing) {
  Step& step = steps_[slot];
  Repeats& next = repeats_;
  const std::int64_t blocks = std::int64_t{next.pages[next.next_page]} * step.blocks_per_page;
  if (blocks > kv_->free_blocks()) return false;

  const TimeNs now = shared_.timeline->now();
  const auto sampled = static_cast<std::int64_t>(step.slices.size());
  if (next.even) {
    ++next.owed;
    shared_.record->itl.add(now - next.last_end, sampled);
  } else {
    advance<true>(step, now, now - timing.busy());
    next.even = true;
  }
  next.last_end = now;
  view_.unsettled_ = true;
  --next.least_left;
  ++next.steps;
  next.duration += timing.busy();
  next.switching += timing.switching;
  note_step(step, timing, sampled);
  SL_CHECK(kv_->take(blocks), "I4: the step needs more KV blocks than are free");
  next.taken += blocks;
  start_again(slot);
  return true;
}

void Replica::start_again(std::uint32_t slot) {
  Step& step = steps_[slot];
  Repeats& next = repeats_;
  --next.left;
  ++next.repeated;
  if (++next.next_page == next.pages.size()) next.next_page = 0;
  ++step_count_;
  ++shared_.record->repeated_steps;
  step.shape.decode_context += step.shape.decode_requests;
  log_plan_again();
  StepWork work;
  submit(slot, &work);
}

}  // namespace servelab

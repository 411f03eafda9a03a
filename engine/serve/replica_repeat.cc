// Steps that repeat their plan (StepPlan::repeats): a batch that decodes a token each, until
// someone ends or something comes. A step is then a few sums, whatever its batch; its requests are
// told of it when somebody looks at them (settle()), which no result can tell from stepping.
#include <algorithm>

#include "engine/serve/replica.h"

namespace servelab {

void ReplicaView::settle() const { replica_->settle(); }

// A plan is about to be submitted as `step`: how often may it be repeated? Not where the step
// itself changes what the next plan finds: whom it brings in, and which weights it lets go.
void Replica::expect_repeats(const StepPlan& plan, const Step& step) {
  Repeats& next = repeats_;
  next.steps = next.repeated = 0;
  next.duration = next.switching = 0;
  next.counted = false;
  const auto requests = static_cast<std::int64_t>(step.slices.size());
  const BatchShape& shape = step.shape;
  const bool decodes =
      shape.decode_requests == requests && shape.sampled == requests && shape.host_requests == 0;
  const bool settles = step.merged == view_.merged(step.model) && swap_in_ + swap_out_ == 0;
  next.left = can_repeat_ && decodes && settles && plan.only_runs() ? plan.repeats : 0;
  next.when_full = plan.repeats_when_full;
  next.quiet = least_left_ - 1;
}

// A step has ended in which no request ends. Starts it again where blocks suffice.
bool Replica::repeat(std::uint32_t slot, const StepTiming& timing) {
  Step& step = steps_[slot];
  Repeats& next = repeats_;
  if (!next.counted) count_pages(step);
  const std::int64_t blocks = std::int64_t{next.pages[next.next_page]} * step.blocks_per_page;
  if (blocks > kv_->free_blocks()) return false;

  const TimeNs now = shared_.timeline->now();
  const auto sampled = static_cast<std::int64_t>(step.slices.size());
  if (next.counted) {
    ++next.owed;
    shared_.record->itl.add(now - next.last_end, sampled);
  } else {
    advance<true>(step, now, now - timing.busy());
    next.counted = true;
  }
  next.last_end = now;
  view_.unsettled_ = true;
  --next.quiet;
  ++next.steps;
  next.duration += timing.busy();
  next.switching += timing.switching;
  note_step(step, timing, sampled);
  SL_CHECK(kv_->take(blocks), "I4: the step needs more KV blocks than are free");
  next.taken += blocks;
  start_again(slot);
  return true;
}

// How many requests need another page of KV in each of the steps that will follow the one that has
// just ended, the requests of which do not know that yet.
void Replica::count_pages(const Step& step) {
  const auto page = static_cast<std::size_t>(kv_->block_tokens());
  repeats_.pages.assign(page, 0);
  repeats_.next_page = 0;
  for (const Slice& slice : step.slices) {
    const RequestView& r = request(slice.request);
    const std::int64_t room =
        std::int64_t{r.blocks_.count} / step.blocks_per_page * kv_->block_tokens() -
        (r.context_ + 1);
    SL_CHECK(room >= 0 && room < kv_->block_tokens(), "I4: a request holds blocks for no token");
    ++repeats_.pages[static_cast<std::size_t>(room)];
  }
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

void Replica::settle() {
  if (!view_.unsettled_) return;
  view_.unsettled_ = false;
  const auto steps = static_cast<std::int32_t>(repeats_.owed);
  for (const Slice& slice : steps_.front().slices) {
    RequestView& r = request(slice.request);
    r.context_ += steps;
    r.generated_ += steps;
    r.last_token_ = repeats_.last_end;
    const std::int64_t blocks = view_.blocks_for(r.model_, r.context_ + 1) - r.blocks_.count;
    if (blocks <= 0) continue;
    KvPool::give(&r.blocks_, blocks);
    repeats_.taken -= blocks;
  }
  repeats_.owed = 0;
  SL_CHECK(repeats_.taken == 0, "I4: repeated steps took blocks that none of their requests needs");
}

}  // namespace servelab

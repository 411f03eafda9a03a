#include "baselines/shared/step_builder.h"

#include <algorithm>

namespace servelab {

void StepBuilder::begin(const ReplicaView& view, StepPlan* plan) {
  begin(view, plan, view.limits().max_batch);
}

void StepBuilder::begin(const ReplicaView& view, StepPlan* plan, int max_batch) {
  view_ = &view;
  plan_ = plan;
  requests_left_ = std::min(max_batch, view.limits().max_batch);
  tokens_left_ = view.limits().max_batch_tokens;
  block_tokens_ = view.kv().block_tokens();
  page_blocks_ = static_cast<int>(view.blocks_for(plan->model, 1));
  free_blocks_ = view.kv().free_blocks();
  free_slots_ = view.adapters().slots() - view.adapters().held();
  acquired_ = kBaseModel;
}

bool StepBuilder::evicted(AdapterId id) const {
  return std::find(plan_->evict.begin(), plan_->evict.end(), id) != plan_->evict.end();
}

bool StepBuilder::preempted(RequestId id) const {
  return std::any_of(plan_->preempt.begin(), plan_->preempt.end(),
                     [id](const Preemption& p) { return p.request == id; });
}

bool StepBuilder::in_step(RequestId id) const {
  if (plan_->decode_all && view_->request(id).phase() == Phase::kRunning) return true;
  return std::any_of(plan_->slices.begin(), plan_->slices.end(),
                     [id](const Slice& slice) { return slice.request == id; });
}

bool StepBuilder::uses(AdapterId id) const {
  if (plan_->decode_all && view_->adapters().users(id) > 0) return true;
  return std::any_of(plan_->slices.begin(), plan_->slices.end(), [&](const Slice& slice) {
    return view_->request(slice.request).adapter() == id;
  });
}

bool StepBuilder::acquire(AdapterId id, RequestId for_request) {
  acquired_ = id;
  if (id == kBaseModel) return true;
  const AdapterPool& pool = view_->adapters();
  if (pool.residency(id) != Residency::kAbsent && !evicted(id)) return true;
  if (std::find(plan_->load.begin(), plan_->load.end(), id) != plan_->load.end()) return true;
  if (evicted(id)) return false;  // it just gave way to another in this very plan
  if (pool.memory() == AdapterMemory::kSlots) {
    while (free_slots_ <= 0) {
      if (!evict_one()) return false;
    }
    --free_slots_;
  } else {
    const std::int64_t blocks = pool.blocks_of(id);
    if (!make_room(blocks, for_request)) return false;
    free_blocks_ -= blocks;
  }
  plan_->load.push_back(id);
  return true;
}

bool StepBuilder::evict_one() {
  const AdapterPool& pool = view_->adapters();
  const AdapterId id = least_needed(pool, options_.evict_paused, [this](AdapterId held) {
    return held == acquired_ || evicted(held) || uses(held);
  });
  if (id == pool.kNone) return false;
  plan_->evict.push_back(id);
  ++free_slots_;
  free_blocks_ += pool.blocks_of(id);
  return true;
}

std::int64_t StepBuilder::blocks_missing(RequestId id, int tokens) const {
  const RequestView& r = view_->request(id);
  return std::max<std::int64_t>(0, view_->blocks_for(r.model(), r.context() + tokens) - r.blocks());
}

void StepBuilder::preempt(RequestId id) {
  free_blocks_ += view_->request(id).blocks();
  plan_->preempt.push_back(Preemption{id, options_.preempt_mode});
}

bool StepBuilder::make_room(std::int64_t blocks, RequestId for_request) {
  while (free_blocks_ < blocks) {
    if (view_->adapters().memory() == AdapterMemory::kUnified && evict_one()) continue;
    RequestId victim = for_request;
    for (const RequestId id : view_->running()) {
      if (victim < id && !preempted(id) && !in_step(id)) victim = id;
    }
    if (victim == for_request) return false;
    preempt(victim);
  }
  return true;
}

StepBuilder::Added StepBuilder::add(RequestId id) {
  if (full() || preempted(id)) return Added::kStepFull;
  const RequestView& r = view_->request(id);
  int tokens = r.pending();
  if (tokens > tokens_left_) {
    const EngineLimits& limits = view_->limits();
    const bool too_long = tokens > limits.max_batch_tokens - limits.max_batch;
    if (!options_.chunked_prefill && !too_long) return Added::kStepFull;
    tokens = tokens_left_;
  }
  const std::int64_t missing = blocks_missing(id, tokens);
  if (missing > free_blocks_ && !make_room(missing, id)) return Added::kNoMemory;
  free_blocks_ -= missing;
  --requests_left_;
  tokens_left_ -= tokens;
  plan_->slices.push_back(Slice{id, tokens});
  return Added::kYes;
}

bool StepBuilder::add_decodes_at_once() {
  const std::size_t requests = view_->running().size();
  if (static_cast<int>(requests) > std::min(requests_left_, tokens_left_)) return false;
  const std::int64_t blocks = view_->blocks_to_decode_all();
  if (blocks < 0 || blocks > free_blocks_) return false;
  plan_->decode_all = true;
  requests_left_ -= static_cast<int>(requests);
  tokens_left_ -= static_cast<int>(requests);
  free_blocks_ -= blocks;
  return true;
}

void StepBuilder::add_running() {
  if (add_decodes_at_once()) return;
  for (const RequestId id : view_->running()) {
    if (preempted(id)) continue;
    const RequestView& r = view_->request(id);
    if (r.decoding() && add_decode(id, r)) continue;
    add_or_yield(id);
  }
}

bool StepBuilder::add_or_yield(RequestId id) {
  const Added added = add(id);
  if (added == Added::kNoMemory && view_->request(id).phase() == Phase::kRunning) preempt(id);
  return added == Added::kYes;
}

}  // namespace servelab

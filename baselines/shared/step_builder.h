// Fills a StepPlan while keeping count of what it uses up: requests, tokens, KV blocks, adapter
// room. Techniques decide whom to serve; the builder decides whether it fits, and what must give
// way. It keeps the engine's limits, so that plans made with it pass Replica::apply.
#ifndef SERVELAB_BASELINES_SHARED_STEP_BUILDER_H_
#define SERVELAB_BASELINES_SHARED_STEP_BUILDER_H_

#include <cstdint>
#include <vector>

#include "engine/serve/plan.h"
#include "engine/serve/view.h"

namespace servelab {

// The least recently used of those that may leave the device and are not `kept`: one that nobody
// runs, else (if allowed) one of paused requests, which run but not in this step. kNone: no such.
template <class Id, class Kept>
Id least_needed(const WeightPool<Id>& pool, bool evict_paused, Kept kept) {
  for (const bool paused : {false, true}) {
    if (paused && !evict_paused) break;
    for (Id id = pool.oldest(); id != pool.kNone; id = pool.newer(id)) {
      if (pool.evictable(id) && (paused || pool.users(id) == 0) && !kept(id)) return id;
    }
  }
  return pool.kNone;
}

class StepBuilder {
 public:
  struct Options {
    PreemptMode preempt_mode = PreemptMode::kRecompute;
    // Split a prompt that exceeds what is left of the step's token budget. Without it a prompt
    // waits for a step with room, unless it is so long that it could not be sure of one beside a
    // full batch of decodes: such prompts are always split.
    bool chunked_prefill = false;
    // Adapters of paused requests (running, but not in this step) may be evicted.
    bool evict_paused = false;
  };

  explicit StepBuilder(const Options& options) : options_(options) {}

  // Starts a new plan, whose `model` is set. `max_batch` caps the requests of this step below the
  // engine's limit.
  void begin(const ReplicaView& view, StepPlan* plan);
  void begin(const ReplicaView& view, StepPlan* plan, int max_batch);

  bool full() const { return requests_left_ == 0 || tokens_left_ == 0; }
  int requests_left() const { return requests_left_; }
  std::int64_t free_blocks() const { return free_blocks_; }

  // Makes sure that `id` is on the device when the step runs: resident, loading, or loaded by this
  // plan, evicting the least recently used idle adapters. Where adapters share the KV cache's
  // blocks and `for_request` is given, later arrivals than it give way too. False when there is no
  // room.
  bool acquire(AdapterId id, RequestId for_request = kNoRequest);

  // Adds a slice with the request's pending tokens. Preempts later arrivals that are not in this
  // step when blocks run out.
  enum class Added {
    kYes,
    kStepFull,  // the step has no room for it: requests or tokens
    kNoMemory,  // nobody can give way to it; a running request may then be preempted itself
  };
  Added add(RequestId id);
  // Adds what every running request computes next, in the order of running(): at once where all
  // decode and fit, else one by one; when memory runs out the newest give way.
  void add_running();
  // The first of these alone, which may fail: then nothing is added.
  bool add_decodes_at_once();
  // add(), and a running request that finds no memory is preempted itself, so that others go on.
  bool add_or_yield(RequestId id);

  // Adds a slice for a decoding request that holds enough blocks, or one more that is free.
  bool add_decode(RequestId id, const RequestView& r) {
    if (full() || (!plan_->preempt.empty() && preempted(id))) return false;
    if ((r.context() + 1) * page_blocks_ > r.blocks() * block_tokens_) {
      if (free_blocks_ < page_blocks_) return false;
      free_blocks_ -= page_blocks_;
    }
    --requests_left_;
    --tokens_left_;
    plan_->slices.push_back(Slice{id, 1});
    return true;
  }

  void preempt(RequestId id);
  bool preempted(RequestId id) const;
  bool evicted(AdapterId id) const;  // by this plan
  bool uses(AdapterId id) const;     // in this plan's slices

 private:
  bool make_room(std::int64_t blocks, RequestId for_request);
  bool evict_one();
  bool in_step(RequestId id) const;
  std::int64_t blocks_missing(RequestId id, int tokens) const;

  Options options_;
  const ReplicaView* view_ = nullptr;
  StepPlan* plan_ = nullptr;
  int requests_left_ = 0;
  int tokens_left_ = 0;
  int block_tokens_ = 1;
  int page_blocks_ = 1;  // KV blocks for block_tokens_ of the model's tokens
  std::int64_t free_blocks_ = 0;
  std::int64_t free_slots_ = 0;
  AdapterId acquired_ = kBaseModel;  // must not give way before its request is added
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_STEP_BUILDER_H_

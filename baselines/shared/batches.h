// Batches that several techniques start from.
#ifndef SERVELAB_BASELINES_SHARED_BATCHES_H_
#define SERVELAB_BASELINES_SHARED_BATCHES_H_

#include <algorithm>
#include <vector>

#include "baselines/shared/step_builder.h"
#include "engine/serve/view.h"

namespace servelab {

// The `limit` oldest unfinished requests of a replica, by arrival, whatever their phase: dLoRA's
// B_fcfs (dLoRA 4.2). `out` is reused.
void oldest_requests(const ReplicaView& view, int limit, std::vector<RequestId>* out);

// The `limit` oldest unfinished requests of one adapter, or of one model without an adapter: of
// view.requests_of() it.
void oldest_of(const ReplicaView& view, const AdapterQueue& queue, int limit,
               std::vector<RequestId>* out);

// Whom a step serves that is for one adapter (`of` = &RequestView::adapter) or one model: requests
// of the oldest one's, or with `prefix` what stands before the first of another in the queue. Empty
// where nobody waits.
template <class Id>
void batch_of_oldest(const ReplicaView& view, Id (RequestView::*of)() const, bool prefix,
                     std::vector<RequestId>* out) {
  const int most = view.limits().max_batch;
  oldest_requests(view, prefix ? most : 1, out);
  if (out->empty()) return;
  const Id id = (view.request(out->front()).*of)();
  if (!prefix) return oldest_of(view, view.requests_of(id), most, out);
  const auto is_other = [&](RequestId r) { return (view.request(r).*of)() != id; };
  out->erase(std::find_if(out->begin(), out->end(), is_other), out->end());
}

// Adds `batch` in order until something does not fit; adapters are acquired as needed. When the
// head itself finds no blocks, later arrivals give way to it. Returns how many were added.
int add_batch(const ReplicaView& view, const std::vector<RequestId>& batch, StepBuilder* builder);

// The same of oldest_requests(); `batch` is reused.
int add_oldest(const ReplicaView& view, int limit, StepBuilder* builder,
               std::vector<RequestId>* batch);

// The aggregates of one step over the pending tokens of a batch, as far as the step's token budget
// goes: what CostModel::step wants.
class BatchShaper {
 public:
  BatchShape shape_of(const ReplicaView& view, const std::vector<RequestId>& batch);

 private:
  std::vector<AdapterId> seen_;  // reused
};

// Merged over unmerged time of a full decode step of a replica, every request with an adapter of
// its own (as far as there are that many) of the largest rank.
double merged_speed_ratio(const ReplicaView& view, LoraKernel kernel);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_BATCHES_H_

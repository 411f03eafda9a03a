// Batches that several techniques start from.
#ifndef SERVELAB_BASELINES_SHARED_BATCHES_H_
#define SERVELAB_BASELINES_SHARED_BATCHES_H_

#include <vector>

#include "baselines/shared/step_builder.h"
#include "engine/serve/view.h"

namespace servelab {

// The `limit` oldest unfinished requests of a replica, by arrival, whatever their phase: dLoRA's
// B_fcfs (dLoRA 4.2). `out` is reused.
void oldest_requests(const ReplicaView& view, int limit, std::vector<RequestId>* out);

// The `limit` oldest unfinished requests of one adapter.
void oldest_of_adapter(const ReplicaView& view, AdapterId adapter, int limit,
                       std::vector<RequestId>* out);

// Likewise of one model, of those without an adapter.
void oldest_of_model(const ReplicaView& view, ModelId model, int limit,
                     std::vector<RequestId>* out);

// Adds `batch` in order until something does not fit; adapters are acquired as needed. When the
// head itself finds no blocks, later arrivals give way to it. Returns how many were added.
int add_batch(const ReplicaView& view, const std::vector<RequestId>& batch, StepBuilder* builder);

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

#include "baselines/shared/batches.h"

#include <algorithm>

namespace servelab {

void oldest_requests(const ReplicaView& view, int limit, std::vector<RequestId>* out) {
  const auto most = static_cast<std::size_t>(limit);
  const auto take = [&](std::span<const RequestId> ids) {
    out->insert(out->end(), ids.begin(),
                ids.begin() + static_cast<std::ptrdiff_t>(std::min(most, ids.size())));
  };
  out->assign(view.running().begin(), view.running().end());
  take(view.swapped());
  take(view.waiting());
  const std::size_t kept = std::min(most, out->size());
  std::partial_sort(out->begin(), out->begin() + static_cast<std::ptrdiff_t>(kept), out->end());
  out->resize(kept);
}

void oldest_of(const ReplicaView& view, const AdapterQueue& queue, int limit,
               std::vector<RequestId>* out) {
  out->clear();
  for (RequestId id = queue.head; id != kNoRequest && static_cast<int>(out->size()) < limit;
       id = view.next_of(id)) {
    out->push_back(id);
  }
}

namespace {

int add_after(const ReplicaView& view, int added, const std::vector<RequestId>& batch,
              StepBuilder* builder) {
  for (const RequestId id : batch) {
    if (builder->full()) break;
    if (builder->preempted(id)) continue;
    const RequestId head = added == 0 ? id : kNoRequest;
    if (!builder->acquire(view.request(id).adapter(), head)) continue;
    if (builder->add_or_yield(id)) {
      ++added;
    } else if (!builder->preempted(id)) {
      break;
    }
  }
  return added;
}

}  // namespace

int add_batch(const ReplicaView& view, const std::vector<RequestId>& batch, StepBuilder* builder) {
  return add_after(view, 0, batch, builder);
}

int add_oldest(const ReplicaView& view, int limit, StepBuilder* builder,
               std::vector<RequestId>* batch) {
  const std::span<const RequestId> running = view.running(), waiting = view.waiting();
  const bool run_first = view.swapped().empty() && std::ranges::is_sorted(running) &&
                         static_cast<int>(running.size()) <= limit &&
                         (running.empty() || waiting.empty() || running.back() < waiting.front());
  if (!run_first || !builder->add_decodes_at_once()) {
    oldest_requests(view, limit, batch);
    return add_batch(view, *batch, builder);
  }
  const std::size_t more =
      std::min(static_cast<std::size_t>(limit) - running.size(), waiting.size());
  batch->assign(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(more));
  return add_after(view, static_cast<int>(running.size()), *batch, builder);
}

double merged_speed_ratio(const ReplicaView& view, LoraKernel kernel) {
  constexpr int kContext = 256;  // tokens; the ratio hardly depends on it
  BatchShape shape;
  int max_rank = 0;
  for (const Adapter& adapter : view.adapter_table()) max_rank = std::max(max_rank, adapter.rank);
  for (int i = 0; i < view.limits().max_batch; ++i) {
    shape.add_slice(1, kContext, true);
    shape.add_lora_rows(1, kContext, max_rank);
    if (static_cast<std::size_t>(i) < view.adapter_table().size()) shape.add_lora_adapter(max_rank);
  }
  const CostModel& cost = view.cost();
  return static_cast<double>(cost.step(shape, Exec::kMerged, kernel).total()) /
         static_cast<double>(cost.step(shape, Exec::kUnmerged, kernel).total());
}

BatchShape BatchShaper::shape_of(const ReplicaView& view, const std::vector<RequestId>& batch) {
  BatchShape shape;
  seen_.clear();
  for (const RequestId id : batch) {
    const RequestView& r = view.request(id);
    const std::int64_t n =
        std::min<std::int64_t>(r.pending(), view.limits().max_batch_tokens - shape.tokens);
    if (n <= 0) break;
    shape.add_slice(n, r.context(), n == r.pending());
    if (r.adapter() == kBaseModel) continue;
    const int rank = view.adapter(r.adapter()).rank;
    shape.add_lora_rows(n, r.context(), rank);
    if (std::find(seen_.begin(), seen_.end(), r.adapter()) != seen_.end()) continue;
    seen_.push_back(r.adapter());
    shape.add_lora_adapter(rank);
  }
  return shape;
}

}  // namespace servelab

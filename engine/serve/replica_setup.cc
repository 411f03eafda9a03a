// How a replica divides its device's memory when it starts, and its queues by adapter.
#include <algorithm>

#include "engine/serve/replica.h"

namespace servelab {
namespace {

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

MemorySplit split_memory(const ClusterSettings& settings, const std::vector<Adapter>& adapters,
                         bool serves_base) {
  const EngineSettings& engine = settings.engine;
  const ReplicaMemory& memory = settings.memory;
  const bool whole = engine.adapter_form == AdapterForm::kWholeModel;
  const Bytes block_bytes = memory.kv_per_token * engine.block_tokens;
  SL_CHECK(block_bytes > 0, "a KV block has a size");
  MemorySplit split;
  split.adapters.memory = engine.cached_adapters ? AdapterMemory::kSlots : engine.adapter_memory;
  split.adapters.block_bytes = block_bytes;
  // Whole models come without a shared base, unless someone asks for the base model itself.
  const bool base = !whole || serves_base;
  Bytes left = memory.device - memory.activations - (base ? memory.weights : 0);
  if (split.adapters.memory == AdapterMemory::kSlots) {
    const auto served = static_cast<std::int64_t>(adapters.size());
    const bool all = engine.cached_adapters || engine.adapter_slots == 0;
    split.adapters.slots = all ? served : std::min<std::int64_t>(engine.adapter_slots, served);
    split.adapters.slot_bytes = whole ? memory.weights : largest_adapter(adapters);
    if (!engine.cached_adapters) left -= split.adapters.slots * split.adapters.slot_bytes;
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
      device_share_(settings.engine.device_share),
      kv_per_token_(settings.memory.kv_per_token),
      whole_model_bytes_(settings.memory.weights),
      max_context_tokens_(settings.memory.max_context_tokens) {
  const Workload& workload = *shared.workload;
  const bool serves_base = std::any_of(workload.requests.begin(), workload.requests.end(),
                                       [](const Request& r) { return r.adapter == kBaseModel; });
  const MemorySplit split = split_memory(settings, workload.adapters, serves_base);
  kv_ = std::make_unique<KvPool>(split.blocks, settings.engine.block_tokens);
  adapters_ = std::make_unique<AdapterPool>(split.adapters, workload.adapters, kv_.get());

  view_.id_ = id;
  view_.limits_ = settings.engine.limits;
  view_.cost_ = &shared.backend->cost();
  view_.table_ = shared.table;
  view_.arrivals_ = &workload.requests;
  view_.timeline_ = shared.timeline;
  view_.adapter_table_ = workload.adapters;
  view_.queues_.resize(workload.adapters.size() + 1);
  view_.active_position_.resize(workload.adapters.size() + 1);
  view_.kv_ = kv_.get();
  view_.adapters_ = adapters_.get();

  ReplicaLayout layout;
  layout.kv_blocks = split.blocks;
  layout.block_tokens = settings.engine.block_tokens;
  layout.max_batch = settings.engine.limits.max_batch;
  layout.max_batch_tokens = settings.engine.limits.max_batch_tokens;
  layout.whole_models = form_ == AdapterForm::kWholeModel;
  layout.padded_adapters = settings.engine.adapter_memory == AdapterMemory::kSlots;
  layout.adapters = layout.padded_adapters ? split.adapters.slots
                                           : static_cast<std::int64_t>(workload.adapters.size());
  layout.pool_bytes = split.blocks * split.adapters.block_bytes;
  shared.backend->attach(id, layout);

  steps_.resize(static_cast<std::size_t>(shared.backend->max_steps_in_flight()));
  totals_.kv_blocks_total = split.blocks;
  totals_.device_bytes = settings.memory.device;
  totals_.weight_bytes = settings.memory.weights;
  totals_.kv_block_bytes = split.adapters.block_bytes;
  bin_.replica = id;
  bin_end_ = shared.record->options.bin;
  gauges_ = policy_->gauges();
  gauge_values_.resize(gauges_.size());
  first_gauge_ = shared.record->gauges.size();
  for (const Gauge& gauge : gauges_) {
    shared.record->gauges.push_back(GaugeSeries{gauge.name, id, {}, {}});
  }
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

// How a replica starts from its unit, and its queues by adapter and model.
#include <algorithm>

#include "engine/serve/replica.h"

namespace servelab {
namespace {

// Steps that repeat are not looked at one by one: not where a device reads their requests, several
// are in flight, or each is recorded.
bool may_repeat(const ClusterSettings& settings, const SharedState& shared) {
  const RecorderOptions& options = shared.record->options;
  return !settings.step_by_step && !shared.backend->reads_requests() &&
         shared.backend->max_steps_in_flight() == 1 && !options.token_times && !options.steps &&
         !options.measure_scheduling && !options.keep_delivered;
}

}  // namespace

Replica::Replica(ReplicaId id, const ClusterSettings& settings, const Unit& unit,
                 const UnitMemory& memory, const SharedState& shared,
                 std::unique_ptr<ReplicaPolicy> policy)
    : id_(id),
      shared_(shared),
      policy_(std::move(policy)),
      turns_(shared.models.size()),
      kv_per_token_(shared.models.size()),
      can_repeat_(may_repeat(settings, shared)) {
  const Workload& workload = *shared.workload;
  const EngineSettings& engine = settings.engine;
  std::vector<Bytes> adapter_bytes;
  for (const Adapter& adapter : workload.adapters) adapter_bytes.push_back(adapter.bytes);
  std::vector<Bytes> model_bytes(shared.models.size());
  for (const UnitModel& entry : unit.models) {
    const std::size_t m = index(entry.model);
    const ModelMemory& needs = shared.models[m].on(static_cast<int>(unit.devices.size()));
    turns_[m] = entry.takes_turns;
    kv_per_token_[m] = needs.kv_per_token;
    model_bytes[m] = needs.weights;
  }
  preloaded_models_ = engine.preloaded_models ? unit.model_slots : 0;
  kv_ = std::make_unique<KvPool>(memory.kv_blocks, engine.block_tokens,
                                 shared.backend->reads_requests());
  adapters_ = std::make_unique<AdapterPool>(memory.adapters, std::move(adapter_bytes), kv_.get());
  models_ = std::make_unique<ModelPool>(memory.models, std::move(model_bytes), kv_.get());

  ReplicaLayout layout;
  layout.devices = unit.devices;
  layout.models = unit.models;
  layout.kv_blocks = memory.kv_blocks;
  layout.block_tokens = engine.block_tokens;
  layout.max_batch = engine.limits.max_batch;
  layout.max_batch_tokens = engine.limits.max_batch_tokens;
  layout.model_slots = unit.model_slots;
  layout.padded_adapters = engine.adapter_memory == AdapterMemory::kSlots;
  if (layout.padded_adapters) {
    layout.widest_rank = unit.slot_rank;
  } else {
    for (const Adapter& adapter : workload.adapters) {
      layout.widest_rank = std::max(layout.widest_rank, adapter.rank);
    }
  }
  layout.adapters = layout.padded_adapters ? memory.adapters.slots
                                           : static_cast<std::int64_t>(workload.adapters.size());
  layout.pool_bytes = memory.kv_blocks * memory.block_bytes;
  layout.load_path = engine.path();
  layout.model_load_path = engine.model_load_path;
  shared.backend->attach(id, layout);

  view_.replica_ = this;
  view_.id_ = id;
  view_.limits_ = engine.limits;
  view_.unit_ = &unit;
  view_.costs_.resize(shared.models.size());
  for (const UnitModel& entry : unit.models) {
    view_.costs_[index(entry.model)] = &shared.backend->cost(id, entry.model);
  }
  view_.load_path_ = layout.load_path;
  view_.blocks_per_page_ = memory.blocks_per_page;
  view_.merged_.resize(shared.models.size(), kBaseModel);
  view_.table_ = shared.table;
  view_.arrivals_ = &workload.requests;
  view_.timeline_ = shared.timeline;
  view_.adapter_table_ = workload.adapters;
  view_.queues_.resize(workload.adapters.size() + shared.models.size());
  view_.active_position_.resize(workload.adapters.size() + 1);
  view_.kv_ = kv_.get();
  view_.block_bytes_ = memory.block_bytes;
  view_.adapters_ = adapters_.get();
  view_.models_ = models_.get();

  steps_.resize(static_cast<std::size_t>(shared.backend->max_steps_in_flight()));
  totals_.kv_blocks_total = memory.kv_blocks;
  totals_.device_bytes = settings.device_memory;
  totals_.weight_bytes = memory.weights + memory.models.slots * memory.models.slot_bytes;
  totals_.kv_block_bytes = memory.block_bytes;
  bin_.replica = id;
  bin_end_ = shared.record->options.bin;
  gauges_ = policy_->gauges();
  gauge_values_.resize(gauges_.size());
  first_gauge_ = shared.record->gauges.size();
  for (const Gauge& gauge : gauges_) {
    shared.record->gauges.push_back(GaugeSeries{gauge.name, id, {}, {}});
  }
}

// --- queues ---

void Replica::wait(RequestId id, const RequestView& r) {
  view_.waiting_.insert(id);
  view_.waiting_ranks_.add(r.rank_);
  RequestId& from = view_.queues_[view_.queue_index(r)].waiting_from;
  from = std::min(from, id);
}

void Replica::stop_waiting(RequestId id, const RequestView& r) {
  view_.waiting_.erase(id);
  view_.waiting_ranks_.remove(r.rank_);
}

void Replica::queue_insert(RequestId id, RequestView* r) {
  const std::size_t at = view_.queue_index(*r);
  AdapterQueue& queue = view_.queues_[at];
  RequestId after = queue.tail;  // almost always the place: requests come in order
  while (after != kNoRequest && id < after) after = request(after).previous_of_adapter_;
  const RequestId before = after == kNoRequest ? queue.head : request(after).next_of_adapter_;
  r->previous_of_adapter_ = after;
  r->next_of_adapter_ = before;
  (after == kNoRequest ? queue.head : request(after).next_of_adapter_) = id;
  (before == kNoRequest ? queue.tail : request(before).previous_of_adapter_) = id;
  view_.unfinished_ranks_.add(r->rank_);
  shared_.loads->set(index(id_), view_.unfinished());
  if (queue.count++ == 0 && at < view_.active_position_.size()) {
    view_.active_position_[at] = static_cast<std::uint32_t>(view_.active_.size());
    view_.active_.push_back(r->adapter_);
  }
}

void Replica::queue_erase(RequestId id, RequestView* r) {
  const std::size_t at = view_.queue_index(*r);
  AdapterQueue& queue = view_.queues_[at];
  const RequestId after = r->previous_of_adapter_;
  const RequestId before = r->next_of_adapter_;
  SL_CHECK((after == kNoRequest ? queue.head : request(after).next_of_adapter_) == id,
           "I8: an adapter's queue does not hold the request");
  (after == kNoRequest ? queue.head : request(after).next_of_adapter_) = before;
  (before == kNoRequest ? queue.tail : request(before).previous_of_adapter_) = after;
  if (queue.waiting_from == id) queue.waiting_from = before;
  r->previous_of_adapter_ = r->next_of_adapter_ = kNoRequest;
  view_.unfinished_ranks_.remove(r->rank_);
  shared_.loads->set(index(id_), view_.unfinished());
  if (--queue.count == 0 && at < view_.active_position_.size()) {
    const std::uint32_t position = view_.active_position_[at];
    const AdapterId last = view_.active_.back();
    view_.active_[position] = last;
    view_.active_position_[view_.queue_index(last, {})] = position;
    view_.active_.pop_back();
  }
}

}  // namespace servelab

// What policies may see: the information boundary. Everything here is const, kept up to date by the
// replica, and never rebuilt. There is no clock, no random stream and no true output length.
#ifndef SERVELAB_SERVE_VIEW_H_
#define SERVELAB_SERVE_VIEW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/deployment.h"
#include "engine/serve/engine_settings.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/load_index.h"
#include "engine/serve/rank_counts.h"
#include "engine/serve/request.h"
#include "engine/serve/timeline.h"
#include "engine/serve/weight_pool.h"

namespace servelab {

class Replica;
class Cluster;
class ReplicaView;

enum class Phase : std::uint8_t {
  kPending,  // not at a replica (not arrived yet, or on its way between two)
  kWaiting,  // at a replica, nothing on the device
  kRunning,  // KV cache on the device; may or may not be in the next step
  kSwapped,  // KV cache in host memory
  kDone,     // finished or rejected
};

// A request as policies see it: 64 bytes, the hot state of the whole core.
class RequestView {
 public:
  ModelId model() const { return model_; }
  AdapterId adapter() const { return adapter_; }
  int prompt_tokens() const { return prompt_tokens_; }
  int generated() const { return generated_; }                            // output tokens so far
  int context() const { return context_; }                                // tokens whose KV exists
  int pending() const { return prompt_tokens_ + generated_ - context_; }  // >= 1 until done
  int output_limit() const { return output_limit_; }                      // the client's max_tokens
  int remaining_limit() const { return output_limit_ - generated_; }
  bool decoding() const { return pending() == 1 && context_ > 0; }
  Phase phase() const { return phase_; }
  bool in_step() const { return in_step_; }
  int blocks() const { return blocks_.count; }
  std::span<const BlockIndex> block_table() const { return blocks_.blocks(); }

 private:
  friend class Replica;
  friend class ReplicaView;
  friend class Cluster;
  AdapterId adapter_ = kBaseModel;
  std::int32_t prompt_tokens_ = 0;
  std::int32_t output_limit_ = 0;
  std::int32_t generated_ = 0;
  std::int32_t context_ = 0;
  std::int32_t true_output_tokens_ = 0;  // the oracle: the core's alone
  BlockList blocks_;
  RequestId previous_of_adapter_ = kNoRequest;
  RequestId next_of_adapter_ = kNoRequest;
  std::int16_t rank_ = 0;
  ModelId model_{};
  ReplicaId replica_ = kNoReplica;  // where it is, or was when it ended
  Phase phase_ = Phase::kPending;
  bool in_step_ : 1 = false;
  bool is_member_ : 1 = false;  // of its replica's DecodeBatch, where that stands
  TimeNs last_token_ = 0;
};
static_assert(sizeof(RequestView) == 64);

// Requests in arrival order (which is id order). What comes or goes moves the ids on its shorter
// side: at either end that costs the same however many wait.
class FcfsQueue {
 public:
  std::span<const RequestId> all() const { return {items_.data() + head_, items_.size() - head_}; }
  std::size_t size() const { return items_.size() - head_; }
  bool empty() const { return size() == 0; }
  void insert(RequestId id);  // at its place in arrival order
  void erase(RequestId id);   // must be present

 private:
  std::vector<RequestId> items_;
  std::size_t head_ = 0;
};

// Unfinished requests of one adapter at a replica, or of a model without one, oldest first; see
// ReplicaView::requests_of.
struct AdapterQueue {
  RequestId head = kNoRequest;
  RequestId tail = kNoRequest;
  std::int32_t count = 0;
  // No request before it waits; looking for the first that does moves it on, so that who never
  // looks pays nothing. Policies ask ReplicaView::first_waiting.
  mutable RequestId waiting_from = kNoRequest;
};

class ReplicaView {
 public:
  ReplicaId id() const { return id_; }
  const EngineLimits& limits() const { return limits_; }
  const Unit& unit() const { return *unit_; }  // as deployed: its models, their shares, its devices
  bool serves(ModelId model) const { return costs_[index(model)] != nullptr; }
  const CostModel& cost(ModelId model = {}) const { return *costs_[index(model)]; }
  // Of an adapter, where nothing else is on the link.
  TimeNs load_time(AdapterId id) const { return cost().load(load_path_, adapter(id).bytes); }

  // A request of this replica, unfinished or just finished; any other is refused (I10), so that no
  // policy can look at arrivals to come.
  const RequestView& request(RequestId id) const {
    const RequestView& r = (*table_)[index(id)];
    if (unsettled_ && (r.in_step_ || r.is_member_)) [[unlikely]]
      settle();
    SL_CHECK(r.replica_ == id_, "I10: a policy looked at a request that is not at its replica");
    return r;
  }
  std::span<const RequestId> waiting() const { return waiting_.all(); }  // by arrival
  std::span<const RequestId> swapped() const { return swapped_.all(); }  // by arrival
  std::span<const RequestId> running() const { return running_; }        // by admission

  // KV blocks that one more token of every running request takes, where all of them decode and have
  // their adapters, and a plan may say so at once (StepPlan::decode_all). Negative: one by one.
  std::int64_t blocks_to_decode_all() const;

  // Requests that have not ended: waiting, running and swapped.
  std::size_t unfinished() const { return waiting_.size() + swapped_.size() + running_.size(); }

  // Ranks of the requests that wait for their prefill, and of all that have not ended.
  const RankCounts& waiting_ranks() const { return waiting_ranks_; }
  const RankCounts& unfinished_ranks() const { return unfinished_ranks_; }

  // Unfinished requests of an adapter, or of a model without one (waiting, running and swapped),
  // oldest first: head, then next_of until kNoRequest. kBaseModel means the first model's.
  const AdapterQueue& requests_of(AdapterId id) const { return queues_[queue_index(id, {})]; }
  const AdapterQueue& requests_of(ModelId id) const { return queues_[queue_index(kBaseModel, id)]; }
  RequestId next_of(RequestId id) const { return request(id).next_of_adapter_; }
  // The oldest of them that waits, then the next after it; kNoRequest where none does. They pass
  // over those that run or are swapped, once each until one is preempted.
  RequestId first_waiting(AdapterId id) const { return first_waiting(requests_of(id)); }
  RequestId first_waiting(ModelId id) const { return first_waiting(requests_of(id)); }
  RequestId next_waiting(RequestId id) const { return waiting_at(next_of(id)); }
  // Adapters with at least one unfinished request, and kBaseModel where the first model has one
  // without, in no particular order.
  std::span<const AdapterId> active_adapters() const { return active_; }

  const KvPool& kv() const { return *kv_; }
  Bytes block_bytes() const { return block_bytes_; }  // of one of its blocks
  // KV blocks that `tokens` tokens of a model need.
  std::int64_t blocks_for(ModelId model, std::int64_t tokens) const {
    return kv_->blocks_for(tokens) * blocks_per_page_[index(model)];
  }
  const AdapterPool& adapters() const { return *adapters_; }
  const ModelPool& models() const { return *models_; }  // those that take turns
  const Adapter& adapter(AdapterId id) const { return adapter_table_[index(id)]; }
  std::span<const Adapter> adapter_table() const { return adapter_table_; }

  // kBaseModel: the model's weights are unmerged.
  AdapterId merged(ModelId model = {}) const { return merged_[index(model)]; }
  int steps_in_flight() const { return steps_in_flight_; }

  // Since its scheduled arrival, for a request of this replica.
  TimeNs waited(RequestId id) const {
    return request(id).phase() == Phase::kDone ? 0
                                               : timeline_->now() - (*arrivals_)[index(id)].arrival;
  }

 private:
  friend class Replica;
  void settle() const;
  std::size_t queue_index(AdapterId adapter, ModelId model) const {
    return adapter == kBaseModel ? adapter_table_.size() + index(model) : index(adapter);
  }
  std::size_t queue_index(const RequestView& r) const { return queue_index(r.adapter_, r.model_); }
  RequestId waiting_at(RequestId id) const {  // it, or the next of its adapter that waits
    while (id != kNoRequest && request(id).phase() != Phase::kWaiting) id = next_of(id);
    return id;
  }
  RequestId first_waiting(const AdapterQueue& queue) const {
    return queue.waiting_from = waiting_at(queue.waiting_from);
  }

  ReplicaId id_{};
  EngineLimits limits_;
  const Unit* unit_ = nullptr;
  std::vector<const CostModel*> costs_;  // by model; null: not served here
  LoadPath load_path_ = LoadPath::kPinned;
  std::vector<int> blocks_per_page_;  // by model
  std::vector<RequestView>* table_ = nullptr;
  const std::vector<Request>* arrivals_ = nullptr;
  std::span<const Adapter> adapter_table_;
  FcfsQueue waiting_;
  FcfsQueue swapped_;
  RankCounts waiting_ranks_;
  RankCounts unfinished_ranks_;
  std::vector<RequestId> running_;
  std::vector<AdapterQueue> queues_;  // by adapter, then by model
  std::vector<AdapterId> active_;
  std::vector<std::uint32_t> active_position_;  // where queues_[i] stands in active_
  KvPool* kv_ = nullptr;
  Bytes block_bytes_ = 0;
  AdapterPool* adapters_ = nullptr;
  ModelPool* models_ = nullptr;
  std::vector<AdapterId> merged_;  // by model
  int steps_in_flight_ = 0;
  bool unsettled_ = false;  // steps were repeated that their requests do not know of
  Replica* replica_ = nullptr;
  const Timeline* timeline_ = nullptr;
};

// What a cluster policy sees of a request that is being routed.
struct RoutedRequest {
  RequestId id;
  AdapterId adapter;
  ModelId model;
  int prompt_tokens;
  int output_limit;
  std::uint32_t draw = 0;  // its own, uniform over all values
};

class ClusterView {
 public:
  std::span<const ReplicaView* const> replicas() const { return replicas_; }
  const ReplicaView& replica(ReplicaId id) const { return *replicas_[index(id)]; }
  // Where a request may go: the replicas that serve its model and have its adapter in their
  // repository, by id. Never empty.
  std::span<const ReplicaView* const> candidates(const RoutedRequest& request) const {
    return candidates(request.adapter, request.model);
  }
  // Of these the one with the fewest unfinished requests, the lowest id among equals. O(1) where
  // every replica is a candidate.
  const ReplicaView& least_loaded(const RoutedRequest& request) const;
  std::span<const Adapter> adapter_table() const { return adapter_table_; }

  const Deployment& deployment() const { return deployment_; }
  std::span<const ServedModel> models() const { return models_; }

  TimeNs migration_delay() const { return migration_delay_; }  // that a request is on its way

 private:
  friend class Cluster;
  std::span<const ReplicaView* const> candidates(AdapterId adapter, ModelId model) const {
    if (adapter != kBaseModel && !by_adapter_.empty()) return by_adapter_[index(adapter)];
    return by_model_.empty() ? replicas_ : by_model_[index(model)];
  }

  std::vector<const ReplicaView*> replicas_;
  const LoadIndex* loads_ = nullptr;  // their unfinished requests
  // Empty where no replica lacks a model, or where none has a repository of its own.
  std::vector<std::vector<const ReplicaView*>> by_model_, by_adapter_;
  std::span<const Adapter> adapter_table_;
  Deployment deployment_;
  std::span<const ServedModel> models_;
  TimeNs migration_delay_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_VIEW_H_

#include "engine/serve/weight_pool.h"

namespace servelab {

template <class Id>
WeightPool<Id>::WeightPool(const Options& options, std::vector<Bytes> bytes, KvPool* kv)
    : options_(options), bytes_(std::move(bytes)), kv_(kv), entries_(bytes_.size()) {
  SL_CHECK(options.memory == AdapterMemory::kSlots || (kv != nullptr && options.block_bytes > 0),
           "unified paging needs a block pool");
}

template <class Id>
bool WeightPool<Id>::can_ever_fit(Id id) const {
  if (options_.memory == AdapterMemory::kSlots) {
    return options_.slots > 0 && bytes_[index(id)] <= options_.slot_bytes;
  }
  return blocks_of(id) < kv_->total_blocks();
}

template <class Id>
bool WeightPool<Id>::fits(Id id) const {
  if (options_.memory == AdapterMemory::kSlots) {
    return held_ < options_.slots && bytes_[index(id)] <= options_.slot_bytes;
  }
  return blocks_of(id) <= kv_->free_blocks();
}

template <class Id>
void WeightPool<Id>::begin_load(Id id) {
  Entry& e = entry(id);
  SL_CHECK(e.residency == Residency::kAbsent, "I5: loading what is already held");
  SL_CHECK(fits(id), "I5: no room for the load");
  if (options_.memory == AdapterMemory::kUnified) {
    SL_CHECK(kv_->grow(&e.blocks, blocks_of(id)), "I4: pages of adapters");
  }
  e.residency = Residency::kLoading;
  ++held_;
  link_newest(id);
}

template <class Id>
void WeightPool<Id>::finish_load(Id id) {
  SL_CHECK(entry(id).residency == Residency::kLoading, "a load ended that never began");
  entry(id).residency = Residency::kResident;
}

template <class Id>
void WeightPool<Id>::evict(Id id) {
  Entry& e = entry(id);
  SL_CHECK(e.residency == Residency::kResident, "I5: evicting what is not resident");
  SL_CHECK(e.pins == 0, "I5: evicting what a step in flight or the weights still use");
  if (options_.memory == AdapterMemory::kUnified) kv_->release(&e.blocks);
  e.residency = Residency::kAbsent;
  --held_;
  unlink(id);
}

template <class Id>
void WeightPool<Id>::make_newest(Id id) {
  unlink(id);
  link_newest(id);
}

template <class Id>
void WeightPool<Id>::unlink(Id id) {
  Entry& e = entry(id);
  (e.older == kNone ? oldest_ : entry(e.older).newer) = e.newer;
  (e.newer == kNone ? newest_ : entry(e.newer).older) = e.older;
  e.older = e.newer = kNone;
}

template <class Id>
void WeightPool<Id>::link_newest(Id id) {
  Entry& e = entry(id);
  e.older = newest_;
  e.newer = kNone;
  (newest_ == kNone ? oldest_ : entry(newest_).newer) = id;
  newest_ = id;
}

template class WeightPool<AdapterId>;
template class WeightPool<ModelId>;

}  // namespace servelab

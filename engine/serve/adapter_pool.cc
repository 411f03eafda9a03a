#include "engine/serve/adapter_pool.h"

namespace servelab {

AdapterPool::AdapterPool(const Options& options, std::span<const Adapter> adapters, KvPool* kv)
    : options_(options), adapters_(adapters), kv_(kv), entries_(adapters.size()) {
  SL_CHECK(options.memory == AdapterMemory::kSlots || (kv != nullptr && options.block_bytes > 0),
           "unified paging needs a block pool");
}

std::int64_t AdapterPool::blocks_of(AdapterId id) const {
  if (options_.memory == AdapterMemory::kSlots) return 0;
  return (adapters_[index(id)].bytes + options_.block_bytes - 1) / options_.block_bytes;
}

bool AdapterPool::can_ever_fit(AdapterId id) const {
  if (options_.memory == AdapterMemory::kSlots) {
    return options_.slots > 0 && adapters_[index(id)].bytes <= options_.slot_bytes;
  }
  return blocks_of(id) < kv_->total_blocks();
}

bool AdapterPool::fits(AdapterId id) const {
  if (options_.memory == AdapterMemory::kSlots) {
    return held_ < options_.slots && adapters_[index(id)].bytes <= options_.slot_bytes;
  }
  return blocks_of(id) <= kv_->free_blocks();
}

void AdapterPool::begin_load(AdapterId id) {
  Entry& e = entry(id);
  SL_CHECK(e.residency == Residency::kAbsent, "I5: loading an adapter that is already held");
  SL_CHECK(fits(id), "I5: no room to load the adapter");
  if (options_.memory == AdapterMemory::kUnified) {
    SL_CHECK(kv_->grow(&e.blocks, blocks_of(id)), "I4: adapter pages");
  }
  e.residency = Residency::kLoading;
  ++held_;
  link_newest(id);
}

void AdapterPool::finish_load(AdapterId id) {
  SL_CHECK(entry(id).residency == Residency::kLoading, "a load ended that never began");
  entry(id).residency = Residency::kResident;
}

void AdapterPool::evict(AdapterId id) {
  Entry& e = entry(id);
  SL_CHECK(e.residency == Residency::kResident, "I5: evicting an adapter that is not resident");
  SL_CHECK(e.pins == 0, "I5: evicting an adapter that a step in flight or the weights still use");
  if (options_.memory == AdapterMemory::kUnified) kv_->release(&e.blocks);
  e.residency = Residency::kAbsent;
  --held_;
  unlink(id);
}

void AdapterPool::make_newest(AdapterId id) {
  unlink(id);
  link_newest(id);
}

void AdapterPool::unlink(AdapterId id) {
  Entry& e = entry(id);
  (e.older == kBaseModel ? oldest_ : entry(e.older).newer) = e.newer;
  (e.newer == kBaseModel ? newest_ : entry(e.newer).older) = e.older;
  e.older = e.newer = kBaseModel;
}

void AdapterPool::link_newest(AdapterId id) {
  Entry& e = entry(id);
  e.older = newest_;
  e.newer = kBaseModel;
  (newest_ == kBaseModel ? oldest_ : entry(newest_).newer) = id;
  newest_ = id;
}

}  // namespace servelab

// Which adapters are on a replica's device. Two ways to hold them:
//   slots    `slots` places of `slot_bytes` each, reserved when the replica starts (vLLM, dLoRA);
//   unified  pages of the replica's KvPool, shared with KV caches (S-LoRA 5).
// Costs per step do not depend on how many adapters are registered.
#ifndef SERVELAB_SERVE_ADAPTER_POOL_H_
#define SERVELAB_SERVE_ADAPTER_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/request.h"

namespace servelab {

enum class AdapterMemory : std::uint8_t { kSlots, kUnified };
enum class Residency : std::uint8_t { kAbsent, kLoading, kResident };

class AdapterPool {
 public:
  struct Options {
    AdapterMemory memory = AdapterMemory::kSlots;
    std::int64_t slots = 0;  // kSlots
    Bytes slot_bytes = 0;    // kSlots; a larger adapter never fits
    Bytes block_bytes = 0;   // kUnified: bytes of one KvPool block
  };

  // `adapters` and `kv` outlive the pool. kv is used under unified paging only.
  AdapterPool(const Options& options, std::span<const Adapter> adapters, KvPool* kv);

  Residency residency(AdapterId id) const { return entry(id).residency; }
  bool resident(AdapterId id) const { return residency(id) == Residency::kResident; }

  // True when `id` could be loaded into a replica that held nothing else.
  bool can_ever_fit(AdapterId id) const;
  // True when `id` fits now without evicting anything.
  bool fits(AdapterId id) const;
  // KvPool blocks that `id` takes; 0 with slots.
  std::int64_t blocks_of(AdapterId id) const;

  AdapterMemory memory() const { return options_.memory; }
  std::int64_t slots() const { return options_.slots; }
  std::int64_t slots_used() const { return held_; }
  std::int64_t held() const { return held_; }  // loading or resident

  // Requests of this replica that have KV on the device and use `id`.
  int users(AdapterId id) const { return entry(id).users; }
  // Steps in flight that read `id`, plus one while it is merged into the weights.
  int pins(AdapterId id) const { return entry(id).pins; }
  // May leave the device now: resident, and nothing in flight reads it.
  bool evictable(AdapterId id) const {
    const Entry& e = entry(id);
    return e.residency == Residency::kResident && e.pins == 0;
  }

  // Held adapters from least to most recently used: first = oldest(), then newer(id) until
  // kBaseModel.
  AdapterId oldest() const { return oldest_; }
  AdapterId newer(AdapterId id) const { return entry(id).newer; }

  // --- changes; Replica only ---
  void begin_load(AdapterId id);   // kAbsent -> kLoading; takes its memory
  void finish_load(AdapterId id);  // kLoading -> kResident
  void evict(AdapterId id);        // kResident -> kAbsent; frees its memory
  void pin(AdapterId id) { ++entry(id).pins; }
  void unpin(AdapterId id) { --entry(id).pins; }
  void add_user(AdapterId id, int change) { entry(id).users += change; }
  // Marks a use in step `step` (> 0); true when this is the step's first use of `id`.
  bool touch(AdapterId id, std::uint64_t step) {
    Entry& e = entry(id);
    if (e.last_step == step) return false;
    e.last_step = step;
    if (newest_ != id && e.residency != Residency::kAbsent) make_newest(id);
    return true;
  }

 private:
  struct Entry {
    std::uint64_t last_step = 0;
    AdapterId older = kBaseModel;
    AdapterId newer = kBaseModel;
    std::int32_t users = 0;
    std::int32_t pins = 0;
    BlockList blocks;
    Residency residency = Residency::kAbsent;
  };
  Entry& entry(AdapterId id) { return entries_[index(id)]; }
  const Entry& entry(AdapterId id) const { return entries_[index(id)]; }
  void unlink(AdapterId id);
  void link_newest(AdapterId id);
  void make_newest(AdapterId id);

  Options options_;
  std::span<const Adapter> adapters_;
  KvPool* kv_;
  std::vector<Entry> entries_;
  AdapterId oldest_ = kBaseModel;
  AdapterId newest_ = kBaseModel;
  std::int64_t held_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_ADAPTER_POOL_H_

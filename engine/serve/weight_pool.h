// Which weights are on a replica's device, of those that come and go: adapters, or models that take
// turns. Two ways to hold them:
//   slots    `slots` places of `slot_bytes` each, reserved when the replica starts (vLLM, dLoRA);
//   unified  pages of the replica's KvPool, shared with KV caches (S-LoRA 5).
// Costs per step do not depend on how many are registered.
#ifndef SERVELAB_SERVE_WEIGHT_POOL_H_
#define SERVELAB_SERVE_WEIGHT_POOL_H_

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/kv_pool.h"

namespace servelab {

enum class AdapterMemory : std::uint8_t { kSlots, kUnified };
enum class Residency : std::uint8_t { kAbsent, kLoading, kResident };

template <class Id>
class WeightPool {
 public:
  // Ends the list of those held.
  static constexpr Id kNone{std::numeric_limits<std::underlying_type_t<Id>>::max()};

  struct Options {
    AdapterMemory memory = AdapterMemory::kSlots;
    std::int64_t slots = 0;  // kSlots
    Bytes slot_bytes = 0;    // kSlots; what is larger never fits
    Bytes block_bytes = 0;   // kUnified: bytes of one KvPool block

    // KvPool blocks that weights of `bytes` take; 0 with slots.
    std::int64_t blocks_of(Bytes bytes) const {
      return memory == AdapterMemory::kSlots ? 0 : (bytes + block_bytes - 1) / block_bytes;
    }
  };

  // `bytes` by id. `kv` outlives the pool, and is used under unified paging only.
  WeightPool(const Options& options, std::vector<Bytes> bytes, KvPool* kv);

  Residency residency(Id id) const { return entry(id).residency; }
  bool resident(Id id) const { return residency(id) == Residency::kResident; }

  // True when `id` could be loaded into a replica that held nothing else.
  bool can_ever_fit(Id id) const;
  // True when `id` fits now without evicting anything.
  bool fits(Id id) const;
  std::int64_t blocks_of(Id id) const { return options_.blocks_of(bytes_[index(id)]); }
  Bytes bytes_of(Id id) const { return bytes_[index(id)]; }

  AdapterMemory memory() const { return options_.memory; }
  std::int64_t slots() const { return options_.slots; }
  std::int64_t slots_used() const { return held_; }
  std::int64_t held() const { return held_; }  // loading or resident

  // Requests of this replica that have KV on the device and use `id`.
  int users(Id id) const { return entry(id).users; }
  // blocks_of() all that have users, whether they are on the device or not.
  std::int64_t blocks_in_use() const { return blocks_in_use_; }
  // Steps in flight that read `id`, plus one while it is merged into the weights.
  int pins(Id id) const { return entry(id).pins; }
  // May leave the device now: resident, and nothing in flight reads it.
  bool evictable(Id id) const {
    const Entry& e = entry(id);
    return e.residency == Residency::kResident && e.pins == 0;
  }

  // Those held, from least to most recently used: first = oldest(), then newer(id) until kNone.
  Id oldest() const { return oldest_; }
  Id newer(Id id) const { return entry(id).newer; }

  // --- changes; Replica only ---
  void begin_load(Id id);   // kAbsent -> kLoading; takes its memory
  void finish_load(Id id);  // kLoading -> kResident
  void evict(Id id);        // kResident -> kAbsent; frees its memory
  void pin(Id id) { ++entry(id).pins; }
  void unpin(Id id) { --entry(id).pins; }
  void add_user(Id id, int change) {
    int& users = entry(id).users;
    const bool before = users > 0;
    users += change;
    const bool after = users > 0;
    if (before != after) blocks_in_use_ += after ? blocks_of(id) : -blocks_of(id);
  }
  // Marks a use in step `step` (> 0); true when this is the step's first use of `id`.
  bool touch(Id id, std::uint64_t step) {
    Entry& e = entry(id);
    if (e.last_step == step) return false;
    e.last_step = step;
    if (newest_ != id && e.residency != Residency::kAbsent) make_newest(id);
    return true;
  }

 private:
  struct Entry {
    std::uint64_t last_step = 0;
    Id older = kNone;
    Id newer = kNone;
    BlockList blocks;
    std::int32_t users = 0;
    std::int16_t pins = 0;
    Residency residency = Residency::kAbsent;
  };
  static_assert(sizeof(Entry) == 40, "replicas have one for every adapter that there is");
  Entry& entry(Id id) { return entries_[index(id)]; }
  const Entry& entry(Id id) const { return entries_[index(id)]; }
  void unlink(Id id);
  void link_newest(Id id);
  void make_newest(Id id);

  Options options_;
  std::vector<Bytes> bytes_;
  KvPool* kv_;
  std::vector<Entry> entries_;
  Id oldest_ = kNone;
  Id newest_ = kNone;
  std::int64_t held_ = 0;
  std::int64_t blocks_in_use_ = 0;
};

using AdapterPool = WeightPool<AdapterId>;
using ModelPool = WeightPool<ModelId>;

}  // namespace servelab

#endif  // SERVELAB_SERVE_WEIGHT_POOL_H_

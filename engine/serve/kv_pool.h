// The paged device memory of one replica: fixed-size blocks with ids, handed out to owners. KV
// caches take blocks here; under unified paging (S-LoRA 5) adapters take them from the same pool.
//
// Free blocks are a stack, an owner's blocks one array (a block table, as attention kernels read
// it): taking a block is O(1), giving all back is one copy. Where no device reads block tables,
// blocks have no ids and only their numbers are kept.
#ifndef SERVELAB_SERVE_KV_POOL_H_
#define SERVELAB_SERVE_KV_POOL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

using BlockIndex = std::int32_t;

// Owned blocks, oldest first. Belongs to the pool that filled it; give it back with release().
struct BlockList {
  BlockIndex* data = nullptr;
  std::int32_t count = 0;
  std::int32_t capacity = 0;
  // Empty in a pool whose blocks have no ids.
  std::span<const BlockIndex> blocks() const {
    return {data, data == nullptr ? 0 : static_cast<std::size_t>(count)};
  }
};

class KvPool {
 public:
  // `blocks` >= 0 blocks of `block_tokens` >= 1 tokens each.
  KvPool(std::int64_t blocks, int block_tokens, bool with_ids = true);

  std::int64_t total_blocks() const { return total_blocks_; }
  std::int64_t free_blocks() const { return free_count_; }
  std::int64_t used_blocks() const { return total_blocks() - free_count_; }
  std::int64_t peak_used_blocks() const { return total_blocks() - lowest_free_; }
  int block_tokens() const { return block_tokens_; }

  // Blocks that `tokens` tokens need.
  std::int64_t blocks_for(std::int64_t tokens) const {
    return block_tokens_ == 1 ? tokens : (tokens + block_tokens_ - 1) / block_tokens_;
  }

  // Grows `list` to `count` blocks in all. False, and nothing changed, when too few are free.
  bool grow(BlockList* list, std::int64_t count) {
    const std::int64_t missing = count - list->count;
    if (missing <= 0) return true;
    if (!with_ids_) {
      if (!take(missing)) return false;
      list->count = static_cast<std::int32_t>(count);
      return true;
    }
    if (missing > free_count_) return false;
    if (count > list->capacity) enlarge(list, count);
    for (std::int64_t i = list->count; i < count; ++i) {
      list->data[i] = free_[static_cast<std::size_t>(--free_count_)];
    }
    list->count = static_cast<std::int32_t>(count);
    if (free_count_ < lowest_free_) lowest_free_ = free_count_;
    return true;
  }

  // Without ids: takes blocks now whose owners are named later, by give(). False, and nothing
  // changed, when too few are free.
  bool take(std::int64_t blocks) {
    if (blocks > free_count_) return false;
    free_count_ -= blocks;
    if (free_count_ < lowest_free_) lowest_free_ = free_count_;
    return true;
  }
  // `list` owns `blocks` more of those that were taken.
  static void give(BlockList* list, std::int64_t blocks) {
    list->count += static_cast<std::int32_t>(blocks);
  }

  // Gives every block of `list` back.
  void release(BlockList* list);

 private:
  static constexpr int kSizeClasses = 27;
  void enlarge(BlockList* list, std::int64_t count);

  std::int64_t total_blocks_;
  bool with_ids_;
  std::vector<BlockIndex> free_;  // the first free_count_ entries are free; the top is taken next
  std::int64_t free_count_ = 0;
  std::int64_t lowest_free_ = 0;
  int block_tokens_;
  std::vector<BlockIndex*> spare_[kSizeClasses];  // arrays of 16 << class entries, for reuse
  std::vector<std::unique_ptr<BlockIndex[]>> arrays_;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_KV_POOL_H_

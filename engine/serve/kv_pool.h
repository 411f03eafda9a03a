// The paged device memory of one replica: fixed-size blocks with ids, handed out to owners. KV
// caches take blocks here; under unified paging (S-LoRA 5) adapters take them from the same pool.
//
// An owner's blocks are a chain through one array, so that taking a block and giving all blocks
// back are O(1) each, whatever the chain's length. Real backends read the chain into block tables.
#ifndef SERVELAB_SERVE_KV_POOL_H_
#define SERVELAB_SERVE_KV_POOL_H_

#include <cstdint>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

using BlockIndex = std::int32_t;
inline constexpr BlockIndex kNoBlock = -1;

// Owned blocks, oldest first.
struct BlockList {
  BlockIndex head = kNoBlock;
  BlockIndex tail = kNoBlock;
  std::int32_t count = 0;
};

class KvPool {
 public:
  // `blocks` >= 0 blocks of `block_tokens` >= 1 tokens each.
  KvPool(std::int64_t blocks, int block_tokens);

  std::int64_t total_blocks() const { return static_cast<std::int64_t>(next_.size()); }
  std::int64_t free_blocks() const { return free_count_; }
  std::int64_t used_blocks() const { return total_blocks() - free_count_; }
  std::int64_t peak_used_blocks() const { return peak_used_; }
  int block_tokens() const { return block_tokens_; }

  // Blocks that `tokens` tokens need.
  std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + block_tokens_ - 1) / block_tokens_;
  }

  // Grows `list` to `count` blocks in all. False, and nothing changed, when too few are free.
  bool grow(BlockList* list, std::int64_t count) {
    std::int64_t missing = count - list->count;
    if (missing <= 0) return true;
    if (missing > free_count_) return false;
    free_count_ -= missing;
    if (used_blocks() > peak_used_) peak_used_ = used_blocks();
    list->count += static_cast<std::int32_t>(missing);
    while (missing-- > 0) {
      const BlockIndex block = free_head_;
      free_head_ = next_[static_cast<std::size_t>(block)];
      next_[static_cast<std::size_t>(block)] = kNoBlock;
      if (list->head == kNoBlock) {
        list->head = block;
      } else {
        next_[static_cast<std::size_t>(list->tail)] = block;
      }
      list->tail = block;
    }
    return true;
  }

  // Gives every block of `list` back.
  void release(BlockList* list) {
    if (list->count == 0) return;
    next_[static_cast<std::size_t>(list->tail)] = free_head_;
    free_head_ = list->head;
    free_count_ += list->count;
    *list = BlockList{};
  }

  // The block after `block` in its owner's chain, kNoBlock at the end.
  BlockIndex after(BlockIndex block) const { return next_[static_cast<std::size_t>(block)]; }

 private:
  std::vector<BlockIndex> next_;
  BlockIndex free_head_ = kNoBlock;
  std::int64_t free_count_ = 0;
  std::int64_t peak_used_ = 0;
  int block_tokens_;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_KV_POOL_H_

#include "engine/serve/kv_pool.h"

namespace servelab {

KvPool::KvPool(std::int64_t blocks, int block_tokens) : block_tokens_(block_tokens) {
  SL_CHECK(block_tokens >= 1, "a block holds at least one token");
  SL_CHECK(blocks >= 0 && blocks < INT32_MAX, "the pool's block count is out of range");
  next_.resize(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    next_[static_cast<std::size_t>(i)] =
        i + 1 < blocks ? static_cast<BlockIndex>(i + 1) : kNoBlock;
  }
  free_head_ = blocks > 0 ? 0 : kNoBlock;
  free_count_ = blocks;
}

}  // namespace servelab

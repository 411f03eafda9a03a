#include "engine/serve/kv_pool.h"

#include <algorithm>

namespace servelab {
namespace {

constexpr std::int32_t kSmallestArray = 16;

int size_class(std::int64_t count) {
  int size = 0;
  while ((std::int64_t{kSmallestArray} << size) < count) ++size;
  return size;
}

}  // namespace

KvPool::KvPool(std::int64_t blocks, int block_tokens, bool with_ids)
    : total_blocks_(blocks), with_ids_(with_ids), block_tokens_(block_tokens) {
  SL_CHECK(block_tokens >= 1, "a block holds at least one token");
  SL_CHECK(blocks >= 0 && blocks < INT32_MAX, "the pool's block count is out of range");
  free_count_ = lowest_free_ = blocks;
  if (!with_ids) return;
  free_.resize(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    free_[static_cast<std::size_t>(i)] = static_cast<BlockIndex>(blocks - 1 - i);
  }
}

void KvPool::enlarge(BlockList* list, std::int64_t count) {
  const int size = size_class(count);
  std::vector<BlockIndex*>& spare = spare_[size];
  const std::int32_t capacity = kSmallestArray << size;
  if (spare.empty()) {
    arrays_.push_back(
        std::make_unique_for_overwrite<BlockIndex[]>(static_cast<std::size_t>(capacity)));
    spare.push_back(arrays_.back().get());
  }
  BlockIndex* data = spare.back();
  spare.pop_back();
  std::copy_n(list->data, list->count, data);
  if (list->data != nullptr) spare_[size_class(list->capacity)].push_back(list->data);
  list->data = data;
  list->capacity = capacity;
}

void KvPool::release(BlockList* list) {
  if (list->data != nullptr) {
    std::copy_n(list->data, list->count, free_.begin() + static_cast<std::ptrdiff_t>(free_count_));
    spare_[size_class(list->capacity)].push_back(list->data);
  }
  free_count_ += list->count;
  *list = BlockList{};
}

}  // namespace servelab

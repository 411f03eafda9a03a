#include "engine/backend/cuda/range_allocator.h"

#include <algorithm>
#include <iterator>

#include "engine/core/check.h"

namespace servelab::cuda {

RangeAllocator::RangeAllocator(std::size_t size) : free_bytes_(size) {
  if (size > 0) free_.emplace(0, size);
}

std::optional<std::size_t> RangeAllocator::take(std::size_t size) {
  SL_CHECK(size > 0, "a stretch has a length");
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& f) { return f.second >= size; });
  if (found == free_.end()) return std::nullopt;
  const auto [offset, length] = *found;
  free_.erase(found);
  if (length > size) free_.emplace(offset + size, length - size);
  free_bytes_ -= size;
  return offset;
}

void RangeAllocator::give(std::size_t offset, std::size_t size) {
  const auto [here, is_new] = free_.emplace(offset, size);
  SL_CHECK(is_new, "a stretch comes back once");
  free_bytes_ += size;
  const auto after = std::next(here);
  if (after != free_.end()) {
    SL_CHECK(offset + size <= after->first, "stretches do not overlap");
    if (offset + size == after->first) {
      here->second += after->second;
      free_.erase(after);
    }
  }
  if (here == free_.begin()) return;
  const auto before = std::prev(here);
  SL_CHECK(before->first + before->second <= offset, "stretches do not overlap");
  if (before->first + before->second == offset) {
    before->second += here->second;
    free_.erase(here);
  }
}

std::size_t RangeAllocator::longest_free() const {
  std::size_t longest = 0;
  for (const auto& [offset, length] : free_) longest = std::max(longest, length);
  return longest;
}

}  // namespace servelab::cuda

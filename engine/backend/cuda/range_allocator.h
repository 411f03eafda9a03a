// Hands out stretches of one range of memory: the lowest free one that is large enough, and
// neighbours that come back become one again. Knows offsets only.
#ifndef SERVELAB_BACKEND_CUDA_RANGE_ALLOCATOR_H_
#define SERVELAB_BACKEND_CUDA_RANGE_ALLOCATOR_H_

#include <cstddef>
#include <map>
#include <optional>

namespace servelab::cuda {

class RangeAllocator {
 public:
  explicit RangeAllocator(std::size_t size);

  std::optional<std::size_t> take(std::size_t size);  // null when no free stretch is that long
  void give(std::size_t offset, std::size_t size);    // as it was taken
  std::size_t free_bytes() const { return free_bytes_; }
  std::size_t longest_free() const;

 private:
  std::map<std::size_t, std::size_t> free_;  // length by offset
  std::size_t free_bytes_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_RANGE_ALLOCATOR_H_
